//! Pieces of a file's tensors, and where their values are in a parameter.

use std::ops::Range;
use std::path::Path;

use super::error::WeightsError;
use super::mapping::Stored;

/// At most this many rows are copied at once: as many values as share a cache line.
const ROWS: usize = 16;

/// A box of a tensor that is a part of a parameter.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    /// The tensor's name.
    pub tensor: String,
    /// The shape of the whole tensor.
    pub shape: Vec<usize>,
    /// For each of its dimensions, the elements that belong to the parameter.
    pub region: Vec<Range<usize>>,
    /// The place of the first of them among the parameter's values in row-major order.
    first: usize,
    /// For each dimension of the tensor, how far apart neighbours are in the parameter.
    strides: Vec<usize>,
}

/// A number of values, and how far apart they are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stride {
    pub size: usize,
    pub in_tensor: usize,
    pub in_parameter: usize,
}

/// Some rows of a tensor. The values of a row (its columns) are next to each other in the tensor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Panel {
    /// Place of the first value.
    pub in_tensor: usize,
    pub in_parameter: usize,
    pub rows: Stride,
    pub columns: Stride,
}

/// The pieces that make up a parameter of this name and shape: each of its values is in one of them. `path`: of the file.
///
/// # Errors
/// If there is no parameter of this shape.
pub(crate) fn pieces(
    path: &Path,
    name: &str,
    shape: &[usize],
    stored: &Stored,
) -> Result<Vec<Piece>, WeightsError> {
    let whole = Piece {
        tensor: String::new(),
        shape: shape.to_vec(),
        region: shape.iter().map(|size| 0..*size).collect(),
        first: 0,
        strides: row_major(shape),
    };
    let mut pieces = Vec::new();
    match resolve(stored, whole, &mut pieces) {
        Ok(()) => Ok(pieces),
        Err(problem) => Err(WeightsError::Mapping {
            path: path.to_owned(),
            name: name.to_owned(),
            shape: shape.to_vec(),
            stored: Box::new(stored.clone()),
            problem,
        }),
    }
}

/// Adds the pieces that a box of `stored` is made of.
fn resolve(stored: &Stored, mut of: Piece, pieces: &mut Vec<Piece>) -> Result<(), String> {
    let rank = of.shape.len();
    let has = |dimension: usize| match dimension < rank {
        true => Ok(()),
        false => Err(format!("{:?} has no dimension {dimension}", of.shape)),
    };
    match stored {
        Stored::Tensor(name) => pieces.push(Piece { tensor: name.clone(), ..of }),
        Stored::Transposed { transposed } => {
            if rank < 2 {
                return Err(format!("{:?} has fewer than two dimensions to transpose", of.shape));
            }
            of.shape.swap(rank - 2, rank - 1);
            of.region.swap(rank - 2, rank - 1);
            of.strides.swap(rank - 2, rank - 1);
            resolve(transposed, of, pieces)?;
        }
        Stored::Part { part_of, dimension, start, of: all } => {
            has(*dimension)?;
            let size = of.shape[*dimension];
            if start.checked_add(size).is_none_or(|end| end > *all) {
                return Err(format!("{size} elements from {start} go beyond {all}"));
            }
            of.shape[*dimension] = *all;
            let range = &mut of.region[*dimension];
            *range = range.start + start..range.end + start;
            resolve(part_of, of, pieces)?;
        }
        Stored::Concatenated { concatenated, dimension } => {
            has(*dimension)?;
            let sizes = concatenated.iter().map(|(_, size)| size);
            let sum = sizes.fold(0usize, |sum, size| sum.saturating_add(*size));
            if sum != of.shape[*dimension] {
                let size = of.shape[*dimension];
                return Err(format!("the parts have {sum} elements along dimension {dimension}, not {size}"));
            }
            let mut start = 0;
            for (part, size) in concatenated {
                let range = of.region[*dimension].clone();
                let common = range.start.max(start)..range.end.min(start + size);
                if !common.is_empty() {
                    let mut inner = of.clone();
                    inner.first += (common.start - range.start) * of.strides[*dimension];
                    inner.shape[*dimension] = *size;
                    inner.region[*dimension] = common.start - start..common.end - start;
                    resolve(part, inner, pieces)?;
                }
                start += size;
            }
        }
    }
    Ok(())
}

