//! A product block by block: all of the left matrix is packed, then some columns of the right one, and slivers of both are multiplied.

use std::cell::RefCell;
use std::ops::Range;

use pulp::Simd;

use super::Product;
use super::kernel::{Cell, Kernel, Rows};
use super::pack::{Sliver, Slivers};
use crate::arch::dispatch;
use crate::element::Element;
use crate::slices::for_each_vector;
use crate::{Matrix, MatrixMut};

/// Cells of the left matrix that are packed at a time, at least a sliver: 4 MiB.
const LEFT: usize = 1 << 20;
/// Of these, cells that are multiplied with all packed columns before the next: 256 KiB, a part of a core's second cache.
const LEFT_AT_ONCE: usize = 1 << 16;
/// Cells of the right matrix that are packed at a time, at least a sliver: 1 MiB.
const RIGHT: usize = 1 << 18;

/// The product, of which `out` has the shape.
pub(super) fn multiply<T: Element, K: Kernel<T>, O: Element>(
    kernel: K,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    mut out: MatrixMut<'_, O>,
    product: Product,
    scale: f32,
) {
    let ([m, k], [_, n]) = (a.shape(), b.shape());
    let depth = k.div_ceil(K::NUMBERS);
    let width = kernel.registers() * kernel.lanes();
    // So many rows or columns have no more cells than that.
    let within = |cells: usize, sliver: usize| (cells / depth.max(1) / sliver).max(1) * sliver;
    let in_place = K::IN_PLACE && a.strides()[1] == 1 && k > 0 && k.is_multiple_of(K::NUMBERS);
    let rows_packed = if in_place { m.max(1) } else { within(LEFT, K::ROWS) };
    let (rows_at_once, columns_packed) = (within(LEFT_AT_ONCE, K::ROWS), within(RIGHT, width));
    SCRATCH.with_borrow_mut(|Scratch { left, right, sums }| {
        for row in (0..m).step_by(rows_packed) {
            let rows = rows_packed.min(m - row);
            let a = a.part([row, 0], [rows, k]);
            let of_left = Slivers { rows, width: K::ROWS, multiple: 1, depth };
            let left = if in_place {
                Left::InPlace(a)
            } else {
                let left = cells(left, of_left.cells());
                // Rows whose numbers follow one another stay rows, which is quicker than to weave them.
                let is_in_rows = K::NUMBERS == 1 && a.strides()[1] == 1;
                let as_packed = if is_in_rows { Slivers { width: 1, ..of_left } } else { of_left };
                kernel.pack(a, as_packed, left);
                if is_in_rows { Left::Rows(left) } else { Left::Packed(left) }
            };
            for column in (0..n).step_by(columns_packed) {
                let columns = columns_packed.min(n - column);
                let of_right = Slivers { rows: columns, width, multiple: kernel.lanes(), depth };
                let right = cells(right, of_right.cells());
                kernel.pack(b.part([0, column], [k, columns]).transposed(), of_right, right);
                for top in (0..rows).step_by(rows_at_once) {
                    let some = top..(top + rows_at_once).min(rows);
                    for columns in of_right.all() {
                        let right = &right[of_right.range(&columns)];
                        let sums = bytemuck::cast_slice_mut(cells(sums, some.len() * columns.width));
                        let to = out.part([row + top, column + columns.from], [some.len(), columns.rows]);
                        let left = (left, of_left, some.clone());
                        multiply_sliver(kernel, left, (right, columns.width), sums, to, product, scale);
                    }
                }
            }
        }
    });
}

