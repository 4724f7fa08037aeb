//! Matrices to slivers of cells, in the order in which kernels read them.

use std::ops::Range;

use super::kernel::Cell;
use crate::Matrix;
use crate::element::Element;

/// How the rows of a matrix are packed: in slivers of `width` rows, one sliver after another; of a sliver, cell by cell, those of all rows. The last
/// sliver has as many rows as are left, and zeros up to a multiple of `multiple`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slivers {
    pub rows: usize,
    pub width: usize,
    pub multiple: usize,
    /// Cells of a row.
    pub depth: usize,
}

/// Some rows of [`Slivers`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Sliver {
    /// The first.
    pub from: usize,
    pub rows: usize,
    /// With the zeros.
    pub width: usize,
}

impl Slivers {
    /// Of all of them.
    pub fn cells(&self) -> usize {
        self.rows.next_multiple_of(self.multiple) * self.depth
    }

    pub fn all(&self) -> impl Iterator<Item = Sliver> {
        self.within(0..self.rows)
    }

    /// Those of some rows, which begin with a sliver.
    pub fn within(&self, rows: Range<usize>) -> impl Iterator<Item = Sliver> {
        let Self { width, multiple, .. } = *self;
        rows.clone().step_by(width).map(move |from| {
            let rows = width.min(rows.end - from);
            Sliver { from, rows, width: rows.next_multiple_of(multiple) }
        })
    }

    /// The cells of a sliver.
    pub fn range(&self, sliver: &Sliver) -> Range<usize> {
        let start = sliver.from * self.depth;
        start..start + sliver.width * self.depth
    }
}

/// Packs a matrix, whose columns are numbers along the sum; `cell` makes a cell of `NUMBERS` of them, where zeros follow the last.
#[inline(always)]
pub(super) fn pack<T: Element, const NUMBERS: usize>(
    matrix: Matrix<'_, T>,
    slivers: Slivers,
    packed: &mut [Cell],
    cell: impl Fn([T; NUMBERS]) -> Cell + Copy,
) {
    if matrix.shape().contains(&0) {
        return packed.fill(0);
    }
    if matrix.strides()[0] == 1 {
        match slivers.width {
            4 => return pack_columns::<T, NUMBERS, 4>(matrix, slivers, packed, cell),
            6 => return pack_columns::<T, NUMBERS, 6>(matrix, slivers, packed, cell),
            16 => return pack_columns::<T, NUMBERS, 16>(matrix, slivers, packed, cell),
            64 => return pack_columns::<T, NUMBERS, 64>(matrix, slivers, packed, cell),
            _ => {}
        }
    }
    if NUMBERS == 1 && slivers.width == 1 && matrix.strides()[1] == 1 {
        for (row, to) in packed.chunks_exact_mut(slivers.depth).enumerate() {
            let numbers = &matrix.values()[row * matrix.strides()[0]..][..slivers.depth];
            make_cells([numbers; NUMBERS], to, cell);
        }
        return;
    }
    for sliver in slivers.all() {
        let packed = &mut packed[slivers.range(&sliver)];
        let matrix = matrix.part([sliver.from, 0], [sliver.rows, matrix.shape()[1]]);
        pack_rows(matrix, [0..sliver.rows, 0..slivers.depth], sliver.width, packed, cell);
        clear_rest(sliver, packed);
    }
}

/// The zeros after the rows of a sliver.
#[inline(always)]
pub(super) fn clear_rest(sliver: Sliver, packed: &mut [Cell]) {
    if sliver.rows < sliver.width {
        packed.chunks_exact_mut(sliver.width).for_each(|cells| cells[sliver.rows..].fill(0));
    }
}

