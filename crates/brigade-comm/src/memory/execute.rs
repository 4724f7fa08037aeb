//! Collectives on buffers that are all in this process.

use std::ops::Range;

use crate::op::call::{Call, OpType};
use crate::op::dtype::ReduceOp;
use crate::op::reduce::reduce;
use crate::op::view::View;

/// Computes a collective's result in the ranks' buffers, which are all of the call's size. `root` is a rank of the group, and
/// 0 where there is none.
pub(super) fn execute(call: &Call, root: usize, buffers: &mut [&mut [u8]]) {
    let ranks = buffers.len();
    let whole = 0..call.bytes as usize;
    let slice = |rank: usize| {
        let bytes = whole.end / ranks;
        rank * bytes..(rank + 1) * bytes
    };
    match call.operation {
        OpType::AllReduce => {
            reduce_into(call, buffers, 0, whole.clone());
            copy_to_all(buffers, 0, whole);
        }
        OpType::ReduceScatter => (0..ranks).for_each(|rank| reduce_into(call, buffers, rank, slice(rank))),
        OpType::AllGather => (0..ranks).for_each(|rank| copy_to_all(buffers, rank, slice(rank))),
        OpType::Broadcast => copy_to_all(buffers, root, whole),
        OpType::Gather => {
            for rank in (0..ranks).filter(|rank| *rank != root) {
                if let Ok([root, own]) = buffers.get_disjoint_mut([root, rank]) {
                    root[slice(rank)].copy_from_slice(&own[slice(rank)]);
                }
            }
        }
        OpType::AllToAll => {
            for (a, b) in (0..ranks).flat_map(|a| (a + 1..ranks).map(move |b| (a, b))) {
                if let Ok([of_a, of_b]) = buffers.get_disjoint_mut([a, b]) {
                    of_a[slice(b)].swap_with_slice(&mut of_b[slice(a)]);
                }
            }
        }
        OpType::Barrier | OpType::Send | OpType::Recv | OpType::RecvMessage => {}
    }
}

/// Reduces a range of all buffers into that of one rank.
fn reduce_into(call: &Call, buffers: &mut [&mut [u8]], rank: usize, range: Range<usize>) {
    let (before, rest) = buffers.split_at_mut(rank);
    let Some((own, after)) = rest.split_first_mut() else { return };
    let others = before.iter().chain(after.iter());
    let others: Vec<View<'_>> = others.map(|other| other[range.clone()].into()).collect();
    let op = call.reduce.unwrap_or(ReduceOp::Sum);
    reduce(call.dtype, op, rank, &mut own[range], &others);
}

/// Copies a range of one rank's buffer to all others.
fn copy_to_all(buffers: &mut [&mut [u8]], rank: usize, range: Range<usize>) {
    let (before, rest) = buffers.split_at_mut(rank);
    let Some((own, after)) = rest.split_first_mut() else { return };
    for other in before.iter_mut().chain(after) {
        other[range.clone()].copy_from_slice(&own[range.clone()]);
    }
}
