//! What kernels read of a tensor.

use brigade_simd::Matrix;
use burn_flex::FlexTensor;

use super::Number;

/// The tensor with its elements one after another, in the order of its dimensions.
pub(crate) fn contiguous(tensor: FlexTensor) -> FlexTensor {
    if tensor.is_contiguous() { tensor } else { tensor.to_contiguous() }
}

/// The tensor, which no dimension runs through backwards.
pub(crate) fn forward_strides(tensor: FlexTensor) -> FlexTensor {
    if tensor.layout().has_positive_strides() { tensor } else { tensor.to_contiguous() }
}

/// Elements of a tensor that is [`contiguous`].
pub(crate) fn values<T: Number>(tensor: &FlexTensor) -> &[T] {
    tensor.as_slice().unwrap_or_else(|| panic!("{tensor:?} is not contiguous"))
}

/// The tensor as rows of its last dimension: how many, and how long.
pub(crate) fn rows(tensor: &FlexTensor) -> [usize; 2] {
    let shape = tensor.layout().shape();
    let width = shape.last().copied().unwrap_or(1);
    [shape[..shape.len().saturating_sub(1)].iter().product(), width]
}

/// A tensor that is [`contiguous`] as rows of its last dimension, or one of two dimensions with [`forward_strides`] as it lies.
pub(crate) fn matrix<T: Number>(tensor: &FlexTensor) -> Matrix<'_, T> {
    let layout = tensor.layout();
    if let ([height, width], [row, column]) = (&layout.shape()[..], layout.strides())
        && let (Ok(row), Ok(column)) = (usize::try_from(*row), usize::try_from(*column))
    {
        let from = &tensor.storage()[layout.start_offset()..];
        return Matrix::new(from, [*height, *width], [row, column]);
    }
    Matrix::rows_of(values(tensor), rows(tensor))
}