/// Row by row, some rows and cells of a sliver, whose `width` and cells are these.
#[inline(always)]
pub(super) fn pack_rows<T: Element, const NUMBERS: usize>(
    matrix: Matrix<'_, T>,
    [rows, cells]: [Range<usize>; 2],
    width: usize,
    packed: &mut [Cell],
    cell: impl Fn([T; NUMBERS]) -> Cell,
) {
    let ([_, columns], [row_stride, column_stride]) = (matrix.shape(), matrix.strides());
    for row in rows {
        let numbers = &matrix.values()[row * row_stride..];
        let mut to = packed.iter_mut().skip(cells.start * width + row).step_by(width);
        let mut from = cells.start;
        if column_stride == 1 {
            let whole = numbers.get(from * NUMBERS..columns.min(cells.end * NUMBERS)).unwrap_or_default();
            let (whole, _) = whole.as_chunks::<NUMBERS>();
            from += whole.len();
            whole.iter().zip(to.by_ref()).for_each(|(numbers, to)| *to = cell(*numbers));
        }
        for (at, to) in (from..cells.end).zip(to) {
            *to = cell(std::array::from_fn(|index| {
                let column = at * NUMBERS + index;
                if column < columns { numbers[column * column_stride] } else { T::ZERO }
            }));
        }
    }
}

/// Cells of a few narrow slivers, which are made together.
const GROUP: usize = 192;

/// Cells that are made at once.
const LANES: usize = 16;

/// Cell by cell, where the numbers of a column follow one another.
#[inline(always)]
fn pack_columns<T: Element, const NUMBERS: usize, const WIDTH: usize>(
    matrix: Matrix<'_, T>,
    slivers: Slivers,
    packed: &mut [Cell],
    cell: impl Fn([T; NUMBERS]) -> Cell + Copy,
) {
    let ([rows, columns], [_, stride]) = (matrix.shape(), matrix.strides());
    let depth = slivers.depth;
    let zeros = vec![T::ZERO; if columns.is_multiple_of(NUMBERS) { 0 } else { rows }];
    let mut cells = [0; GROUP];
    for at in 0..depth {
        let numbers: [&[T]; NUMBERS] = std::array::from_fn(|index| {
            let column = at * NUMBERS + index;
            if column < columns { &matrix.values()[column * stride..][..rows] } else { &zeros }
        });
        let place = |sliver: usize| (sliver * depth + at) * WIDTH;
        let whole = rows / WIDTH * WIDTH;
        let last_width = (rows - whole).next_multiple_of(slivers.multiple);
        let last = whole * depth + at * last_width;
        if WIDTH >= LANES {
            for sliver in 0..rows / WIDTH {
                let numbers = numbers.map(|numbers| &numbers[sliver * WIDTH..][..WIDTH]);
                make_cells(numbers, &mut packed[place(sliver)..][..WIDTH], cell);
            }
            make_cells(numbers.map(|numbers| &numbers[whole..]), &mut packed[last..], cell);
        } else {
            for from in (0..rows).step_by(GROUP) {
                let count = GROUP.min(rows - from);
                make_cells(numbers.map(|numbers| &numbers[from..][..count]), &mut cells, cell);
                let (slivers, rest) = cells[..count].as_chunks::<WIDTH>();
                for (index, cells) in slivers.iter().enumerate() {
                    packed[place(from / WIDTH + index)..][..WIDTH].copy_from_slice(cells);
                }
                packed[last..][..rest.len()].copy_from_slice(rest);
            }
        }
        packed[last..][rows - whole..last_width].fill(0);
    }
}

/// The first of `cells`, as many as there are numbers in each slice: 16 at a time, which is a register or a few.
#[inline(always)]
fn make_cells<T: Element, const NUMBERS: usize>(
    numbers: [&[T]; NUMBERS],
    cells: &mut [Cell],
    cell: impl Fn([T; NUMBERS]) -> Cell,
) {
    let (cells, last_cells) = cells[..numbers[0].len()].as_chunks_mut::<LANES>();
    let numbers = numbers.map(|numbers| numbers.as_chunks::<LANES>());
    for (index, cells) in cells.iter_mut().enumerate() {
        let numbers = numbers.map(|(numbers, _)| numbers[index]);
        *cells = std::array::from_fn(|lane| cell(numbers.map(|numbers| numbers[lane])));
    }
    for (index, to) in last_cells.iter_mut().enumerate() {
        *to = cell(numbers.map(|(_, numbers)| numbers[index]));
    }
}
