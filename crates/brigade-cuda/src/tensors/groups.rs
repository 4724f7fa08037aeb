//! The groups of a mesh, over NCCL or through host memory.

use std::sync::Arc;

use brigade_comm::Group;
use brigade_core::{Collectives, Groups, Mesh, SingleRankGroup};
use brigade_host::{Axes, Placement, axes};
use burn::tensor::{Bytes, DType, Device, TensorData};

use super::collectives::PipelineLinks;
use super::group_builder::{GroupBuilder, NcclOptions, Result};
use super::rank_gpu::RankGpu;
use crate::Communicator;

/// This rank's groups along the axes of a mesh over all ranks of `world`. All ranks call it together, each with a GPU of its own.
/// Each wait has the [timeout](Group::op_timeout) of `world`.
///
/// # Errors
/// If two ranks have the same GPU, a communicator cannot be made, or a rank failed.
pub fn groups(world: &Group, mesh: Mesh, gpu: &RankGpu, options: NcclOptions) -> Result<Groups> {
    if world.size() == 1 && !options.even_alone {
        return Ok(host_groups(world, mesh)?);
    }
    let builder = GroupBuilder::new(world, gpu, options)?;
    let world_comm = builder.join(world, gpu)?;
    let Axes { dp, pp } = axes(world, mesh)?;
    let (stage, replica) = (mesh.pp_rank(world.rank()), mesh.dp_rank(world.rank()));
    let dp_comm = builder.axis(&world_comm, world, dp.as_ref(), stage, replica)?;
    let pp_comm = builder.axis(&world_comm, world, pp.as_ref(), replica, stage)?;
    let links = match &pp {
        Some(group) => builder.links(pp_comm.as_ref().unwrap_or(&world_comm), group)?,
        None => PipelineLinks::default(),
    };
    // An axis that contains all ranks shares the world's communicator, and its links.
    let (world_links, pp_links) = match &pp {
        Some(group) if group.size() == world.size() => (links, PipelineLinks::default()),
        _ => (PipelineLinks::default(), links),
    };
    let everyone = builder.collectives(world_comm, world.clone(), world_links)?;
    let along = |group: Option<Group>, comm: Option<Communicator>, links: PipelineLinks| match (group, comm) {
        (Some(group), Some(comm)) => builder.collectives(comm, group, links),
        (Some(_), None) => Ok(everyone.clone()),
        (None, _) => Ok(Arc::new(SingleRankGroup) as Arc<dyn Collectives>),
    };
    let dp = if world.size() == 1 { everyone.clone() } else { along(dp, dp_comm, PipelineLinks::default())? };
    let pp = along(pp, pp_comm, pp_links)?;
    Ok(Groups { dp, pp, world: everyone })
}

/// The groups of a mesh through host memory, with which ranks may share a GPU.
///
/// # Errors
/// If a group cannot be connected, or a rank failed.
pub fn host_groups(world: &Group, mesh: Mesh) -> brigade_comm::Result<Groups> {
    brigade_host::groups(world, mesh, Placement::Device { buffer: pinned })
}

/// Pinned host memory, which the GPU copies from at full speed.
fn pinned(device: &Device, bytes: usize) -> Bytes {
    let mut data = TensorData::from_bytes(Bytes::from_elems(vec![0u8; bytes]), [bytes], DType::U8);
    device.staging(std::iter::once(&mut data));
    data.into_parts().0
}
