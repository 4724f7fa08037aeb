//! PowerSGD (Vogels, Karimireddy and Jaggi, 2019): matrices travel as two thin factors.

use std::ops::Range;

use brigade_random::keyed;

use crate::Result;
use crate::op::dtype::{DType, ReduceOp};
use crate::process_group::ProcessGroup;

/// A matrix in a flat buffer, row by row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Matrix {
    /// Its first number in the buffer.
    pub start: usize,
    /// Its rows.
    pub rows: usize,
    /// Its columns.
    pub columns: usize,
}

/// Adds buffers over ranks, with the matrices in them as products of a matrix of `rank` columns and one of `rank` rows. The factors
/// go on from those of the call before (warm start), and what they leave out is added to the next buffer (error feedback).
///
/// One call is one step of a power iteration, as in PyTorch's `powerSGD_hook`.
pub struct PowerSgd {
    rank: usize,
    count: usize,
    matrices: Vec<Factored>,
    /// What is not in a matrix.
    rest: Vec<Range<usize>>,
    errors: Vec<f32>,
}

struct Factored {
    place: Matrix,
    /// Draws the right factor.
    seed: u64,
    /// Column by column: `rows` and `columns` numbers each.
    left: Vec<f32>,
    right: Vec<f32>,
}

impl PowerSgd {
    /// For buffers of `count` numbers with these matrices, in order. Those that two factors of this rank do not make smaller travel as
    /// they are. `seed` draws the first factors, the same on all ranks.
    ///
    /// # Panics
    /// If the matrices overlap or exceed the buffer, or the rank is 0.
    pub fn new(rank: usize, count: usize, matrices: &[Matrix], seed: u64) -> Self {
        assert!(rank > 0, "PowerSGD of rank 0");
        let pays = |matrix: &&Matrix| (matrix.rows + matrix.columns) * rank < matrix.rows * matrix.columns;
        let (mut factored, mut rest, mut end) = (Vec::new(), Vec::new(), 0);
        for (number, place) in matrices.iter().filter(pays).enumerate() {
            assert!(place.start >= end, "matrices overlap");
            rest.push(end..place.start);
            end = place.start + place.rows * place.columns;
            let seed = keyed(seed, number as u64);
            let (left, right) = (vec![0.0; place.rows * rank], vec![0.0; place.columns * rank]);
            factored.push(Factored { place: *place, seed, left, right });
        }
        assert!(end <= count, "matrices exceed the buffer");
        rest.push(end..count);
        rest.retain(|range| !range.is_empty());
        Self { rank, count, matrices: factored, rest, errors: vec![0.0; count] }
    }

    /// What factors have left out of this rank's buffer; zero outside of matrices.
    pub fn errors(&mut self) -> &mut [f32] {
        &mut self.errors
    }

    /// The right factors, with which the next call begins, column by column, of one matrix after the other: the same on all ranks.
    /// Columns of zeros are drawn anew.
    pub fn factors(&mut self) -> impl Iterator<Item = &mut [f32]> {
        self.matrices.iter_mut().map(|matrix| &mut *matrix.right)
    }

    /// Numbers that are reduced in a call: both factors of each matrix, and what is in none.
    pub fn reduced(&self) -> usize {
        let rest: usize = self.rest.iter().map(Range::len).sum();
        rest + self.matrices.iter().map(|matrix| matrix.left.len() + matrix.right.len()).sum::<usize>()
    }

