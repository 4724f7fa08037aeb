//! The kernel for other processors: numbers are widened to `f32` when they are packed.

use half::bf16;
#[cfg(target_arch = "x86_64")]
use pulp::Arch;
use pulp::Simd;

#[cfg(target_arch = "x86_64")]
use super::avx512_pack;
use super::kernel::{Cell, Kernel, Rows, of_shape};
use super::pack::{Slivers, pack};
use crate::Matrix;
#[cfg(target_arch = "x86_64")]
use crate::arch::arch;
use crate::arch::dispatch;

#[derive(Debug, Clone, Copy)]
pub(super) struct Widening {
    lanes: usize,
}

impl Widening {
    pub fn detect() -> Self {
        #[inline(always)]
        fn lanes<S: Simd>(_simd: S) -> usize {
            S::F32_LANES
        }
        Self { lanes: dispatch!(lanes() -> usize) }
    }
}

impl Kernel<bf16> for Widening {
    const NUMBERS: usize = 1;
    const IN_PLACE: bool = false;
    const ROWS: usize = 6;
    const DEPTH: usize = 384;

    fn lanes(self) -> usize {
        self.lanes
    }

    fn registers(self) -> usize {
        // AVX2 has 16 registers, too few for 24 sums; others have 32.
        if self.lanes == 8 { 2 } else { 4 }
    }

    fn pack(self, matrix: Matrix<'_, bf16>, slivers: Slivers, packed: &mut [Cell]) {
        #[inline(always)]
        fn widened([number]: [bf16; 1]) -> Cell {
            u32::from(number.to_bits()) << 16
        }
        #[inline(always)]
        fn widen<S: Simd>(_simd: S, matrix: Matrix<'_, bf16>, slivers: Slivers, packed: &mut [Cell]) {
            pack(matrix, slivers, packed, widened);
        }
        #[cfg(target_arch = "x86_64")]
        if matches!(arch(), Arch::V4(_)) {
            // SAFETY: the processor has the instructions.
            return unsafe { avx512_pack::pack(matrix, slivers, packed, widened) };
        }
        dispatch!(widen(matrix: Matrix<'_, bf16>, slivers: Slivers, packed: &mut [Cell]) -> ());
    }

    unsafe fn multiply(
        self,
        shape: [usize; 2],
        cells: usize,
        left: Rows,
        right: &[Cell],
        sums: &mut [f32],
        add: bool,
    ) {
        let [rows, registers] = shape;
        assert!(right.len() == cells * registers * self.lanes && sums.len() == rows * registers * self.lanes);
        #[inline(always)]
        fn of_any_shape<S: Simd>(
            simd: S,
            shape: [usize; 2],
            left: Rows,
            right: &[Cell],
            (sums, add): (&mut [f32], bool),
        ) {
            macro_rules! call {
                ($rows:literal, $registers:literal) => {
                    // SAFETY: the caller vouches for `left`, of as many cells as `right`.
                    unsafe { tile::<S, $rows, $registers>(simd, left, right, sums, add) }
                };
            }
            of_shape!(shape, call);
        }
        let sums: Sums<'_> = (sums, add);
        dispatch!(of_any_shape(shape: [usize; 2], left: Rows, right: &[Cell], sums: Sums<'_>) -> ());
    }
}

/// And whether they are added to.
type Sums<'a> = (&'a mut [f32], bool);

/// # Safety
/// `left` has `R` rows of as many cells as `right` has times `C` registers.
#[inline(always)]
unsafe fn tile<S: Simd, const R: usize, const C: usize>(
    simd: S,
    left: Rows,
    right: &[Cell],
    sums: &mut [f32],
    add: bool,
) {
    let mut total = [[simd.splat_f32s(0.0); C]; R];
    let sums = S::as_mut_simd_f32s(sums).0.as_chunks_mut::<C>().0;
    if add {
        total.iter_mut().zip(&*sums).for_each(|(total, sums)| *total = *sums);
    }
    let right = S::as_simd_f32s(bytemuck::cast_slice(right)).0.as_chunks::<C>().0;
    let mut from = left.from;
    for columns in right {
        for (row, total) in total.iter_mut().enumerate() {
            // SAFETY: as the caller says.
            let number = unsafe { from.add(row * left.row).cast::<f32>().read_unaligned() };
            let number = simd.splat_f32s(number);
            for (total, column) in total.iter_mut().zip(columns) {
                *total = simd.mul_add_e_f32s(number, *column, *total);
            }
        }
        from = from.wrapping_add(left.cell);
    }
    total.iter().zip(sums).for_each(|(total, sums)| *sums = *total);
}
