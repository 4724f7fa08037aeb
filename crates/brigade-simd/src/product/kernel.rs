//! What a processor's kernel does.

use super::pack::Slivers;
use crate::Matrix;

/// 32 bits of a packed matrix: an `f32`, or two `bf16` that follow one another along the sum.
pub(super) type Cell = u32;

/// Where the cells of some rows of the left matrix are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows {
    /// The first cell of the first row.
    pub from: *const u8,
    /// Bytes from one row to the next.
    pub row: usize,
    /// Bytes from one cell of a row to the next.
    pub cell: usize,
}

/// Multiplies matrices of `T`, sliver by sliver. One for AMX would be another: its tiles take rows of the left matrix whose numbers follow one another, and slivers of the right one
/// as they are packed.
pub(super) trait Kernel<T>: Copy {
    /// Numbers along the sum in a cell.
    const NUMBERS: usize;

    /// Whether rows of the left matrix whose numbers follow one another are read where they lie.
    const IN_PLACE: bool;

    /// Rows in a sliver of the left matrix.
    const ROWS: usize;

    /// Cells that are added to a sum in a register. Then it waits in memory for the next.
    const DEPTH: usize;

    /// Columns in a register.
    fn lanes(self) -> usize;

    /// Registers of columns in a sliver of the right matrix.
    fn registers(self) -> usize;

    /// The rows of `matrix`, whose columns are numbers along the sum, as cells.
    fn pack(self, matrix: Matrix<'_, T>, slivers: Slivers, packed: &mut [Cell]);

    /// The products of `rows` rows with `registers` registers of columns over `cells` cells. `right`: cell by cell, those of all columns. `sums`: in rows, which are added to where `add` says so.
    ///
    /// # Safety
    /// This many cells of this many rows are readable from `left`.
    unsafe fn multiply(
        self,
        shape: [usize; 2],
        cells: usize,
        left: Rows,
        right: &[Cell],
        sums: &mut [f32],
        add: bool,
    );
}

/// Expands to `$call!(rows, registers)` for the shape `$shape`, at most 6 × 4.
macro_rules! of_shape {
    ($shape:expr, $call:ident) => {
        $crate::product::kernel::of_shape!(@ $shape, $call:
            [1 1] [1 2] [1 3] [1 4] [2 1] [2 2] [2 3] [2 4] [3 1] [3 2] [3 3] [3 4]
            [4 1] [4 2] [4 3] [4 4] [5 1] [5 2] [5 3] [5 4] [6 1] [6 2] [6 3] [6 4])
    };
    (@ $shape:expr, $call:ident: $([$rows:literal $registers:literal])*) => {
        match $shape {
            $([$rows, $registers] => $call!($rows, $registers),)*
            shape => panic!("no tile has {shape:?} registers"),
        }
    };
}
pub(super) use of_shape;
