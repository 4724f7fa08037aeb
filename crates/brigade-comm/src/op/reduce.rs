//! The arithmetic of reductions: pairwise in rank order, as the crate's header states.

use std::cmp::Ordering;

use half::bf16;

use crate::op::dtype::{DType, ReduceOp};
use crate::op::view::View;

/// Elements that are reduced at once; their partial results stay in the first-level cache.
const BLOCK: usize = 256;

/// Levels of partial results: enough for 2^12 ranks.
const LEVELS: usize = 13;

/// Reduces `own` and the peers' contributions into `own`. `peers` are in rank order without this rank, which stands
/// at index `me` among all. All slices have the same length, a multiple of the element size; none needs alignment.
pub(crate) fn reduce(dtype: DType, op: ReduceOp, me: usize, own: &mut [u8], peers: &[View<'_>]) {
    match dtype {
        DType::F32 => reduce_as::<F32>(op, me, own, peers),
        DType::F64 => reduce_as::<F64>(op, me, own, peers),
        DType::Bf16 => reduce_as::<Bf16>(op, me, own, peers),
        DType::F16 => reduce_as::<F16>(op, me, own, peers),
        DType::I64 => reduce_as::<I64>(op, me, own, peers),
        DType::U8 => reduce_as::<U8>(op, me, own, peers),
    }
}

fn reduce_as<N: Number>(op: ReduceOp, me: usize, own: &mut [u8], peers: &[View<'_>]) {
    match op {
        ReduceOp::Sum => dispatch::<N, Sum>(me, own, peers),
        ReduceOp::Max => dispatch::<N, Max>(me, own, peers),
    }
}

/// Runs the widest variant of [`pairwise`] that this processor has. All give the same bits: none reorders or fuses.
fn dispatch<N: Number, C: Combine>(me: usize, own: &mut [u8], peers: &[View<'_>]) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
        fn avx512<N: Number, C: Combine>(me: usize, own: &mut [u8], peers: &[View<'_>]) {
            pairwise::<N, C>(me, own, peers);
        }
        #[target_feature(enable = "avx2")]
        fn avx2<N: Number, C: Combine>(me: usize, own: &mut [u8], peers: &[View<'_>]) {
            pairwise::<N, C>(me, own, peers);
        }
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
        {
            // SAFETY: the features were just detected.
            return unsafe { avx512::<N, C>(me, own, peers) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the feature was just detected.
            return unsafe { avx2::<N, C>(me, own, peers) };
        }
    }
    pairwise::<N, C>(me, own, peers);
}

#[inline(always)]
fn pairwise<N: Number, C: Combine>(me: usize, own: &mut [u8], peers: &[View<'_>]) {
    let own = N::cells_mut(own);
    match (peers, me) {
        ([], _) => {}
        ([peer], 0) => {
            for (own, peer) in own.iter_mut().zip(N::cells(*peer, 0)) {
                *own = N::store(C::combine::<N>(N::load(*own), N::load(peer)));
            }
        }
        ([peer], _) => {
            for (own, peer) in own.iter_mut().zip(N::cells(*peer, 0)) {
                *own = N::store(C::combine::<N>(N::load(peer), N::load(*own)));
            }
        }
        _ => {
            let mut levels = [[N::ZERO; BLOCK]; LEVELS];
            for (index, block) in own.chunks_mut(BLOCK).enumerate() {
                tree::<N, C>(&mut levels, me, block, peers, index * BLOCK);
            }
        }
    }
}

/// Reduces one block. Partial results wait on a stack until their right-hand neighbour is complete: after every
/// pair of ranks, as many merges as the pair's number has trailing one bits, and the rest at the end.
#[inline(always)]
fn tree<N: Number, C: Combine>(
    levels: &mut [[N::Acc; BLOCK]; LEVELS],
    me: usize,
    own: &mut [N::Cell],
    peers: &[View<'_>],
    start: usize,
) {
    let length = own.len();
    let mut depth = 0;
    let ranks = peers.len() + 1;
    for rank in (0..ranks).step_by(2) {
        let cells = |rank: usize| match rank.cmp(&me) {
            Ordering::Less => N::cells(peers[rank], start),
            Ordering::Equal => N::cells(N::view(own), 0),
            Ordering::Greater => N::cells(peers[rank - 1], start),
        };
        let sum = &mut levels[depth][..length];
        if rank + 1 < ranks {
            for ((sum, left), right) in sum.iter_mut().zip(cells(rank)).zip(cells(rank + 1)) {
                *sum = C::combine::<N>(N::load(left), N::load(right));
            }
        } else {
            for (sum, left) in sum.iter_mut().zip(cells(rank)) {
                *sum = N::load(left);
            }
        }
        depth += 1;
        for _ in 0..(rank / 2).trailing_ones() {
            merge::<N, C>(levels, &mut depth, length);
        }
    }
    while depth > 1 {
        merge::<N, C>(levels, &mut depth, length);
    }
    for (own, sum) in own.iter_mut().zip(&levels[0][..length]) {
        *own = N::store(*sum);
    }
}

#[inline(always)]
fn merge<N: Number, C: Combine>(levels: &mut [[N::Acc; BLOCK]], depth: &mut usize, length: usize) {
    *depth -= 1;
    let (lower, upper) = levels.split_at_mut(*depth);
    for (left, right) in lower[*depth - 1][..length].iter_mut().zip(&upper[0][..length]) {
        *left = C::combine::<N>(*left, *right);
    }
}

/// A type of element: its bytes in a buffer and the value that it is reduced as.
trait Number {
    type Cell: Copy;
    type Acc: Copy;
    const ZERO: Self::Acc;
    fn cells<'a>(view: View<'a>, from: usize) -> impl Iterator<Item = Self::Cell> + use<'a, Self>;
    fn view(cells: &[Self::Cell]) -> View<'_>;
    fn cells_mut(bytes: &mut [u8]) -> &mut [Self::Cell];
    fn load(cell: Self::Cell) -> Self::Acc;
    fn store(value: Self::Acc) -> Self::Cell;
    fn sum(left: Self::Acc, right: Self::Acc) -> Self::Acc;
    fn max(left: Self::Acc, right: Self::Acc) -> Self::Acc;
}

trait Combine {
    fn combine<N: Number>(left: N::Acc, right: N::Acc) -> N::Acc;
}

struct Sum;
struct Max;

impl Combine for Sum {
    #[inline(always)]
    fn combine<N: Number>(left: N::Acc, right: N::Acc) -> N::Acc {
        N::sum(left, right)
    }
}

impl Combine for Max {
    #[inline(always)]
    fn combine<N: Number>(left: N::Acc, right: N::Acc) -> N::Acc {
        N::max(left, right)
    }
}

macro_rules! number {
    ($name:ident, $bytes:literal, $acc:ty, $zero:expr,
     load $load:expr, store $store:expr, sum $sum:expr, max $max:expr) => {
        struct $name;
        impl Number for $name {
            type Cell = [u8; $bytes];
            type Acc = $acc;
            const ZERO: $acc = $zero;
            #[inline(always)]
            fn cells<'a>(view: View<'a>, from: usize) -> impl Iterator<Item = Self::Cell> + use<'a> {
                view.cells(from)
            }
            #[inline(always)]
            fn view(cells: &[Self::Cell]) -> View<'_> {
                cells.as_flattened().into()
            }
            #[inline(always)]
            fn cells_mut(bytes: &mut [u8]) -> &mut [Self::Cell] {
                bytes.as_chunks_mut().0
            }
            #[inline(always)]
            fn load(cell: Self::Cell) -> $acc {
                ($load)(cell)
            }
            #[inline(always)]
            fn store(value: $acc) -> Self::Cell {
                ($store)(value)
            }
            #[inline(always)]
            fn sum(left: $acc, right: $acc) -> $acc {
                ($sum)(left, right)
            }
            #[inline(always)]
            fn max(left: $acc, right: $acc) -> $acc {
                ($max)(left, right)
            }
        }
    };
}

number!(F32, 4, f32, 0.0,
    load f32::from_ne_bytes, store f32::to_ne_bytes,
    sum |l: f32, r: f32| l + r, max |l: f32, r: f32| if l.is_nan() | (l > r) { l } else { r });
number!(F64, 8, f64, 0.0,
    load f64::from_ne_bytes, store f64::to_ne_bytes,
    sum |l: f64, r: f64| l + r, max |l: f64, r: f64| if l.is_nan() | (l > r) { l } else { r });
number!(Bf16, 2, f32, 0.0,
    load |cell| bf16::from_ne_bytes(cell).to_f32(), store |value| bf16::from_f32(value).to_ne_bytes(),
    sum |l: f32, r: f32| l + r, max |l: f32, r: f32| if l.is_nan() | (l > r) { l } else { r });
number!(F16, 2, f32, 0.0,
    load |cell| widen_f16(u16::from_ne_bytes(cell)), store |value| narrow_f16(value).to_ne_bytes(),
    sum |l: f32, r: f32| l + r, max |l: f32, r: f32| if l.is_nan() | (l > r) { l } else { r });
number!(I64, 8, i64, 0,
    load i64::from_ne_bytes, store i64::to_ne_bytes,
    sum |l: i64, r: i64| l.wrapping_add(r), max |l: i64, r: i64| l.max(r));
number!(U8, 1, u8, 0,
    load |cell: [u8; 1]| cell[0], store |value: u8| [value],
    sum |l: u8, r: u8| l.wrapping_add(r), max |l: u8, r: u8| l.max(r));

/// Binary16 to binary32 without branches or calls, so that loops over it vectorize. `half` asks for every value what the
/// processor can do, which takes seven times as long, and its conversions of slices want aligned buffers of their own; a test
/// holds the two equal. Shifting exponent and fraction into place leaves the exponent too small by the difference of the
/// biases; multiplying by 2^112 corrects that, and makes normal numbers of the subnormal ones on the way.
#[inline(always)]
fn widen_f16(half: u16) -> f32 {
    let shifted = (u32::from(half) & 0x7fff) << 13;
    let magnitude = (f32::from_bits(shifted) * f32::from_bits((127 + 112) << 23)).to_bits();
    let special = if shifted >= 0x7c00 << 13 { 0xff << 23 } else { 0 };
    f32::from_bits(magnitude | special | (u32::from(half) & 0x8000) << 16)
}

/// Binary32 to binary16, rounded to nearest, ties to even; every NaN becomes a quiet one.
#[inline(always)]
fn narrow_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    // A subnormal result: adding 0.5 makes the processor round at the last place of binary16's subnormals.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + odd) >> 13;
    let finite = if magnitude < 113 << 23 { subnormal } else { normal };
    let special = if magnitude > 0xff << 23 { 0x7e00 } else { 0x7c00 };
    let half = if magnitude >= (127 + 16) << 23 { special } else { finite };
    half as u16 | (bits >> 16) as u16 & 0x8000
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn f16_conversions_agree_with_the_half_crate() {
        for bits in 0..=u16::MAX {
            let (expected, actual) = (f16::from_bits(bits).to_f32(), widen_f16(bits));
            assert!(
                expected.to_bits() == actual.to_bits() || expected.is_nan() && actual.is_nan(),
                "{bits:#x}"
            );
        }
        for bits in (0..=u32::MAX).step_by(1009) {
            let value = f32::from_bits(bits);
            let (expected, actual) = (f16::from_f32(value), f16::from_bits(narrow_f16(value)));
            assert!(
                expected.to_bits() == actual.to_bits() || expected.is_nan() && actual.is_nan(),
                "{value:e}"
            );
        }
        for half in (0..0x7c00u16).step_by(7) {
            let (low, high) = (widen_f16(half), widen_f16(half + 1));
            let tie = (low + high) / 2.0;
            for value in [tie, f32::from_bits(tie.to_bits() + 1), f32::from_bits(tie.to_bits() - 1)] {
                assert_eq!(f16::from_f32(value).to_bits(), narrow_f16(value), "{value:e}");
            }
        }
    }

    fn strided(mut values: Vec<f32>) -> f32 {
        let mut stride = 1;
        while stride < values.len() {
            for i in (0..values.len() - stride).step_by(2 * stride) {
                values[i] += values[i + stride];
            }
            stride *= 2;
        }
        values[0]
    }

    #[test]
    fn sums_are_pairwise_for_any_number_of_ranks_and_any_position() {
        let value = |rank: usize, i: usize| ((rank * 7919 + i * 104_729) % 1013) as f32 * 0.1 + 1e-3;
        let length = BLOCK + 17;
        for ranks in 1..=19 {
            let expected: Vec<f32> =
                (0..length).map(|i| strided((0..ranks).map(|rank| value(rank, i)).collect())).collect();
            for me in 0..ranks {
                let contribution = |rank| -> Vec<u8> {
                    (0..length).flat_map(|i| value(rank, i).to_ne_bytes()).collect::<Vec<u8>>()
                };
                let mut own = contribution(me);
                let peers: Vec<Vec<u8>> = (0..ranks).filter(|rank| *rank != me).map(contribution).collect();
                let peers: Vec<View<'_>> = peers.iter().map(|peer| peer.as_slice().into()).collect();
                reduce(DType::F32, ReduceOp::Sum, me, &mut own, &peers);
                let actual: Vec<f32> =
                    own.as_chunks().0.iter().map(|cell| f32::from_ne_bytes(*cell)).collect();
                assert_eq!(actual, expected, "{ranks} ranks, rank {me}");
            }
        }
    }

    #[test]
    fn half_types_round_once() {
        // In bf16, 256 + 1 rounds back to 256; in f32 the ones survive until 256 + 1 + 1 + 1 + 1 is rounded.
        let cells = [256.0, 1.0, 1.0, 1.0, 1.0].map(|x| bf16::from_f32(x).to_ne_bytes());
        let mut own = cells[0];
        let peers: Vec<View<'_>> = cells[1..].iter().map(|cell| cell[..].into()).collect();
        reduce(DType::Bf16, ReduceOp::Sum, 0, &mut own, &peers);
        assert_eq!(bf16::from_ne_bytes(own).to_f32(), 260.0);
    }

    #[test]
    fn max_propagates_nan_from_any_rank() {
        for nan in 0..3 {
            let cells = [0, 1, 2].map(|rank| if rank == nan { f64::NAN } else { rank as f64 }.to_ne_bytes());
            let mut own = cells[1];
            reduce(DType::F64, ReduceOp::Max, 1, &mut own, &[cells[0][..].into(), cells[2][..].into()]);
            assert!(f64::from_ne_bytes(own).is_nan());
        }
    }
}
