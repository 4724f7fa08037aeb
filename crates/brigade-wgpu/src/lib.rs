//! The wgpu backend: GPUs of any vendor, with collectives through host memory.
//!
//! - Brigade runs on Linux, where wgpu uses Vulkan. Adapter selection also supports Metal and DX12.
//! - A rank's adapter depends on its local rank; see [`device`]. Ranks may share an adapter.
//! - wgpu has no collectives: tensors are read from the device, summed on the host, and written back. For the same addends, sums
//!   have the same bits as on the CPU.
//! - A device runs each thread's operations in order, and a thread may read what another has computed.

mod adapter_choice;
mod adapters;
mod device;
mod error;

pub use adapters::{Adapter, AdapterKind, GraphicsApi, adapters};
pub use device::{adapter_count, device};
pub use error::Error;

use brigade_comm::ProcessGroup;
use brigade_core::{Groups, Mesh};
use brigade_host::MemorySpace;

/// This rank's groups along the axes of a mesh over all ranks of `world`, of any engine. All ranks call it together.
///
/// # Errors
/// If a group cannot be connected, or a rank failed.
pub fn groups<G: ProcessGroup + Clone + 'static>(world: &G, mesh: Mesh) -> brigade_comm::Result<Groups> {
    brigade_host::groups(world, mesh, MemorySpace::DEVICE)
}
