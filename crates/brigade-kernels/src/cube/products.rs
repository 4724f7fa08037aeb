//! Products of matrices: by another library where one is given, else by the kernels that Burn finds best.

use std::sync::{Arc, PoisonError, RwLock};

use burn::tensor::DType;
use burn_cubecl::kernel::matmul::{self, MatmulStrategy};
use burn_cubecl::tensor::CubeTensor;

/// A library's products of matrices.
pub trait MatrixProducts: Send + Sync {
    /// The product of `[…, m, k]` and `[…, k, n]`, whose elements have this type; none if the library does not make it, or not on this device.
    fn product(&self, left: &CubeTensor, right: &CubeTensor, dtype: DType) -> Option<CubeTensor>;

    /// Writes the product where this tensor lies, which may be a part of a larger one; none if the library does not make it, or not on this device.
    fn product_into(&self, left: &CubeTensor, right: &CubeTensor, output: &CubeTensor) -> Option<()>;
}

static LIBRARIES: RwLock<Vec<Arc<dyn MatrixProducts>>> = RwLock::new(Vec::new());

/// Has the operations of this crate multiply by a library where it does, in all of the process. Libraries are asked in the order of these calls.
pub fn use_products(library: impl MatrixProducts + 'static) {
    LIBRARIES.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(library));
}

/// The product of `[…, m, k]` and `[…, k, n]`, whose elements have this type.
pub(super) fn product(left: CubeTensor, right: CubeTensor, dtype: DType) -> CubeTensor {
    let found = libraries().iter().find_map(|library| library.product(&left, &right, dtype));
    found.unwrap_or_else(|| {
        let shapes = (left.meta.shape().clone(), right.meta.shape().clone());
        matmul::matmul(left, right, None, MatmulStrategy::default(), dtype)
            .unwrap_or_else(|error| panic!("no product of {shapes:?}: {error:?}"))
    })
}

/// Writes the product where a tensor lies, if a library does.
pub(super) fn product_into(left: CubeTensor, right: CubeTensor, output: &CubeTensor) -> Option<()> {
    libraries().iter().find_map(|library| library.product_into(&left, &right, output))
}

fn libraries() -> Vec<Arc<dyn MatrixProducts>> {
    LIBRARIES.read().unwrap_or_else(PoisonError::into_inner).clone()
}