impl Piece {
    /// Whether some values are in both of two pieces of one tensor.
    pub fn overlaps(&self, other: &Self) -> bool {
        let common = |(a, b): (&Range<usize>, &Range<usize>)| a.start.max(b.start) < a.end.min(b.end);
        self.region.iter().zip(&other.region).all(common)
    }

    /// The elements of the tensor from the piece's first to its last.
    pub fn elements(&self) -> Range<usize> {
        if self.region.iter().any(Range::is_empty) {
            return 0..0;
        }
        let place = |of: fn(&Range<usize>) -> usize| {
            self.region
                .iter()
                .zip(row_major(&self.shape))
                .map(|(range, stride)| of(range) * stride)
                .sum::<usize>()
        };
        place(|range| range.start)..place(|range| range.end - 1) + 1
    }

    /// The place of its first value among the parameter's, if its values are next to each other and in the same order in both.
    pub fn first_of_run(&self) -> Option<usize> {
        let strides = self.strides();
        let is_run =
            |stride: &Stride| stride.size == 1 || (stride.in_tensor == 1 && stride.in_parameter == 1);
        (strides.len() == 1 && strides.iter().all(is_run)).then_some(self.first)
    }

    /// Its dimensions, those joined that are one in both the tensor and the parameter.
    fn strides(&self) -> Vec<Stride> {
        let mut strides = vec![Stride { size: 1, in_tensor: 0, in_parameter: 0 }];
        for ((range, in_tensor), in_parameter) in
            self.region.iter().zip(row_major(&self.shape)).zip(&self.strides)
        {
            let inner = Stride { size: range.len(), in_tensor, in_parameter: *in_parameter };
            match strides.last_mut() {
                // Together they are one dimension.
                Some(outer)
                    if outer.size == 1
                        || (outer.in_tensor == inner.size * inner.in_tensor
                            && outer.in_parameter == inner.size * inner.in_parameter) =>
                {
                    *outer = Stride { size: outer.size * inner.size, ..inner };
                }
                _ => strides.push(inner),
            }
        }
        strides
    }

    /// Calls `visit` with panels that have each of the piece's values once, up to its first error.
    pub fn panels<E>(&self, visit: &mut impl FnMut(Panel) -> Result<(), E>) -> Result<(), E> {
        let in_tensor = row_major(&self.shape);
        let first = self.region.iter().zip(&in_tensor).map(|(range, stride)| range.start * stride).sum();
        let mut strides = self.strides();
        let value = Stride { size: 1, in_tensor: 1, in_parameter: 1 };
        if strides.last().is_none_or(|last| last.in_tensor != 1) {
            strides.push(value);
        }
        if strides.len() == 1 {
            strides.insert(0, value);
        }
        walk(&strides, first, self.first, visit)
    }
}

fn walk<E>(
    strides: &[Stride],
    in_tensor: usize,
    in_parameter: usize,
    visit: &mut impl FnMut(Panel) -> Result<(), E>,
) -> Result<(), E> {
    let place = |index: usize, stride: &Stride| {
        (in_tensor + index * stride.in_tensor, in_parameter + index * stride.in_parameter)
    };
    match strides {
        [rows, columns] => (0..rows.size).step_by(ROWS).try_for_each(|row| {
            let (in_tensor, in_parameter) = place(row, rows);
            let rows = Stride { size: ROWS.min(rows.size - row), ..*rows };
            visit(Panel { in_tensor, in_parameter, rows, columns: *columns })
        }),
        [outer, inner @ ..] => (0..outer.size).try_for_each(|index| {
            let (in_tensor, in_parameter) = place(index, outer);
            walk(inner, in_tensor, in_parameter, visit)
        }),
        [] => Ok(()),
    }
}

/// For each dimension, how far apart neighbours are.
fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; shape.len()];
    for dimension in (1..shape.len()).rev() {
        strides[dimension - 1] = strides[dimension].saturating_mul(shape[dimension]);
    }
    strides
}
