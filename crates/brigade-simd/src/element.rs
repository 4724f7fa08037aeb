//! The types of numbers in memory.

use std::fmt::Debug;
use std::slice;

use half::bf16;
use pulp::Simd;

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::bf16 {}
}

/// A number as stored in memory. Kernels compute in `f32`.
pub trait Element: sealed::Sealed + bytemuck::Pod + Debug + Send + Sync {
    /// Zero.
    const ZERO: Self;

    /// The number, widened without loss.
    fn to_f32(self) -> f32;

    /// The nearest number of this type; of two equally near, the even one.
    fn from_f32(value: f32) -> Self;

    /// A register of the numbers in `from`, at most as many as it has lanes; the other lanes are zero.
    fn load<S: Simd>(simd: S, from: &[Self]) -> S::f32s;

    /// What becomes of `values` when they are stored and loaded.
    fn round<S: Simd>(simd: S, values: S::f32s) -> S::f32s;

    /// Stores as many of `values` as `to` has elements, at most as many as there are lanes, rounded to the nearest even.
    fn store<S: Simd>(simd: S, to: &mut [Self], values: S::f32s);
}

impl Element for f32 {
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &[Self]) -> S::f32s {
        match S::as_simd_f32s(from) {
            ([whole], _) => *whole,
            _ => simd.partial_load_f32s(from),
        }
    }

    #[inline(always)]
    fn round<S: Simd>(_simd: S, values: S::f32s) -> S::f32s {
        values
    }

    #[inline(always)]
    fn store<S: Simd>(simd: S, to: &mut [Self], values: S::f32s) {
        match S::as_mut_simd_f32s(to) {
            ([whole], _) => *whole = values,
            _ => simd.partial_store_f32s(to, values),
        }
    }
}

impl Element for bf16 {
    const ZERO: Self = bf16::ZERO;

    #[inline(always)]
    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        bf16::from_f32(value)
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &[Self]) -> S::f32s {
        let mut bits = simd.splat_u32s(0);
        let lanes: &mut [u32] = bytemuck::cast_slice_mut(slice::from_mut(&mut bits));
        for (lane, number) in lanes.iter_mut().zip(from) {
            *lane = u32::from(number.to_bits()) << 16;
        }
        simd.transmute_f32s_u32s(bits)
    }

    #[inline(always)]
    fn round<S: Simd>(simd: S, values: S::f32s) -> S::f32s {
        let kept = simd.and_u32s(nearest(simd, values), simd.splat_u32s(0xffff_0000));
        simd.transmute_f32s_u32s(kept)
    }

    #[inline(always)]
    fn store<S: Simd>(simd: S, to: &mut [Self], values: S::f32s) {
        let rounded = nearest(simd, values);
        #[cfg(target_arch = "x86_64")]
        if let Some(narrow) = narrow_avx512(simd, rounded)
            && let Some(to) = to.first_chunk_mut()
        {
            *to = narrow;
            return;
        }
        let lanes: &[u32] = bytemuck::cast_slice(slice::from_ref(&rounded));
        for (number, lane) in to.iter_mut().zip(lanes) {
            *number = bf16::from_bits((lane >> 16) as u16);
        }
    }
}

/// Bits whose upper halves are the nearest `bf16` numbers.
#[inline(always)]
fn nearest<S: Simd>(simd: S, values: S::f32s) -> S::u32s {
    let bits = simd.transmute_u32s_f32s(values);
    let odd = simd.and_u32s(simd.wrapping_dyn_shr_u32s(bits, simd.splat_u32s(16)), simd.splat_u32s(1));
    let nearest = simd.add_u32s(bits, simd.add_u32s(odd, simd.splat_u32s(0x7fff)));
    // Not a number stays one, though all of its upper bits may be zero.
    let quiet = simd.or_u32s(bits, simd.splat_u32s(0x0040_0000));
    simd.select_u32s(simd.equal_f32s(values, values), nearest, quiet)
}

/// The upper halves of the lanes by one instruction, for which compilers find dozens.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn narrow_avx512<S: Simd>(simd: S, bits: S::u32s) -> Option<[bf16; 16]> {
    let simd = (&simd as &dyn std::any::Any).downcast_ref::<pulp::x86::V4>()?;
    let bits: [u32; 16] = *bytemuck::cast_slice(slice::from_ref(&bits)).first_chunk()?;
    let shifted = simd.avx512f._mm512_srli_epi32::<16>(pulp::cast(bits));
    Some(pulp::cast(simd.avx512f._mm512_cvtepi32_epi16(shifted)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::dispatch;
    use crate::arch::tests::on_each;

    #[inline(always)]
    fn there_and_back<S: Simd>(simd: S, x: &[f32], out: &mut [bf16]) {
        for (x, out) in x.chunks(S::F32_LANES).zip(out.chunks_mut(S::F32_LANES)) {
            bf16::store(simd, out, f32::load(simd, x));
            let again = bf16::load(simd, out);
            bf16::store(simd, out, again);
        }
    }

    #[test]
    fn rounds_to_the_nearest_even_bf16_as_half_does() {
        let mut x: Vec<f32> = (0..=u32::MAX).step_by(65_521).map(f32::from_bits).collect();
        x.extend([0x3f80_8000, 0x3f81_8000, 0x7f7f_ffff, 0x7f80_0001, 0xff80_0001].map(f32::from_bits));
        let expected: Vec<u16> = x.iter().map(|x| bf16::from_f32(*x).to_bits()).collect();
        on_each(|kind| {
            let mut out = vec![bf16::ZERO; x.len()];
            let (x, to): (&[f32], &mut [bf16]) = (&x, &mut out);
            dispatch!(there_and_back(x: &[f32], to: &mut [bf16]) -> ());
            let bits: Vec<u16> = out.iter().map(|x| x.to_bits()).collect();
            assert_eq!(bits, expected, "{kind:?}");
        });
    }
}
