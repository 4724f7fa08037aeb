//! The kernel for processors with AVX512-BF16: an instruction multiplies 16 pairs of numbers with others, and adds both products of each pair to a sum.

use std::arch::x86_64::*;
use std::sync::LazyLock;

use half::bf16;
use pulp::Arch;

use super::avx512_pack;
use super::kernel::{Cell, Kernel, Rows, of_shape};
use super::pack::Slivers;
use crate::Matrix;
use crate::arch::arch;

/// Its existence says that the processor has the instructions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx512Bf16(());

const LANES: usize = 16;

/// Its family and model, which Skylake's and Cascade Lake's servers share.
const COOPER_LAKE: (u32, u32) = (6, 0x55);

impl Avx512Bf16 {
    pub fn detect() -> Option<Self> {
        static HAS: LazyLock<bool> = LazyLock::new(|| {
            is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512bf16")
        });
        (*HAS && matches!(arch(), Arch::V4(_))).then_some(Self(()))
    }

    /// Whether an instruction takes no longer than two multiplications with additions in `f32`, of which it does the work: on AMD's processors and on Intel's Cooper Lake. On Intel's
    /// later ones it does (two and a half on Emerald Rapids), as AMX is what they have for `bf16`.
    pub fn is_quick(self) -> bool {
        static IS_QUICK: LazyLock<bool> = LazyLock::new(|| {
            let (vendor, version) = (__cpuid(0), __cpuid(1).eax);
            let is_intel =
                [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == b"GenuineIntel";
            // Source: Intel's "Software Developer's Manual", volume 2, CPUID, leaves 0 and 1.
            let (family, model) = (version >> 8 & 0xf, version >> 4 & 0xf | version >> 12 & 0xf0);
            !is_intel || (family, model) == COOPER_LAKE
        });
        *IS_QUICK
    }
}

impl Kernel<bf16> for Avx512Bf16 {
    const NUMBERS: usize = 2;
    const IN_PLACE: bool = true;
    const ROWS: usize = 6;
    const DEPTH: usize = 1024;

    fn lanes(self) -> usize {
        LANES
    }

    /// With 6 rows 24 of the 32 registers are sums: faster here than 8 × 3, 12 × 2 and 14 × 2, and powers of two are multiples of it.
    fn registers(self) -> usize {
        4
    }

    fn pack(self, matrix: Matrix<'_, bf16>, slivers: Slivers, packed: &mut [Cell]) {
        #[inline(always)]
        fn pair([first, second]: [bf16; 2]) -> Cell {
            u32::from(first.to_bits()) | u32::from(second.to_bits()) << 16
        }
        // SAFETY: the processor has the instructions.
        unsafe { avx512_pack::pack(matrix, slivers, packed, pair) }
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
