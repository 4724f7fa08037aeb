//! Which tensors kernels take.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use burn::backend::{Cube, DispatchTensor, TensorMetadata};
use burn::tensor::DType;
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::strategy::NoCheckpointing;
use burn_cubecl::cubecl::ir::features::Plane;
use burn_cubecl::tensor::CubeTensor;

use crate::autodiff::fusion::is_fusion_enabled;
use crate::autodiff::graph::{Operation, primitive, run};

type InGraph = Autodiff<Cube, NoCheckpointing>;

/// Runs an operation on tensors of one of these devices, all in one type, in their graph if any of them is in one. None if it cannot be run by kernels here.
pub(crate) fn apply<const N: usize, O: Operation<N, CubeTensor>>(
    operation: O,
    inputs: [&DispatchTensor; N],
) -> Option<(DispatchTensor, O::Extra)> {
    is_fused(&inputs).then(|| run::<Cube, NoCheckpointing, N, O>(operation, inputs).ok()).flatten()
}

/// Whether kernels are run on these tensors: if all are on such a device, in fp32 or all in bf16, and in no graph that recomputes.
pub(crate) fn is_fused(tensors: &[&DispatchTensor]) -> bool {
    let Some(dtype) = tensors.first().map(|tensor| tensor.dtype()) else { return false };
    is_fusion_enabled()
        && matches!(dtype, DType::F32 | DType::BF16)
        && tensors.iter().all(|tensor| tensor.dtype() == dtype && is_there(tensor))
}

/// Whether a tensor is on a device that has the operations of planes. CubeCL does not trust software drivers with them; with [`trust_software`] we do.
fn is_there(tensor: &DispatchTensor) -> bool {
    let has_planes = |tensor: CubeTensor| {
        tensor.client.properties().features.plane.contains(Plane::Ops) || TRUSTS_SOFTWARE.load(Relaxed)
    };
    on_device(tensor).is_some_and(has_planes)
}

static TRUSTS_SOFTWARE: AtomicBool = AtomicBool::new(false);

/// Has kernels run on software drivers of wgpu, too, in all of the process: for tests of the kernels.
pub fn trust_software() {
    TRUSTS_SOFTWARE.store(true, Relaxed);
}

/// A tensor of one of these devices, in no graph or in one that does not recompute.
pub(super) fn on_device(tensor: &DispatchTensor) -> Option<CubeTensor> {
    primitive::<Cube>(tensor).or_else(|| {
        primitive::<InGraph>(tensor).map(burn::backend::tensor::FloatTensor::<InGraph>::into_primitive)
    })
}