/// Some rows of the left matrix.
#[derive(Clone, Copy)]
enum Left<'a, T> {
    InPlace(Matrix<'a, T>),
    /// Cells, row after row.
    Rows(&'a [Cell]),
    /// In slivers.
    Packed(&'a [Cell]),
}

impl<T: Element> Left<'_, T> {
    /// From a cell on, those of a sliver.
    fn rows(&self, slivers: &Slivers, sliver: &Sliver, cell: usize) -> Rows {
        const CELL: usize = size_of::<Cell>();
        match self {
            Self::InPlace(matrix) => {
                let [stride, _] = matrix.strides();
                let from = matrix.values()[sliver.from * stride..].as_ptr().cast::<u8>();
                Rows { from: from.wrapping_add(cell * CELL), row: stride * size_of::<T>(), cell: CELL }
            }
            Self::Rows(cells) => {
                let from = cells[sliver.from * slivers.depth + cell..].as_ptr().cast();
                Rows { from, row: slivers.depth * CELL, cell: CELL }
            }
            Self::Packed(cells) => {
                let from = cells[slivers.range(sliver)][cell * sliver.width..].as_ptr().cast();
                Rows { from, row: CELL, cell: sliver.width * CELL }
            }
        }
    }
}

/// Some rows with one sliver of columns.
fn multiply_sliver<T: Element, K: Kernel<T>, O: Element>(
    kernel: K,
    (left, of_left, some): (Left<'_, T>, Slivers, Range<usize>),
    (right, width): (&[Cell], usize),
    sums: &mut [f32],
    mut out: MatrixMut<'_, O>,
    product: Product,
    scale: f32,
) {
    let depth = of_left.depth;
    // At least once, for a sum of nothing.
    for start in (0..depth.max(1)).step_by(K::DEPTH) {
        let end = (start + K::DEPTH).min(depth);
        let right = &right[start * width..end * width];
        for sliver in of_left.within(some.clone()) {
            let at = sliver.from - some.start;
            let sums = &mut sums[at * width..][..sliver.rows * width];
            let rows = left.rows(&of_left, &sliver, start);
            let shape = [sliver.rows, width / kernel.lanes()];
            // SAFETY: cells up to `depth` of the sliver's rows were packed, or are in the matrix, where `k` is whole cells.
            unsafe { kernel.multiply(shape, end - start, rows, right, sums, start > 0) };
            if end == depth {
                let columns = out.shape()[1];
                store(sums, width, out.part([at, 0], [sliver.rows, columns]), product, scale);
            }
        }
    }
}

/// What is packed, kept by a thread from one product to the next.
#[derive(Default)]
struct Scratch {
    left: Vec<Line>,
    right: Vec<Line>,
    sums: Vec<Line>,
}

/// A line of the cache, where registers of cells begin.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([Cell; 16]);

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// So many of a buffer, which grows if it must.
fn cells(lines: &mut Vec<Line>, count: usize) -> &mut [Cell] {
    let needed = count.div_ceil(16);
    if lines.len() < needed {
        // Never both at once.
        *lines = Vec::new();
        *lines = vec![Line([0; 16]); needed];
    }
    &mut bytemuck::cast_slice_mut(lines)[..count]
}

/// Sums, in rows of `width`, to the output.
fn store<O: Element>(sums: &[f32], width: usize, out: MatrixMut<'_, O>, product: Product, scale: f32) {
    #[inline(always)]
    fn pass<S: Simd, O: Element>(
        simd: S,
        (sums, width): (&[f32], usize),
        mut out: MatrixMut<'_, O>,
        product: Product,
        scale: f32,
    ) {
        let [_, columns] = out.shape();
        let scale = simd.splat_f32s(scale);
        for (row, sums) in sums.chunks_exact(width).enumerate() {
            for_each_vector(
                simd,
                (&sums[..columns], out.row_mut(row)),
                #[inline(always)]
                |(sums, out)| {
                    let sums = f32::load(simd, sums);
                    let value = match product {
                        Product::Write => simd.mul_f32s(sums, scale),
                        Product::Add => simd.mul_add_f32s(sums, scale, O::load(simd, out)),
                    };
                    O::store(simd, out, value);
                },
            );
        }
    }
    let sums: (&[f32], usize) = (sums, width);
    dispatch!(pass[O: Element](
        sums: (&[f32], usize), out: MatrixMut<'_, O>, product: Product, scale: f32
    ) -> ());
}
