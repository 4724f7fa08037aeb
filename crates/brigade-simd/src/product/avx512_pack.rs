//! Packing on processors with AVX-512, by blocks of 16 × 16 cells in registers.

use std::arch::x86_64::*;

use half::bf16;

use super::kernel::Cell;
use super::pack::{self, Slivers, clear_rest, pack_rows};
use crate::Matrix;

const LANES: usize = 16;

/// [`pack::pack`] for cells of one `bf16`, which is widened, or of two: `cell` makes those that are in no whole block, and must do what [`cells`] does.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn pack<const NUMBERS: usize>(
    matrix: Matrix<'_, bf16>,
    slivers: Slivers,
    packed: &mut [Cell],
    cell: impl Fn([bf16; NUMBERS]) -> Cell + Copy,
) {
    let ([_, columns], [stride, next]) = (matrix.shape(), matrix.strides());
    if next != 1 || columns == 0 || slivers.width < LANES {
        return pack::pack(matrix, slivers, packed, cell);
    }
    // Blocks of 16 rows and 16 cells in registers, then what is left at both ends.
    for sliver in slivers.all() {
        let packed = &mut packed[slivers.range(&sliver)];
        let matrix = matrix.part([sliver.from, 0], [sliver.rows, columns]);
        let whole = [sliver.rows, columns / NUMBERS].map(|length| length - length % LANES);
        for row in (0..whole[0]).step_by(LANES) {
            for cell in (0..whole[1]).step_by(LANES) {
                let block = matrix.part([row, NUMBERS * cell], [LANES, NUMBERS * LANES]);
                let to = &mut packed[cell * sliver.width + row..][..(LANES - 1) * sliver.width + LANES];
                let mut rows = [_mm512_setzero_si512(); LANES];
                for (row, register) in rows.iter_mut().enumerate() {
                    *register = cells::<NUMBERS>(&block.values()[row * stride..][..NUMBERS * LANES]);
                }
                // SAFETY: the last cell of the last of 16 rows of `width` is that of `to`.
                unsafe { transpose(rows, to.as_mut_ptr(), sliver.width) };
            }
        }
        pack_rows(matrix, [0..whole[0], whole[1]..slivers.depth], sliver.width, packed, cell);
        pack_rows(matrix, [whole[0]..sliver.rows, 0..slivers.depth], sliver.width, packed, cell);
        clear_rest(sliver, packed);
    }
}

/// 16 cells of one or two numbers.
#[target_feature(enable = "avx512f")]
fn cells<const NUMBERS: usize>(numbers: &[bf16]) -> __m512i {
    const { assert!(NUMBERS == 1 || NUMBERS == 2) };
    assert!(numbers.len() == NUMBERS * LANES);
    // SAFETY: so many bytes are in the slice.
    unsafe {
        match NUMBERS {
            1 => _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(numbers.as_ptr().cast()))),
            _ => _mm512_loadu_si512(numbers.as_ptr().cast()),
        }
    }
}

/// 16 rows of 16 cells to columns.
///
/// # Safety
/// 16 cells are writable at each of 16 places `width` cells apart.
#[target_feature(enable = "avx512f")]
unsafe fn transpose(rows: [__m512i; LANES], to: *mut Cell, width: usize) {
    // Of each four rows, in every 128 bits, columns of four cells.
    let mut fours = [_mm512_setzero_si512(); LANES];
    for (from, to) in rows.as_chunks::<4>().0.iter().zip(fours.as_chunks_mut::<4>().0) {
        let [a, b, c, d] = *from;
        let (ab_low, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let (cd_low, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        *to = [
            _mm512_unpacklo_epi64(ab_low, cd_low),
            _mm512_unpackhi_epi64(ab_low, cd_low),
            _mm512_unpacklo_epi64(ab_high, cd_high),
            _mm512_unpackhi_epi64(ab_high, cd_high),
        ];
    }
    for column in 0..4 {
        let [a, b, c, d] = [0, 4, 8, 12].map(|four| fours[four + column]);
        // Quarters 0 and 2, and 1 and 3, of two each.
        let (ab_even, ab_odd) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
        let (cd_even, cd_odd) = (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
        let columns = [
            _mm512_shuffle_i32x4::<0x88>(ab_even, cd_even),
            _mm512_shuffle_i32x4::<0x88>(ab_odd, cd_odd),
            _mm512_shuffle_i32x4::<0xdd>(ab_even, cd_even),
            _mm512_shuffle_i32x4::<0xdd>(ab_odd, cd_odd),
        ];
        for (quarter, cells) in columns.into_iter().enumerate() {
            // SAFETY: as the caller says.
            unsafe { _mm512_storeu_si512(to.add((4 * quarter + column) * width).cast(), cells) };
        }
    }
}
