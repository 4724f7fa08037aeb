//! How much of a flat buffer an elementwise pass processes at once.

use brigade_plan::CHUNK;
use burn::tensor::Device;

/// On a CPU: few enough elements to stay in a core's cache over many passes.
const CACHED: usize = 128 * CHUNK;

/// On a GPU: enough elements that launching a kernel costs little compared with running it, and few enough that temporary tensors
/// are small compared with a model.
const LAUNCHED: usize = 128 * CACHED;

/// How many elements an elementwise pass on this device processes at once: whole chunks. It changes no bit of the result.
pub(crate) fn tile(device: &Device) -> usize {
    // Only devices that launch kernels report memory pools.
    if device.memory_pool_usage().is_some() { LAUNCHED } else { CACHED }
}
