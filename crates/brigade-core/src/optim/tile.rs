//! How much of a flat buffer an elementwise pass takes at once.

use brigade_plan::CHUNK;
use burn::tensor::Device;

/// Where a processor computes: few enough elements that many passes over them stay in a core's cache.
const CACHED: usize = 128 * CHUNK;

/// Where a GPU does: enough elements that starting a kernel costs little beside running it, and few enough that what passes
/// make in between is small beside a model.
const LAUNCHED: usize = 128 * CACHED;

/// Elements that an elementwise pass on this device takes at once: whole chunks. It changes no bit.
pub(crate) fn tile(device: &Device) -> usize {
    // Burn tells of pools of memory where kernels are launched.
    if device.memory_pool_usage().is_some() { LAUNCHED } else { CACHED }
}
