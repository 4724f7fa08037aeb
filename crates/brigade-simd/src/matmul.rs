//! Products of matrices, by crate `gemm`, on one thread.

use gemm::Parallelism;

use crate::{Matrix, MatrixMut};

/// What becomes of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Product {
    /// It replaces what was there.
    Write,
    /// It is added to what is there.
    Add,
}

/// `out ← scale · a · b`, or `out ← out + scale · a · b`. Any strides will do; of `out`, rows lie in one piece.
///
/// # Panics
/// If the shapes do not fit.
pub fn matmul(
    a: Matrix<'_, f32>,
    b: Matrix<'_, f32>,
    mut out: MatrixMut<'_, f32>,
    product: Product,
    scale: f32,
) {
    let ([m, k], [inner, n]) = (a.shape(), b.shape());
    assert!(k == inner && out.shape() == [m, n], "{m} × {k} by {inner} × {n} into {:?}", out.shape());
    let ([a_row, a_column], [b_row, b_column]) = (a.strides(), b.strides());
    let out_row = out.row_stride();
    // SAFETY: `Matrix` and `MatrixMut` checked that all elements are in their slices, and elements of `out` are distinct and borrowed mutably.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            out_row as isize,
            product == Product::Add,
            a.values().as_ptr(),
            a_column as isize,
            a_row as isize,
            b.values().as_ptr(),
            b_column as isize,
            b_row as isize,
            1.0,
            scale,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}
