//! What a collective does, one after the other.

use std::collections::VecDeque;
use std::ops::Range;

use brigade_comm::{Call, OpType};

use crate::library::MAX_COUNT;
use crate::order::Order;

/// The most bytes of a buffer that are reduced at once: their copies from other ranks take as much memory.
const PIECE: usize = 8 << 20;

/// Up to this many bytes of all ranks together, everybody gets everything and adds on its own: one round of messages instead of two.
const SMALL: usize = 64 << 10;

/// A step. All ranks make the same ones; ranges are of the buffer, or of each rank's slice of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Compares the ranks' calls: by a digest of each, and if they differ, in full.
    Agree,
    Compare,
    /// MPI's own reductions.
    EngineAllReduce(Range<usize>),
    EngineReduceScatter,
    /// Gathers a range of all buffers and reduces it.
    GatherAndReduce(Range<usize>),
    /// Reduces this rank's part of a range.
    ReducePart(Range<usize>),
    /// Gathers the parts of a range.
    GatherParts(Range<usize>),
    /// Reduces a range of this rank's slice.
    ReduceSlice(Range<usize>),
    AllGather,
    Gather,
    Broadcast(Range<usize>),
    AllToAll,
}

/// The steps of a call in a group of this many ranks.
pub(crate) fn steps(call: &Call, size: usize, order: Order) -> VecDeque<Step> {
    let bytes = call.bytes as usize;
    let mut steps = VecDeque::from([Step::Agree]);
    if bytes == 0 {
        return steps;
    }
    match call.operation {
        OpType::AllReduce if order.number(call).is_some() => {
            steps.extend(pieces(bytes, MAX_COUNT).map(Step::EngineAllReduce));
        }
        OpType::AllReduce if bytes.saturating_mul(size) <= SMALL => {
            steps.push_back(Step::GatherAndReduce(0..bytes));
        }
        OpType::AllReduce => {
            for piece in pieces(bytes, PIECE) {
                steps.extend([Step::ReducePart(piece.clone()), Step::GatherParts(piece)]);
            }
        }
        OpType::ReduceScatter if order.number(call).is_some() => steps.push_back(Step::EngineReduceScatter),
        OpType::ReduceScatter => {
            let piece = (PIECE / size).next_multiple_of(size_of::<u64>());
            steps.extend(pieces(bytes / size, piece).map(Step::ReduceSlice));
        }
        OpType::AllGather => steps.push_back(Step::AllGather),
        OpType::Gather => steps.push_back(Step::Gather),
        OpType::Broadcast => steps.extend(pieces(bytes, MAX_COUNT).map(Step::Broadcast)),
        OpType::AllToAll => steps.push_back(Step::AllToAll),
        OpType::Barrier | OpType::Send | OpType::Recv | OpType::RecvMessage => {}
    }
    steps
}

fn pieces(bytes: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    (0..bytes).step_by(most).map(move |start| start..bytes.min(start + most))
}

/// The part of a range that a rank reduces: parts differ by at most one element.
pub(crate) fn part(range: &Range<usize>, element: usize, size: usize, rank: usize) -> Range<usize> {
    let elements = range.len() / element;
    let begin = |rank: usize| range.start + element * (elements / size * rank + rank.min(elements % size));
    begin(rank)..begin(rank + 1)
}
