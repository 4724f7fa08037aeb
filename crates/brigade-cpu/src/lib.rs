//! The CPU backend: Burn's Flex device, heap settings, and collectives in host memory.
//!
//! A rank computes on one thread: ranks fill the cores, not threads inside operations. So Burn's feature `rayon` is off. Its SIMD
//! code, selected at run time, is on.

mod counted_heap;
mod heap;
mod heap_meter;

pub use counted_heap::CountedHeap;
pub use heap::{HUGE_PAGES, keep_heap, trim_heap};
pub use heap_meter::GlibcHeap;

use brigade_comm::ProcessGroup;
use brigade_core::{Groups, HeapMeter, Mesh};
use brigade_host::MemorySpace;
use burn::tensor::Device;

/// The device of every rank.
pub fn device() -> Device {
    Device::flex()
}

/// A meter of this process's heap: what this thread takes of a [`CountedHeap`], or else [what the process takes](GlibcHeap::find); none where neither is known.
pub fn heap_meter() -> Option<Box<dyn HeapMeter>> {
    let counted = counted_heap::ThreadHeap::find().map(|heap| Box::new(heap) as Box<dyn HeapMeter>);
    counted.or_else(|| Some(Box::new(GlibcHeap::find()?)))
}

/// This rank's groups along the axes of a mesh over all ranks of `world`, of any engine. All ranks call it together.
///
/// # Errors
/// If a group cannot be connected, or a rank failed.
pub fn groups<G: ProcessGroup + Clone + 'static>(world: &G, mesh: Mesh) -> brigade_comm::Result<Groups> {
    brigade_host::groups(world, mesh, MemorySpace::Host)
}
