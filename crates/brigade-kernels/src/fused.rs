//! Where operations are fused.

use burn::tensor::Tensor;

use crate::host::is_on_host;

/// Whether the operations of this crate are fused on this tensor: if it is in host memory or on a device with kernels (features `cuda` and `wgpu`), in fp32 or bf16, in no graph that
/// recomputes, and [`set_fused`](crate::set_fused) has not said no.
pub fn is_fused<const D: usize>(tensor: &Tensor<D>) -> bool {
    let dispatch = tensor.clone().into_dispatch();
    #[cfg(feature = "cube")]
    if crate::cube::is_fused(&[&dispatch]) {
        return true;
    }
    is_on_host(&dispatch)
}

/// Whether the operations of this crate are fused on this tensor in host memory.
pub fn is_fused_on_cpu<const D: usize>(tensor: &Tensor<D>) -> bool {
    is_on_host(&tensor.clone().into_dispatch())
}
