//! Matrices in slices.

/// A matrix whose elements are anywhere in a slice.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a, T> {
    values: &'a [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// Element (`r`, `c`) is `values[r · row_stride + c · column_stride]`.
    ///
    /// # Panics
    /// If the slice ends before the last element.
    pub fn new(
        values: &'a [T],
        [rows, columns]: [usize; 2],
        [row_stride, column_stride]: [usize; 2],
    ) -> Self {
        check(values.len(), [rows, columns], [row_stride, column_stride]);
        Self { values, rows, columns, row_stride, column_stride }
    }

    /// With its rows one after another.
    ///
    /// # Panics
    /// If the slice has fewer elements.
    pub fn rows_of(values: &'a [T], shape: [usize; 2]) -> Self {
        Self::new(values, shape, [shape[1], 1])
    }

    /// Rows and columns.
    pub fn shape(&self) -> [usize; 2] {
        [self.rows, self.columns]
    }

    /// Elements from one row to the next, and from one column to the next.
    pub fn strides(&self) -> [usize; 2] {
        [self.row_stride, self.column_stride]
    }

    /// The slice that it is in; its first element is the first.
    pub fn values(&self) -> &'a [T] {
        self.values
    }

    /// The rows and columns from some on.
    ///
    /// # Panics
    /// If it has fewer.
    #[must_use]
    pub fn part(self, [row, column]: [usize; 2], [rows, columns]: [usize; 2]) -> Self {
        check_part([row, column], [rows, columns], self.shape());
        let start = (row * self.row_stride + column * self.column_stride).min(self.values.len());
        Self { values: &self.values[start..], rows, columns, ..self }
    }

    /// Columns for rows.
    #[must_use]
    pub fn transposed(self) -> Self {
        Self {
            values: self.values,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }
}

/// A matrix to write, whose rows are in a slice, each contiguous.
#[derive(Debug)]
pub struct MatrixMut<'a, T> {
    values: &'a mut [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
}

impl<'a, T> MatrixMut<'a, T> {
    /// Element (`r`, `c`) is `values[r · row_stride + c]`.
    ///
    /// # Panics
    /// If the slice ends before the last element, or rows overlap.
    pub fn new(values: &'a mut [T], [rows, columns]: [usize; 2], row_stride: usize) -> Self {
        assert!(
            row_stride >= columns || rows < 2,
            "rows of {columns} elements overlap with a stride of {row_stride}"
        );
        check(values.len(), [rows, columns], [row_stride, 1]);
        Self { values, rows, columns, row_stride }
    }

    /// With its rows one after another.
    ///
    /// # Panics
    /// If the slice has fewer elements.
    pub fn rows_of(values: &'a mut [T], shape: [usize; 2]) -> Self {
        Self::new(values, shape, shape[1])
    }

    /// Rows and columns.
    pub fn shape(&self) -> [usize; 2] {
        [self.rows, self.columns]
    }

    /// Elements from one row to the next.
    pub fn row_stride(&self) -> usize {
        self.row_stride
    }

    /// The rows and columns from some on.
    ///
    /// # Panics
    /// If it has fewer.
    pub(crate) fn part(
        &mut self,
        [row, column]: [usize; 2],
        [rows, columns]: [usize; 2],
    ) -> MatrixMut<'_, T> {
        check_part([row, column], [rows, columns], self.shape());
        let start = (row * self.row_stride + column).min(self.values.len());
        MatrixMut { values: &mut self.values[start..], rows, columns, row_stride: self.row_stride }
    }

    /// One of its rows.
    pub(crate) fn row_mut(&mut self, row: usize) -> &mut [T] {
        let start = row * self.row_stride;
        &mut self.values[start..start + self.columns]
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut T {
        self.values.as_mut_ptr()
    }
}

fn check(length: usize, [rows, columns]: [usize; 2], [row_stride, column_stride]: [usize; 2]) {
    if rows > 0 && columns > 0 {
        let along = |count: usize, stride: usize| (count - 1).checked_mul(stride);
        let last = along(rows, row_stride).zip(along(columns, column_stride));
        let last = last.and_then(|(row, column)| row.checked_add(column));
        assert!(
            last.is_some_and(|last| last < length),
            "a matrix of {rows} × {columns} with strides {row_stride} and {column_stride} does not fit into a slice of {length} elements"
        );
    }
}

fn check_part([row, column]: [usize; 2], [rows, columns]: [usize; 2], [all_rows, all_columns]: [usize; 2]) {
    let fits = |from: usize, count: usize, all: usize| from <= all && count <= all - from;
    assert!(
        fits(row, rows, all_rows) && fits(column, columns, all_columns),
        "{rows} × {columns} elements from row {row} and column {column} on are not within a matrix of {all_rows} × {all_columns}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_within_their_matrix() {
        let matrix = Matrix::rows_of(&[0, 1, 2, 3, 4, 5], [2, 3]);
        let part = matrix.part([1, 1], [1, 2]);
        assert_eq!((part.values(), part.shape(), part.strides()), (&[4, 5][..], [1, 2], [3, 1]));
        assert_eq!(matrix.part([2, 3], [0, 0]).values(), [0; 0]);
    }

    #[test]
    #[should_panic(expected = "are not within a matrix of 2 × 3")]
    fn rows_beyond_the_highest_number_are_refused() {
        let _ = Matrix::rows_of(&[0; 6], [2, 3]).part([1, 0], [usize::MAX, 3]);
    }

    #[test]
    #[should_panic(expected = "are not within a matrix of 2 × 3")]
    fn columns_beyond_the_highest_number_are_refused() {
        let _ = Matrix::rows_of(&[0; 6], [2, 3]).part([0, usize::MAX], [2, 2]);
    }

    #[test]
    #[should_panic(expected = "are not within a matrix of 2 × 3")]
    fn what_is_written_is_within_its_matrix() {
        MatrixMut::rows_of(&mut [0; 6], [2, 3]).part([usize::MAX, 0], [2, 3]);
    }

    #[test]
    #[should_panic(
        expected = "a matrix of 2 × 3 with strides 3 and 1 does not fit into a slice of 5 elements"
    )]
    fn a_slice_that_is_too_short_is_refused() {
        Matrix::rows_of(&[0; 5], [2, 3]);
    }
}
