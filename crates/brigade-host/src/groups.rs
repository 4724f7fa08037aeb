//! The groups of a mesh.

use std::sync::Arc;

use brigade_comm::Group;
use brigade_core::{Collectives, Groups, Mesh, SingleRankGroup};

use crate::{HostCollectives, Placement};

/// A rank's groups along the axes of a mesh; none along an axis of one rank, and the world's where an axis holds all.
pub struct Axes {
    /// The ranks of this rank's stage.
    pub dp: Option<Group>,
    /// The ranks of this rank's pipeline.
    pub pp: Option<Group>,
}

/// Splits the group of all ranks along the axes of a mesh; all ranks call it together. A process that is alone, and only
/// describes a larger mesh, has no groups.
///
/// # Errors
/// If a group cannot be connected, or a rank failed.
pub fn axes(world: &Group, mesh: Mesh) -> brigade_comm::Result<Axes> {
    let (rank, size) = (world.rank(), world.size());
    let axis = |name: &str, length: usize, color: usize, key: usize| match length {
        _ if length == 1 || size == 1 => Ok(None),
        _ if length == size => Ok(Some(world.clone())),
        _ => world.split(&format!("{name} {color}"), color as u32, key as u32).map(Some),
    };
    let (stage, replica) = (mesh.pp_rank(rank), mesh.dp_rank(rank));
    Ok(Axes { dp: axis("stage", mesh.dp, stage, replica)?, pp: axis("pipeline", mesh.pp, replica, stage)? })
}

/// This rank's collectives along the axes of a mesh over all ranks of `world`, which all call it together, for tensors
/// that are where `placement` says.
///
/// # Errors
/// If a group cannot be connected, or a rank failed.
pub fn groups(world: &Group, mesh: Mesh, placement: Placement) -> brigade_comm::Result<Groups> {
    let Axes { dp, pp } = axes(world, mesh)?;
    let all: Arc<dyn Collectives> = Arc::new(HostCollectives::new(world.clone(), placement));
    let axis = |group: Option<Group>| -> Arc<dyn Collectives> {
        match group {
            None => Arc::new(SingleRankGroup),
            Some(group) if group.size() == world.size() => all.clone(),
            Some(group) => Arc::new(HostCollectives::new(group, placement)),
        }
    };
    Ok(Groups { dp: axis(dp), pp: axis(pp), world: all })
}
