//! The groups of a mesh, over NCCL or through host memory.

use brigade_comm::{Group, ProcessGroup};
use brigade_core::{Error, Groups, Mesh, PP};
use brigade_host::{MemorySpace, SubgroupArgs, subgroup};
use burn::tensor::{Bytes, DType, Device, TensorData};

use super::collectives::PipelineLinks;
use super::group_builder::{GroupBuilder, NcclOptions, Result};
use super::rank_gpu::RankGpu;

/// This rank's groups along all axes of a mesh over the ranks of `world`. All ranks call it together, each with a GPU of its own.
/// Each wait has the [timeout](brigade_comm::ProcessGroup::op_timeout) of `world`.
///
/// # Errors
/// If two ranks have the same GPU, a communicator cannot be made, or a rank failed.
pub fn groups(world: &Group, mesh: Mesh, gpu: &RankGpu, options: NcclOptions) -> Result<Groups> {
    if world.size() == 1 && !options.even_alone {
        return Ok(host_groups(world, mesh)?);
    }
    let builder = GroupBuilder::new(world, gpu, options)?;
    let world_comm = builder.join(world, gpu)?;
    if world.size() == 1 {
        let alone = builder.collectives(world_comm, world.clone(), PipelineLinks::default())?;
        return Ok(Groups::single_rank_through(alone));
    }
    let mut subgroups = Vec::new();
    for axes in mesh.subsets() {
        let SubgroupArgs { name, color, key } = subgroup(&mesh, world.rank(), &axes);
        let group = world.split(&name, color, key)?;
        let comm = builder.split(&world_comm, &group, color, key)?;
        let links = if axes == [PP] { builder.links(&comm, &group)? } else { PipelineLinks::default() };
        subgroups.push(builder.collectives(comm, group, links)?);
    }
    // A pipeline of all ranks shares the world's communicator, and its links.
    let links = match mesh.size(PP) == world.size() {
        true => builder.links(&world_comm, world)?,
        false => PipelineLinks::default(),
    };
    let everyone = builder.collectives(world_comm, world.clone(), links)?;
    let mut subgroups = subgroups.into_iter();
    let missing = || Error::Model("a mesh has more groups than sets of axes".into());
    Ok(Groups::new(mesh, everyone, |_| subgroups.next().ok_or_else(missing))?)
}

/// The groups of a mesh through host memory, by any engine, with which ranks may share a GPU.
///
/// # Errors
/// If a group cannot be connected, or a rank failed.
pub fn host_groups<G: ProcessGroup + Clone + 'static>(world: &G, mesh: Mesh) -> brigade_comm::Result<Groups> {
    brigade_host::groups(world, mesh, MemorySpace::Device { buffer: pinned })
}

/// Pinned host memory, which the GPU copies from at full speed.
fn pinned(device: &Device, bytes: usize) -> Bytes {
    let mut data = TensorData::from_bytes(Bytes::from_elems(vec![0u8; bytes]), [bytes], DType::U8);
    device.staging(std::iter::once(&mut data));
    data.into_parts().0
}
