//! Products of matrices: by another library where one is given, else by the kernels that Burn finds best.

use std::sync::{Arc, PoisonError, RwLock};

use burn::tensor::DType;
use burn_cubecl::kernel::matmul::{self, MatmulStrategy};
use burn_cubecl::ops::numeric::{self, empty_device_contiguous_dtype, empty_device_dtype};
use burn_cubecl::tensor::CubeTensor;

/// The alignment of rows below which kernels of products are slow, in bytes.
const ALIGNMENT: usize = 16;

/// A product of `[…, m, k]` and `[…, k, n]`, and where it goes.
#[derive(Debug, Clone)]
pub struct Product {
    /// The left factor.
    pub left: CubeTensor,
    /// The right factor, of the same type.
    pub right: CubeTensor,
    /// The product, of the same type or fp32.
    pub output: CubeTensor,
    /// What is made of it in the same pass.
    pub epilogue: Epilogue,
}

/// What a library makes of a product while it writes it, where it can. Vectors are as long as the product's rows; all tensors are contiguous, of the product's type.
#[derive(Debug, Clone, Default)]
pub enum Epilogue {
    /// Nothing.
    #[default]
    None,
    /// It is added to what is there.
    Accumulate,
    /// A bias is added to each row, and a residual of the product's shape: those that there are.
    Sum {
        /// The bias, a vector.
        bias: Option<CubeTensor>,
        /// The residual.
        residual: Option<CubeTensor>,
    },
    /// A bias is added to each row, and GELU, in its form with `tanh`, applied to the sum.
    Gelu {
        /// The bias, a vector.
        bias: CubeTensor,
        /// Where the sum goes.
        hidden: CubeTensor,
    },
    /// The sums of the right factor's columns, as long as the product's rows, go here.
    RightSums(CubeTensor),
    /// The sums of the left factor's rows, as long as the product's columns, go here.
    LeftSums(CubeTensor),
}

/// A library's products of matrices.
pub trait MatrixProducts: Send + Sync {
    /// Writes products where their outputs lie, which may be parts of larger tensors: all of them, or none if the library does not make one, or not on this device. What
    /// computes them is told of them together, so none may read what another writes.
    fn products_into(&self, products: &[Product]) -> Option<()>;
}

static LIBRARIES: RwLock<Vec<Arc<dyn MatrixProducts>>> = RwLock::new(Vec::new());

/// Has the operations of this crate multiply by a library where it does, in all of the process. Libraries are asked in the order of these calls.
pub fn use_products(library: impl MatrixProducts + 'static) {
    LIBRARIES.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(library));
}

/// The product of `[…, m, k]` and `[…, k, n]`, whose elements have this type.
pub(crate) fn product(left: CubeTensor, right: CubeTensor, dtype: DType) -> CubeTensor {
    let [product] = products([(left, right)], dtype);
    product
}

/// Several products, whose elements have this type.
pub(crate) fn products<const N: usize>(
    factors: [(CubeTensor, CubeTensor); N],
    dtype: DType,
) -> [CubeTensor; N] {
    if has_library() {
        let made = factors.each_ref().map(|(left, right)| {
            let output = output_of(left, right, dtype);
            Product { left: left.clone(), right: right.clone(), output, epilogue: Epilogue::None }
        });
        if products_into(&made).is_some() {
            return made.map(|product| product.output);
        }
    }
    factors.map(|(left, right)| {
        let shapes = (left.meta.shape().clone(), right.meta.shape().clone());
        matmul::matmul(left, right, None, MatmulStrategy::default(), dtype)
            .unwrap_or_else(|error| panic!("no product of {shapes:?}: {error:?}"))
    })
}

/// Products with what a library makes of them, in the type of their factors; none if it does not make all of them.
pub(crate) fn products_with<const N: usize>(
    factors: [(CubeTensor, CubeTensor, Epilogue); N],
) -> Option<[CubeTensor; N]> {
    if !has_library() {
        return None;
    }
    let products = factors.map(|(left, right, epilogue)| {
        let output = output_of(&left, &right, left.dtype);
        Product { left, right, output, epilogue }
    });
    products_into(&products)?;
    Some(products.map(|product| product.output))
}

/// Adds the product of `[m, k]` and `[k, n]` to a contiguous `[m, n]` of fp32, which nobody else has, and gives it back.
pub(crate) fn add_product(sum: CubeTensor, left: CubeTensor, right: CubeTensor) -> CubeTensor {
    let dtype = sum.dtype;
    let (left, right, output) = (left, right, sum);
    let product_of = Product { left, right, output, epilogue: Epilogue::Accumulate };
    if has_library() && products_into(std::slice::from_ref(&product_of)).is_some() {
        return product_of.output;
    }
    let Product { left, right, output, .. } = product_of;
    numeric::add(output, product(left, right, dtype))
}

/// Memory for a product. Rows that are not aligned by themselves get a distance that is.
fn output_of(left: &CubeTensor, right: &CubeTensor, dtype: DType) -> CubeTensor {
    let mut shape = left.meta.shape().clone();
    let columns = right.meta.shape().last().copied().unwrap_or(1);
    if let Some(last) = shape.last_mut() {
        *last = columns;
    }
    let new = match (columns * dtype.size()).is_multiple_of(ALIGNMENT) {
        true => empty_device_contiguous_dtype,
        false => empty_device_dtype,
    };
    new(left.client.clone(), left.device.clone(), shape, dtype)
}

/// Writes products where they belong, if a library does. None may read what another writes.
pub(crate) fn products_into(products: &[Product]) -> Option<()> {
    libraries().iter().find_map(|library| library.products_into(products))
}

/// Whether a library may make products.
pub(crate) fn has_library() -> bool {
    !libraries().is_empty()
}

fn libraries() -> Vec<Arc<dyn MatrixProducts>> {
    LIBRARIES.read().unwrap_or_else(PoisonError::into_inner).clone()
}
