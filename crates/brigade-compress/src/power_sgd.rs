//! PowerSGD (Vogels, Karimireddy and Jaggi, 2019): matrices travel as two thin factors.

use std::ops::Range;
use std::sync::Arc;

use brigade_random::keyed;

use crate::ErrorFeedback;

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

impl Matrix {
    /// A parameter as PyTorch's hook sees it: what has two dimensions or more is a matrix of as many rows as its first.
    pub fn of(start: usize, shape: &[usize]) -> Option<Self> {
        let (rows, rest) = shape.split_first()?;
        (!rest.is_empty()).then(|| Self { start, rows: *rows, columns: rest.iter().product() })
    }

    /// Whether two factors of this many columns have fewer numbers than the matrix.
    fn is_factored(&self, rank: usize) -> bool {
        (self.rows + self.columns) * rank < self.rows * self.columns
    }

    fn range(self) -> Range<usize> {
        self.start..self.start + self.rows * self.columns
    }

    /// The product with a matrix that has as many rows as this one has columns. Each number is a sum in the order of these rows.
    fn times(self, matrix: &[f32], right: &[f32], product: &mut [f32]) {
        let (rights, products) = (right.chunks(LANES * self.columns), product.chunks_mut(LANES * self.rows));
        for (right, product) in rights.zip(products) {
            let lane = |row: usize, lane: usize| right.get(lane * self.columns + row).copied().unwrap_or(0.0);
            let right: Vec<[f32; LANES]> =
                (0..self.columns).map(|row| std::array::from_fn(|of| lane(row, of))).collect();
            let mut put = |row: usize, sums: [f32; LANES]| {
                for (column, sum) in product.chunks_exact_mut(self.rows).zip(sums) {
                    column[row] = sum;
                }
            };
            let (several, rest) = matrix.split_at(self.rows / ROWS * ROWS * self.columns);
            for (number, rows) in several.chunks_exact(ROWS * self.columns).enumerate() {
                let sums = row_sums::<ROWS>(rows, &right);
                sums.into_iter().enumerate().for_each(|(row, sums)| put(number * ROWS + row, sums));
            }
            for (number, row) in rest.chunks_exact(self.columns).enumerate() {
                let [sums] = row_sums(row, &right);
                put(self.rows / ROWS * ROWS + number, sums);
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

/// Columns, and rows, whose sums are made at the same time, so that none waits for the addition before.
const LANES: usize = 4;
const ROWS: usize = 4;

/// The products of some rows with each of the columns that `right` has side by side.
fn row_sums<const N: usize>(rows: &[f32], right: &[[f32; LANES]]) -> [[f32; LANES]; N] {
    let mut sums = [[-0.0; LANES]; N];
    let rows: [&[f32]; N] = std::array::from_fn(|row| &rows[row * right.len()..(row + 1) * right.len()]);
    for (column, right) in right.iter().enumerate() {
        for (sums, row) in sums.iter_mut().zip(rows) {
            sums.iter_mut().zip(right).for_each(|(sum, right)| *sum += row[column] * right);
        }
    }
    sums
}

/// How many numbers PowerSGD all-reduces of a buffer of `count` numbers with these matrices: first the left factors with what is in no
/// matrix that is factored, then the right ones.
pub(crate) fn power_sgd_messages(rank: usize, count: usize, matrices: &[Matrix]) -> [usize; 2] {
    let factored = matrices.iter().filter(|matrix| matrix.is_factored(rank));
    let (rows, columns) =
        factored.fold((0, 0), |(rows, columns), matrix| (rows + matrix.rows, columns + matrix.columns));
    [outside(rank, count, matrices) + rank * rows, rank * columns]
}

/// How many numbers of such a buffer are in no matrix that is factored.
pub(crate) fn outside(rank: usize, count: usize, matrices: &[Matrix]) -> usize {
    let factored = matrices.iter().filter(|matrix| matrix.is_factored(rank));
    count - factored.map(|matrix| matrix.rows * matrix.columns).sum::<usize>()
}

/// Sums of buffers over ranks, with the matrices in them as products of a matrix of `rank` columns and one of `rank` rows. The factors
/// continue from those of the update before (warm start), and what they leave out is added to the next buffer (error feedback).
///
/// ```text
/// left ─ all-reduce ─▶ right ─ all-reduce ─▶ sum
/// ```
///
/// Each is one step of a power iteration, as in PyTorch's `powerSGD_hook`.
#[derive(Debug, Clone)]
pub struct PowerSgd {
    count: usize,
    matrices: Vec<Factored>,
    /// What is not in a matrix.
    rest: Vec<Range<usize>>,
    /// The buffer that is being summed.
    buffer: Vec<f32>,
    /// What factors have left out of this rank's buffer; zero outside of matrices, and none where no matrix is factored.
    pub own: ErrorFeedback,
}

#[derive(Debug, Clone)]
struct Factored {
    place: Matrix,
    /// Draws the right factor.
    seed: u64,
    /// Column by column: `rows` and `columns` numbers each.
    left: Vec<f32>,
    right: Vec<f32>,
    /// The right factor as of the last update.
    kept: Arc<Vec<f32>>,
}

impl PowerSgd {
    /// Whether two factors of this rank make any of these matrices smaller. If not, all of them travel as they are.
    pub fn factors_any(rank: usize, matrices: &[Matrix]) -> bool {
        matrices.iter().any(|matrix| matrix.is_factored(rank))
    }

    /// For buffers of `count` numbers with these matrices, in order. Those that two factors of this rank do not make smaller travel as
    /// they are. `seed` draws the first factors, the same on all ranks.
    ///
    /// # Panics
    /// If the matrices overlap or exceed the buffer, or the rank is 0.
    pub fn new(rank: usize, count: usize, matrices: &[Matrix], seed: u64) -> Self {
        assert!(rank > 0, "PowerSGD of rank 0");
        let (mut factored, mut rest, mut end) = (Vec::new(), Vec::new(), 0);
        for (number, place) in matrices.iter().filter(|matrix| matrix.is_factored(rank)).enumerate() {
            assert!(place.start >= end, "matrices overlap");
            rest.push(end..place.start);
            end = place.range().end;
            let seed = keyed(seed, number as u64);
            let (left, right) = (vec![0.0; place.rows * rank], vec![0.0; place.columns * rank]);
            factored.push(Factored { place: *place, seed, left, kept: Arc::new(right.clone()), right });
        }
        assert!(end <= count, "matrices exceed the buffer");
        rest.push(end..count);
        rest.retain(|range| !range.is_empty());
        let own = if factored.is_empty() { ErrorFeedback::none() } else { ErrorFeedback::zeros(count) };
        Self { count, matrices: factored, rest, buffer: Vec::new(), own }
    }

    /// The right factors as of the last update, with the places of their matrices: column by column, the same on all ranks. Columns of
    /// zeros are drawn when they are needed.
    pub fn factors(&self) -> impl Iterator<Item = (Matrix, &Arc<Vec<f32>>)> {
        self.matrices.iter().map(|matrix| (matrix.place, &matrix.kept))
    }

    /// Replaces the right factors. `found` gives what was kept of a matrix, of whatever rank; what it lacks is drawn.
    pub fn set_factors<'f>(&mut self, found: impl Fn(Matrix) -> &'f [f32]) {
        for Factored { place, right, kept, .. } in &mut self.matrices {
            let found = found(*place);
            right.fill(0.0);
            right.iter_mut().zip(found).for_each(|(right, found)| *right = *found);
            *kept = Arc::new(right.clone());
        }
    }

    /// Bytes of the state carried over from one update to the next.
    pub fn kept_bytes(&self) -> u64 {
        let factors = |matrix: &Factored| matrix.left.len() + 2 * matrix.right.len();
        let factors: usize = self.matrices.iter().map(factors).sum();
        self.own.bytes() + (size_of::<f32>() * factors) as u64
    }

    /// Bytes of a buffer that is being summed, and of its two messages.
    pub fn in_flight_bytes(&self) -> u64 {
        let messages = |matrix: &Factored| matrix.left.len() + matrix.right.len();
        let messages: usize = self.matrices.iter().map(messages).sum();
        let rest: usize = self.rest.iter().map(Range::len).sum();
        (size_of::<f32>() * (self.count + rest + messages)) as u64
    }

    /// Begins the sum of a buffer; gives what is to be summed over the ranks first.
    ///
    /// # Panics
    /// If the buffer has fewer numbers than the count.
    pub fn left(&mut self, mut buffer: Vec<f32>) -> Vec<f32> {
        let errors = self.own.next(0, buffer.len());
        buffer.iter_mut().zip(&*errors).for_each(|(value, error)| *value += error);
        let mut first: Vec<f32> = self.rest.iter().flat_map(|range| buffer[range.clone()].to_vec()).collect();
        for Factored { place, seed, left, right, .. } in &mut self.matrices {
            draw_empty_columns(right, place.columns, *seed);
            orthogonalize(right, place.columns);
            place.times(&buffer[place.range()], right, left);
            first.extend_from_slice(left);
        }
        self.buffer = buffer;
        first
    }

    /// Goes on with the sum of what [`left`](Self::left) gave; gives what is to be summed second, which is empty without matrices.
    ///
    /// # Panics
    /// If that sum has another length.
    pub fn right(&mut self, mut first: &[f32]) -> Vec<f32> {
        let mut take = |count: usize| {
            let (taken, left) = first.split_at(count);
            first = left;
            taken
        };
        self.rest.iter().for_each(|range| self.buffer[range.clone()].copy_from_slice(take(range.len())));
        let mut second = Vec::new();
        for Factored { place, left, right, .. } in &mut self.matrices {
            let sum = take(left.len());
            left.copy_from_slice(sum);
            orthogonalize(left, place.rows);
            place.transposed_times(&self.buffer[place.range()], left, right);
            second.extend_from_slice(right);
        }
        second
    }

    /// The sum of the buffers of this many ranks, from the sum of what [`right`](Self::right) gave: the same on all ranks.
    ///
    /// # Panics
    /// If that sum has another length.
    pub fn sum(&mut self, mut second: &[f32], ranks: usize) -> Vec<f32> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let errors = self.own.next(0, buffer.len());
        for Factored { place, left, right, .. } in &mut self.matrices {
            let (sum, others) = second.split_at(right.len());
            second = others;
            right.copy_from_slice(sum);
            let mut sums = vec![0.0; place.columns];
            let rows = buffer[place.range()].chunks_exact_mut(place.columns);
            let errors = errors[place.range()].chunks_exact_mut(place.columns);
            for (row, (values, errors)) in rows.zip(errors).enumerate() {
                sums.fill(-0.0);
                for (left, right) in left.chunks_exact(place.rows).zip(right.chunks_exact(place.columns)) {
                    sums.iter_mut().zip(right).for_each(|(sum, right)| *sum += left[row] * right);
                }
                for ((value, error), sum) in values.iter_mut().zip(errors).zip(&sums) {
                    let rest = *value - sum / ranks as f32;
                    *error = if rest.is_finite() { rest } else { 0.0 };
                    *value = *sum;
                }
            }
        }
        // What is in no matrix has been sent whole, with what was left out of it by another method.
        if !errors.is_empty() {
            self.rest.iter().for_each(|range| errors[range.clone()].fill(0.0));
        }
        buffer
    }

    /// Whether a sum has begun and not ended.
    pub fn is_busy(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Says whether the sums since the last update made one. If not, they have not been.
    pub fn commit(&mut self, updates: bool) {
        self.buffer.clear();
        self.own.commit(updates);
        // Where nothing is factored, what an earlier method left out has been added to one update.
        if updates && self.matrices.is_empty() {
            self.own = ErrorFeedback::none();
        }
        for Factored { right, kept, .. } in &mut self.matrices {
            match updates {
                true => *kept = Arc::new(right.clone()),
                false => right.copy_from_slice(kept),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_has_the_bits_of_one_sum_after_the_other() {
        let numbers =
            |count: usize, seed: u64| -> Vec<f32> { (0..count as u64).map(|i| normal(seed, i)).collect() };
        for (rows, columns, rank) in [(1, 7, 1), (4, 33, 4), (13, 20, 3), (22, 9, 6), (8, 1, 4)] {
            let (matrix, right) = (numbers(rows * columns, 1), numbers(columns * rank, 2));
            let mut product = vec![f32::NAN; rows * rank];
            Matrix { start: 0, rows, columns }.times(&matrix, &right, &mut product);
            for (number, product) in product.iter().enumerate() {
                let (row, right) = (
                    &matrix[number % rows * columns..][..columns],
                    &right[number / rows * columns..][..columns],
                );
                let sum: f32 = row.iter().zip(right).map(|(a, b)| a * b).sum();
                assert_eq!(product.to_bits(), sum.to_bits(), "{rows} x {columns}, {rank}");
            }
        }
    }
}
