//! The groups of a mesh.

use std::sync::Arc;

use brigade_comm::Group;
use brigade_core::{Collectives, Groups, Mesh, Solo};

use crate::HostCollectives;

/// This rank's groups along the axes of a mesh over all ranks of `world`, which all call it together. An axis of one
/// rank needs no group, and one of all ranks is the world's.
///
/// # Errors
/// If a group cannot be connected, or a rank failed.
pub fn groups(world: &Group, mesh: Mesh) -> brigade_comm::Result<Groups> {
    let (rank, size) = (world.rank(), world.size());
    let all: Arc<dyn Collectives> = Arc::new(HostCollectives::new(world.clone()));
    let axis = |name: &str, length: usize, color: usize, key: usize| {
        let group: Arc<dyn Collectives> = match length {
            1 => Arc::new(Solo),
            _ if length == size => all.clone(),
            // A process that is alone only describes a larger mesh.
            _ if size == 1 => Arc::new(Solo),
            _ => {
                let group = world.split(&format!("{name} {color}"), color as u32, key as u32)?;
                Arc::new(HostCollectives::new(group))
            }
        };
        brigade_comm::Result::Ok(group)
    };
    let (stage, replica) = (mesh.pp_rank(rank), mesh.dp_rank(rank));
    let dp = axis("stage", mesh.dp, stage, replica)?;
    let pp = axis("pipeline", mesh.pp, replica, stage)?;
    Ok(Groups { world: all, dp, pp })
}
