//! Products of matrices, on one thread.
//!
//! Products of `f32` are crate `gemm`'s. Those of `bf16` are our own: blocks of both matrices are packed, and a kernel of the processor multiplies slivers of them
//! with sums in `f32` ([`avx512_bf16`], or [`widening`] where there are no quick instructions for `bf16`).

#[cfg(target_arch = "x86_64")]
mod avx512_bf16;
#[cfg(target_arch = "x86_64")]
mod avx512_pack;
mod blocks;
mod kernel;
mod pack;
#[cfg(test)]
mod tests;
mod widening;

use std::any::TypeId;

use gemm::Parallelism;
use half::bf16;

use crate::element::Element;
use crate::{Matrix, MatrixMut};

/// What becomes of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Product {
    /// It replaces what was there.
    Write,
    /// It is added to what is there.
    Add,
}

/// A type of numbers whose matrices are multiplied.
pub trait Factor: Element {
    #[doc(hidden)]
    fn matmul<O: Element>(
        a: Matrix<'_, Self>,
        b: Matrix<'_, Self>,
        out: MatrixMut<'_, O>,
        product: Product,
        scale: f32,
    );
}

/// `out ← scale · a · b`, or `out ← out + scale · a · b`. Any strides will do; the rows of `out` are
/// contiguous.
///
/// Products and sums are in `f32`, and rounded once when they are stored as another type. Of `bf16`, an element of `out` depends on its row of `a`, its column of `b`, and on
/// how long they are alone: whatever else is multiplied with them, it has the same bits. Of `f32`, `gemm` chooses the order of sums by shapes and strides: the same ones give the same bits, but
/// with more or fewer rows or columns an element may have others. Numbers of `bf16` whose exponent is the lowest (subnormal ones) may count as 0.
///
/// # Panics
/// If the shapes do not fit.
pub fn matmul<T: Factor, O: Element>(
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    out: MatrixMut<'_, O>,
    product: Product,
    scale: f32,
) {
    let ([m, k], [inner, n]) = (a.shape(), b.shape());
    assert!(k == inner && out.shape() == [m, n], "{m} × {k} by {inner} × {n} into {:?}", out.shape());
    T::matmul(a, b, out, product, scale);
}

impl Factor for bf16 {
    fn matmul<O: Element>(
        a: Matrix<'_, Self>,
        b: Matrix<'_, Self>,
        out: MatrixMut<'_, O>,
        product: Product,
        scale: f32,
    ) {
        #[cfg(target_arch = "x86_64")]
        if let Some(kernel) = avx512_bf16::Avx512Bf16::detect().filter(|kernel| kernel.is_quick()) {
            return blocks::multiply(kernel, a, b, out, product, scale);
        }
        blocks::multiply(widening::Widening::detect(), a, b, out, product, scale);
    }
}

impl Factor for f32 {
    fn matmul<O: Element>(
        a: Matrix<'_, Self>,
        b: Matrix<'_, Self>,
        mut out: MatrixMut<'_, O>,
        product: Product,
        scale: f32,
    ) {
        assert_eq!(TypeId::of::<O>(), TypeId::of::<f32>(), "products of f32 are stored as f32");
        let ([m, k], [_, n]) = (a.shape(), b.shape());
        let ([a_row, a_column], [b_row, b_column]) = (a.strides(), b.strides());
        let out_row = out.row_stride();
        // SAFETY: `Matrix` and `MatrixMut` checked that all elements are in their slices, elements of `out` are distinct and borrowed mutably, and
        // they are f32.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                out.as_mut_ptr().cast::<f32>(),
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
}