    /// Replaces the buffer by the sum over all ranks, the same on all of them.
    ///
    /// # Errors
    /// If an operation of the group fails.
    ///
    /// # Panics
    /// If the buffer has another size.
    pub fn all_reduce(&mut self, group: &dyn ProcessGroup, buffer: &mut [f32]) -> Result<()> {
        assert_eq!(buffer.len(), self.count, "a PowerSGD of another size");
        let (rank, ranks) = (self.rank, group.size() as f32);
        buffer.iter_mut().zip(&self.errors).for_each(|(value, error)| *value += error);
        // The sum of what is in no matrix travels with the left factors.
        let mut first: Vec<f32> = self.rest.iter().flat_map(|range| buffer[range.clone()].to_vec()).collect();
        for Factored { place, seed, left, right } in &mut self.matrices {
            draw_empty_columns(right, place.columns, *seed);
            orthogonalize(right, place.columns);
            place.times(&buffer[place.range()], right, left);
            first.extend_from_slice(left);
        }
        let first = group.all_reduce(first, DType::F32, ReduceOp::Sum).wait()?;
        let (mut first, mut second) = (&first[..], Vec::new());
        let mut take = |count: usize| {
            let (taken, left) = first.split_at(count);
            first = left;
            taken
        };
        self.rest.iter().for_each(|range| buffer[range.clone()].copy_from_slice(take(range.len())));
        for Factored { place, left, right, .. } in &mut self.matrices {
            let sum = take(left.len());
            left.copy_from_slice(sum);
            orthogonalize(left, place.rows);
            place.transposed_times(&buffer[place.range()], left, right);
            second.extend_from_slice(right);
        }
        let second = group.all_reduce(second, DType::F32, ReduceOp::Sum).wait()?;
        let mut second = &second[..];
        for Factored { place, left, right, .. } in &mut self.matrices {
            let (sum, others) = second.split_at(right.len());
            second = others;
            right.copy_from_slice(sum);
            for row in 0..place.rows {
                for column in 0..place.columns {
                    let product = |k: usize| left[k * place.rows + row] * right[k * place.columns + column];
                    let sum: f32 = (0..rank).map(product).sum();
                    let at = place.start + row * place.columns + column;
                    let error = buffer[at] - sum / ranks;
                    self.errors[at] = if error.is_finite() { error } else { 0.0 };
                    buffer[at] = sum;
                }
            }
        }
        Ok(())
    }
}

impl Matrix {
    fn range(self) -> Range<usize> {
        self.start..self.start + self.rows * self.columns
    }

    /// The product with a matrix of so many rows as this one has columns.
    fn times(self, matrix: &[f32], right: &[f32], product: &mut [f32]) {
        for (right, product) in right.chunks_exact(self.columns).zip(product.chunks_exact_mut(self.rows)) {
            for (row, product) in matrix.chunks_exact(self.columns).zip(product) {
                *product = row.iter().zip(right).map(|(a, b)| a * b).sum();
            }
        }
    }

    /// The product of this matrix, transposed, with one of as many rows as it has.
    fn transposed_times(self, matrix: &[f32], left: &[f32], product: &mut [f32]) {
        for (left, product) in left.chunks_exact(self.rows).zip(product.chunks_exact_mut(self.columns)) {
            product.fill(0.0);
            for (row, left) in matrix.chunks_exact(self.columns).zip(left) {
                product.iter_mut().zip(row).for_each(|(product, value)| *product += value * left);
            }
        }
    }
}

/// Replaces columns of zeros, with which a factor would never find anything again, by numbers that belong to their places.
fn draw_empty_columns(columns: &mut [f32], length: usize, seed: u64) {
    for (number, column) in columns.chunks_exact_mut(length).enumerate() {
        if column.iter().all(|value| *value == 0.0) {
            let drawn = (number * length..).map(|place| normal(seed, place as u64));
            column.iter_mut().zip(drawn).for_each(|(value, drawn)| *value = drawn);
        }
    }
}

/// Makes columns of `length` numbers orthogonal and of length one, by Gram and Schmidt's method. One that depends on those before it
/// becomes zero.
fn orthogonalize(columns: &mut [f32], length: usize) {
    let dot =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum() };
    for number in 0..columns.len() / length.max(1) {
        let (before, rest) = columns.split_at_mut(number * length);
        let column = &mut rest[..length];
        let size = dot(column, column).sqrt();
        // Twice, so that what rounding left of the others goes as well.
        for _ in 0..2 {
            for other in before.chunks_exact(length) {
                let share = dot(other, column) as f32;
                column.iter_mut().zip(other).for_each(|(value, other)| *value -= share * other);
            }
        }
        let left = dot(column, column).sqrt();
        let scale = if left <= 1e-6 * size { 0.0 } else { 1.0 / left };
        column.iter_mut().for_each(|value| *value = (f64::from(*value) * scale) as f32);
    }
}

/// A number of the normal distribution, by Box and Muller's method.
fn normal(seed: u64, place: u64) -> f32 {
    let uniform = |number: u64| ((keyed(seed, number) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    let radius = (-2.0 * uniform(2 * place).ln()).sqrt();
    (radius * (std::f64::consts::TAU * uniform(2 * place + 1)).cos()) as f32
}
