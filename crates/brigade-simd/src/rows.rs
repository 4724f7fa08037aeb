//! Matrices row by row: a vector added to each row, and the sums of columns.

use pulp::Simd;

use crate::arch::dispatch;
use crate::element::Element;
use crate::slices::for_each_vector;

/// Rows that are added in `f32` before their sum is added to the total.
const BLOCK: usize = 8;

/// Sums of columns, in the order of rows: blocks of rows in `f32`, these in `f64`.
pub(crate) struct ColumnSums {
    block: Vec<f32>,
    total: Vec<f64>,
    rows: usize,
}

impl ColumnSums {
    pub(crate) fn new(width: usize) -> Self {
        Self { block: vec![0.0; width], total: vec![0.0; width], rows: 0 }
    }

    /// Where the next row is to be added.
    #[inline(always)]
    pub(crate) fn block(&mut self) -> &mut [f32] {
        &mut self.block
    }

    /// Says that a row has been added.
    #[inline(always)]
    pub(crate) fn end_row(&mut self) {
        self.rows += 1;
        if self.rows == BLOCK {
            self.end_block();
        }
    }

    #[inline(always)]
    fn end_block(&mut self) {
        for (total, block) in self.total.iter_mut().zip(&mut self.block) {
            *total += f64::from(*block);
            *block = 0.0;
        }
        self.rows = 0;
    }

    /// Adds the sums of all rows to `sums`, rounding once.
    #[inline(always)]
    pub(crate) fn add_to(mut self, sums: &mut [f32]) {
        self.end_block();
        for (sum, total) in sums.iter_mut().zip(&self.total) {
            *sum = (f64::from(*sum) + total) as f32;
        }
    }
}

/// Adds values to the places of a row in [`ColumnSums::block`].
#[inline(always)]
pub(crate) fn accumulate<S: Simd>(simd: S, to: &mut [f32], values: S::f32s) {
    let sum = simd.add_f32s(f32::load(simd, to), values);
    f32::store(simd, to, sum);
}

/// Adds products to the places of a row in [`ColumnSums::block`], with one rounding.
#[inline(always)]
pub(crate) fn accumulate_product<S: Simd>(simd: S, to: &mut [f32], a: S::f32s, b: S::f32s) {
    let sum = simd.mul_add_f32s(a, b, f32::load(simd, to));
    f32::store(simd, to, sum);
}

/// Asserts that `length` elements of the argument `name` are whole rows.
#[inline]
pub(crate) fn check_rows(name: &str, length: usize, width: usize) {
    assert!(
        if width == 0 { length == 0 } else { length.is_multiple_of(width) },
        "`{name}` must be whole rows of {width}, but has {length} elements"
    );
}

/// Asserts that the argument `name` has as many elements as it must.
#[inline]
pub(crate) fn check_length(name: &str, length: usize, expected: usize) {
    assert!(length == expected, "`{name}` must have {expected} elements, but has {length}");
}

/// `out ← x + row`, for each row of `x`, which is as wide as `row`.
///
/// # Panics
/// If `x` is not whole rows, or `out` is not as long.
pub fn add_rows<T: Element>(x: &[T], row: &[T], out: &mut [T]) {
    #[inline(always)]
    fn pass<S: Simd, T: Element>(simd: S, x: &[T], row: &[T], out: &mut [T]) {
        let width = row.len().max(1);
        for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            for_each_vector(
                simd,
                ((x, row), out),
                #[inline(always)]
                |((x, row), out)| {
                    T::store(simd, out, simd.add_f32s(T::load(simd, x), T::load(simd, row)));
                },
            );
        }
    }
    check_rows("x", x.len(), row.len());
    check_length("out", out.len(), x.len());
    dispatch!(pass[T: Element](x: &[T], row: &[T], out: &mut [T]) -> ())
}

/// Adds the sum of each column of `x`, which is as wide as `sums`, to its place in `sums`.
///
/// # Panics
/// If `x` is not whole rows.
pub fn column_sums<T: Element>(x: &[T], sums: &mut [f32]) {
    #[inline(always)]
    fn pass<S: Simd, T: Element>(simd: S, x: &[T], sums: &mut [f32]) {
        let mut columns = ColumnSums::new(sums.len());
        for x in x.chunks_exact(sums.len().max(1)) {
            for_each_vector(
                simd,
                (x, columns.block()),
                #[inline(always)]
                |(x, block)| accumulate(simd, block, T::load(simd, x)),
            );
            columns.end_row();
        }
        columns.add_to(sums);
    }
    check_rows("x", x.len(), sums.len());
    dispatch!(pass[T: Element](x: &[T], sums: &mut [f32]) -> ())
}

/// `x ← factor · x`.
pub fn multiply<T: Element>(x: &mut [T], factor: f32) {
    #[inline(always)]
    fn pass<S: Simd, T: Element>(simd: S, x: &mut [T], factor: f32) {
        let factor = simd.splat_f32s(factor);
        for_each_vector(
            simd,
            x,
            #[inline(always)]
            |x| {
                let product = simd.mul_f32s(T::load(simd, x), factor);
                T::store(simd, x, product);
            },
        );
    }
    dispatch!(pass[T: Element](x: &mut [T], factor: f32) -> ())
}
