//! A product of matrices as cuBLAS takes it.
//!
//! cuBLAS's matrices are column-major. A row-major matrix is the transpose of a column-major one in the same memory, so the product `C = A · B` of row-major matrices is asked for
//! as `Cᵀ = Bᵀ · Aᵀ`.

/// The type of a matrix's numbers. Products are added up in fp32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Number {
    F32,
    F16,
    Bf16,
}

/// A batch of matrices in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Operand {
    /// Whether columns rather than rows have their elements side by side.
    pub is_transposed: bool,
    /// Elements from one row (or column) to the next.
    pub leading: usize,
    /// Elements from one matrix to the next; 0 where all are the same.
    pub batch_stride: usize,
}

/// A batch of products `[m, k] · [k, n]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Gemm {
    pub batch: usize,
    pub size: [usize; 3],
    pub left: Operand,
    pub right: Operand,
    pub output: Operand,
    pub input_type: Number,
    pub output_type: Number,
    /// Whether products are added to what is there.
    pub accumulates: bool,
}

impl Operand {
    /// Of matrices of this shape, with these strides, if cuBLAS can read them as they lie. `shape` and `strides` have at least two dimensions.
    pub fn of(shape: &[usize], strides: &[usize]) -> Option<Self> {
        let matrix = shape.len().checked_sub(2)?;
        let [rows, columns] = [shape[matrix], shape[matrix + 1]];
        let [row, column] = [strides[matrix], strides[matrix + 1]];
        // The stride of a dimension of one element means nothing.
        let (is_transposed, leading) = if column == 1 || columns == 1 {
            (false, if rows == 1 { columns } else { row })
        } else if row == 1 || rows == 1 {
            (true, column)
        } else {
            return None;
        };
        let least = if is_transposed { rows } else { columns };
        let batch_stride = batch_stride(&shape[..matrix], &strides[..matrix])?;
        (leading >= least).then_some(Self { is_transposed, leading, batch_stride })
    }
}

/// The distance from one matrix to the next, if it is always the same.
fn batch_stride(shape: &[usize], strides: &[usize]) -> Option<usize> {
    let mut dimensions = shape.iter().zip(strides).filter(|(size, _)| **size != 1).rev();
    let Some((size, stride)) = dimensions.next() else { return Some(0) };
    let mut expected = size * stride;
    for (size, outer) in dimensions {
        if *outer != expected {
            return None;
        }
        expected *= size;
    }
    Some(*stride)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operand(is_transposed: bool, leading: usize, batch_stride: usize) -> Option<Operand> {
        Some(Operand { is_transposed, leading, batch_stride })
    }

    #[test]
    fn matrices_are_read_as_they_lie() {
        assert_eq!(Operand::of(&[5, 7], &[7, 1]), operand(false, 7, 0));
        // A transposed view, and rows that are further apart than they are long.
        assert_eq!(Operand::of(&[7, 5], &[1, 7]), operand(true, 7, 0));
        assert_eq!(Operand::of(&[5, 7], &[8, 1]), operand(false, 8, 0));
        // One row, one column: their strides mean nothing.
        assert_eq!(Operand::of(&[1, 7], &[3, 1]), operand(false, 7, 0));
        assert_eq!(Operand::of(&[5, 1], &[4, 9]), operand(false, 4, 0));
        // Every second column.
        assert_eq!(Operand::of(&[5, 7], &[14, 2]), None);
        // Overlapping rows.
        assert_eq!(Operand::of(&[5, 7], &[3, 1]), None);
    }

    #[test]
    fn batches_have_one_stride() {
        assert_eq!(Operand::of(&[2, 3, 5, 7], &[105, 35, 7, 1]), operand(false, 7, 35));
        assert_eq!(Operand::of(&[1, 3, 7, 5], &[9, 35, 1, 7]), operand(true, 7, 35));
        // All the same matrix.
        assert_eq!(Operand::of(&[4, 5, 7], &[0, 7, 1]), operand(false, 7, 0));
        // Heads within rows: of one sequence they have one stride, of several they have not.
        assert_eq!(Operand::of(&[1, 3, 5, 7], &[105, 7, 21, 1]), operand(false, 21, 7));
        assert_eq!(Operand::of(&[2, 3, 5, 7], &[105, 7, 21, 1]), None);
    }
}
