//! The groups of a mesh.

use std::sync::Arc;

use brigade_comm::{Group, ProcessGroup};
use brigade_core::{Collectives, Groups, Mesh, SingleRankGroup};

use crate::{HostCollectives, Placement};

/// A rank's groups along the axes of a mesh; none along an axis of one rank, and the world's where an axis holds all.
pub struct Axes<G = Group> {
    /// The ranks of this rank's stage.
    pub dp: Option<G>,
    /// The ranks of this rank's pipeline.
    pub pp: Option<G>,
}

/// Splits the group of all ranks along the axes of a mesh; all ranks call it together. A process that is alone, and only
/// describes a larger mesh, has no groups.
///
/// # Errors
/// If a group cannot be connected, or a rank failed.
pub fn axes(world: &Group, mesh: Mesh) -> brigade_comm::Result<Axes> {
    let split = |name: &str, color, key| world.split(name, color, key);
    split_axes(world, (world.rank(), world.size()), mesh, split)
}

fn split_axes<G: Clone>(
    world: &G,
    (rank, size): (usize, usize),
    mesh: Mesh,
    split: impl Fn(&str, u32, u32) -> brigade_comm::Result<G>,
) -> brigade_comm::Result<Axes<G>> {
    let axis = |name: &str, length: usize, color: usize, key: usize| match length {
        _ if length == 1 || size == 1 => Ok(None),
        _ if length == size => Ok(Some(world.clone())),
        _ => split(&format!("{name} {color}"), color as u32, key as u32).map(Some),
    };
    let (stage, replica) = (mesh.pp_rank(rank), mesh.dp_rank(rank));
    Ok(Axes { dp: axis("stage", mesh.dp, stage, replica)?, pp: axis("pipeline", mesh.pp, replica, stage)? })
}

/// This rank's collectives along the axes of a mesh over all ranks of `world`, which all call it together, for tensors
/// that are where `placement` says. Any engine will do.
///
/// # Errors
/// If a group cannot be connected, or a rank failed.
pub fn groups<G: ProcessGroup + Clone + 'static>(
    world: &G,
    mesh: Mesh,
    placement: Placement,
) -> brigade_comm::Result<Groups> {
    let world: Arc<dyn ProcessGroup> = Arc::new(world.clone());
    let split = |name: &str, color, key| world.split(name, color, key);
    let Axes { dp, pp } = split_axes(&world, (world.rank(), world.size()), mesh, split)?;
    let all: Arc<dyn Collectives> = Arc::new(HostCollectives::new(world.clone(), placement));
    let axis = |group: Option<Arc<dyn ProcessGroup>>| -> Arc<dyn Collectives> {
        match group {
            None => Arc::new(SingleRankGroup),
            Some(group) if group.size() == world.size() => all.clone(),
            Some(group) => Arc::new(HostCollectives::new(group, placement)),
        }
    };
    Ok(Groups { dp: axis(dp), pp: axis(pp), world: all })
}
