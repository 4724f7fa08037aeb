//! The wgpu backend: GPUs of any make, and collectives staged through host memory.
//!
//! - Ranks need Linux, so it is Vulkan that reaches them; the choice of an adapter also knows Metal and DX12.
//! - A rank takes an adapter by its number on its node: see [`device`]. Ranks may share one.
//! - wgpu has no collectives: tensors are read from the device, summed on the host, and written back. Sums have the
//!   same bits as on the CPU, for the same addends.
//! - The device works on what each thread asks of it in order, and what one thread made another may read.

mod adapters;
mod choice;
mod device;
mod error;

pub use adapters::{Adapter, Api, Kind, adapters};
pub use device::{device, room};
pub use error::Error;

use brigade_comm::Group;
use brigade_core::{Groups, Mesh};
use brigade_host::Placement;

/// This rank's groups along the axes of a mesh over all ranks of `world`, which all call it together.
///
/// # Errors
/// If a group cannot be connected, or a rank failed.
pub fn groups(world: &Group, mesh: Mesh) -> brigade_comm::Result<Groups> {
    brigade_host::groups(world, mesh, Placement::DEVICE)
}
