//! The kernel for processors with AVX512-BF16: an instruction multiplies 16 pairs of numbers with others, and adds both products of each pair to a sum.

use std::arch::x86_64::*;
use std::sync::LazyLock;

use half::bf16;
use pulp::Arch;

use super::kernel::{Cell, Kernel, Rows, of_shape};
use super::pack::{Slivers, clear_rest, pack, pack_rows};
use crate::Matrix;
use crate::arch::arch;

/// Its existence says that the processor has the instructions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx512Bf16(());

const LANES: usize = 16;

impl Avx512Bf16 {
    pub fn detect() -> Option<Self> {
        static HAS: LazyLock<bool> = LazyLock::new(|| {
            is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512bf16")
        });
        (*HAS && matches!(arch(), Arch::V4(_))).then_some(Self(()))
    }
}

impl Kernel<bf16> for Avx512Bf16 {
    const NUMBERS: usize = 2;
    const IN_PLACE: bool = true;
    const ROWS: usize = 6;

    fn lanes(self) -> usize {
        LANES
    }

    /// With 6 rows 24 of the 32 registers are sums: faster here than 8 × 3, 12 × 2 and 14 × 2, and powers of two are multiples of it.
    fn registers(self) -> usize {
        4
    }

    fn pack(self, matrix: Matrix<'_, bf16>, slivers: Slivers, packed: &mut [Cell]) {
        // SAFETY: the processor has the instructions.
        unsafe { pack_pairs(matrix, slivers, packed) }
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
        assert!(right.len() == cells * registers * LANES && sums.len() == rows * registers * LANES);
        let (right, sums) = (right.as_ptr(), sums.as_mut_ptr());
        macro_rules! call {
            ($rows:literal, $registers:literal) => {
                // SAFETY: the processor has the instructions, the caller vouches for `left`, and the others have the lengths that were asserted.
                unsafe { tile::<$rows, $registers>(cells, left, right, sums, add) }
            };
        }
        of_shape!(shape, call);
    }
}

/// # Safety
/// `left` has `R` rows of `cells` cells, `right` `cells` times `C` registers, and `sums` `R · C` registers.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn tile<const R: usize, const C: usize>(
    cells: usize,
    left: Rows,
    right: *const Cell,
    sums: *mut f32,
    add: bool,
) {
    let mut total = [[_mm512_setzero_ps(); C]; R];
    // SAFETY: all places are within what the caller says.
    unsafe {
        if add {
            for (row, total) in total.iter_mut().enumerate() {
                for (column, total) in total.iter_mut().enumerate() {
                    *total = _mm512_loadu_ps(sums.add((row * C + column) * LANES));
                }
            }
        }
        let (mut from, mut right) = (left.from, right);
        for _ in 0..cells {
            let mut columns = [pairs(_mm512_setzero_si512()); C];
            for (column, to) in columns.iter_mut().enumerate() {
                *to = pairs(_mm512_loadu_si512(right.add(column * LANES).cast()));
            }
            for (row, total) in total.iter_mut().enumerate() {
                let pair = from.add(row * left.row).cast::<i32>().read_unaligned();
                let pair = pairs(_mm512_set1_epi32(pair));
                for (total, column) in total.iter_mut().zip(columns) {
                    *total = _mm512_dpbf16_ps(*total, pair, column);
                }
            }
            from = from.wrapping_add(left.cell);
            right = right.add(C * LANES);
        }
        for (row, total) in total.iter().enumerate() {
            for (column, total) in total.iter().enumerate() {
                _mm512_storeu_ps(sums.add((row * C + column) * LANES), *total);
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn pairs(bits: __m512i) -> __m512bh {
    // SAFETY: both are 512 bits, all of which are numbers.
    unsafe { std::mem::transmute(bits) }
}

#[target_feature(enable = "avx512f,avx512bw")]
fn pack_pairs(matrix: Matrix<'_, bf16>, slivers: Slivers, packed: &mut [Cell]) {
    let pair = |[first, second]: [bf16; 2]| u32::from(first.to_bits()) | u32::from(second.to_bits()) << 16;
    let ([_, columns], [stride, next]) = (matrix.shape(), matrix.strides());
    if next != 1 || columns == 0 {
        return pack(matrix, slivers, packed, pair);
    }
    // Blocks of 16 rows and 16 cells in registers, then what is left at both ends.
    for sliver in slivers.all() {
        let packed = &mut packed[slivers.range(&sliver)];
        let matrix = matrix.part([sliver.from, 0], [sliver.rows, columns]);
        let whole = [sliver.rows, columns / 2].map(|length| length - length % LANES);
        for row in (0..whole[0]).step_by(LANES) {
            for cell in (0..whole[1]).step_by(LANES) {
                let block = matrix.part([row, 2 * cell], [LANES, 2 * LANES]);
                let to = &mut packed[cell * sliver.width + row..][..(LANES - 1) * sliver.width + LANES];
                // SAFETY: the last number of `block` is in its slice, and the last cell of the last of 16 rows of `width` is that of `to`.
                unsafe {
                    transpose(
                        block.values().as_ptr().cast(),
                        stride * size_of::<bf16>(),
                        to.as_mut_ptr(),
                        sliver.width,
                    );
                }
            }
        }
        pack_rows(matrix, [0..whole[0], whole[1]..slivers.depth], sliver.width, packed, pair);
        pack_rows(matrix, [whole[0]..sliver.rows, 0..slivers.depth], sliver.width, packed, pair);
        clear_rest(sliver, packed);
    }
}

/// 16 rows of 16 cells to columns.
///
/// # Safety
/// 64 bytes are readable at each of 16 places `stride` bytes apart, and 16 cells writable at each of 16 places `width` cells apart.
#[target_feature(enable = "avx512f")]
unsafe fn transpose(from: *const u8, stride: usize, to: *mut Cell, width: usize) {
    let mut rows = [_mm512_setzero_si512(); LANES];
    for (row, register) in rows.iter_mut().enumerate() {
        // SAFETY: as the caller says.
        *register = unsafe { _mm512_loadu_si512(from.add(row * stride).cast()) };
    }
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
