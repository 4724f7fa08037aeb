//! The groups of a mesh.

use std::sync::Arc;

use brigade_comm::ProcessGroup;
use brigade_core::{Collectives, Groups, Mesh};

use crate::{HostCollectives, MemorySpace};

/// This rank's collectives along all axes of a mesh over the ranks of `world`, which all call it together, for tensors
/// that are where `memory_space` says. Any engine will do. A process that is alone, and only describes a larger mesh, has none.
///
/// # Errors
/// If a group cannot be connected, or a rank failed.
pub fn groups<G: ProcessGroup + Clone + 'static>(
    world: &G,
    mesh: Mesh,
    memory_space: MemorySpace,
) -> brigade_comm::Result<Groups> {
    let world: Arc<dyn ProcessGroup> = Arc::new(world.clone());
    let all: Arc<dyn Collectives> = Arc::new(HostCollectives::new(world.clone(), memory_space));
    if world.size() == 1 {
        return Ok(Groups::data_parallel(all));
    }
    let rank = world.rank();
    Groups::new(mesh.clone(), all, |axes| {
        let SubgroupArgs { name, color, key } = subgroup(&mesh, rank, axes);
        let group = world.split(&name, color, key)?;
        Ok(Arc::new(HostCollectives::new(group, memory_space)) as Arc<dyn Collectives>)
    })
}

/// What a rank gives to the split of the world that makes its group along some axes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubgroupArgs {
    /// The group's name, for messages: its axes, and where it stands along the others.
    pub name: String,
    /// The number of the group among those along the same axes.
    pub color: u32,
    /// The rank's number in the group.
    pub key: u32,
}

/// The arguments of the split that makes a rank's group along some axes of a mesh.
pub fn subgroup(mesh: &Mesh, rank: usize, axes: &[&'static str]) -> SubgroupArgs {
    let others = mesh.complement(axes);
    let place = others.iter().filter(|axis| mesh.size(axis) > 1);
    let place: Vec<String> = place.map(|axis| format!("{axis} {}", mesh.coordinate(rank, axis))).collect();
    SubgroupArgs {
        name: format!("{} at {}", axes.join(" x "), place.join(", ")),
        color: mesh.position(rank, &others) as u32,
        key: mesh.position(rank, axes) as u32,
    }
}
