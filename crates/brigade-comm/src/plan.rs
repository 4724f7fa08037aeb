//! Who sends which part of its buffer to whom, in which order.
//!
//! Every collective is, on each link and in each direction, a sequence of segments of the buffer. Both ends of a
//! link compute the same sequence from the call alone. The buffer is cut into one slice per rank: equal slices where
//! the caller owns the layout, slices that differ by at most one element in all-reduce and broadcast.
//!
//! | collective | rank r sends to peer p | what r does with what p sends |
//! |---|---|---|
//! | all-reduce | slice p to be reduced, then slice r as it is reduced | reduces into slice r, then fills slice p |
//! | all-reduce of two | everything to be reduced | reduces everything |
//! | reduce-scatter | slice p | reduces into slice r |
//! | all-gather | slice r | fills slice p |
//! | gather | slice r, if p is the root | fills slice p, if r is the root |
//! | broadcast | the root: slice p, then slice r; others: slice r as it arrives, unless p is the root | fills |
//! | all-to-all | slice p | fills slice p, after having sent it |
//!
//! An all-reduce alternates its two kinds of segments in pieces of [`PIECE`] bytes, [`LAG`] pieces apart, so that a
//! piece of the buffer is still in the cache when its result comes back. It cannot deadlock: a piece waits only for
//! pieces with lower numbers, and each link blocks on its own alone.

use std::ops::Range;

use crate::call::Operation;

/// Bytes after which an all-reduce turns from contributions to results. Part of the protocol.
const PIECE: usize = 64 << 10;

/// By how many pieces the results stay behind the contributions. Part of the protocol.
const LAG: usize = 2;

/// A part of the buffer that goes out on a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outbound {
    pub(crate) range: Range<usize>,
    /// The segment may leave only as far as this rank's own slice is final: reduced, or received from the root.
    pub(crate) when_final: bool,
}

/// What becomes of a part of a link's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// They fill the range.
    Fill,
    /// They fill the range of this rank's own slice, which makes it final as far as they reach.
    FillOwn,
    /// They fill the range, not before the same range has been sent on the same link.
    FillAfterSending,
    /// They are reduced into the range, together with those of all other peers.
    Reduce,
    /// As `Reduce`, not before the same range has been sent on the same link.
    ReduceAfterSending,
}

/// A part of a link's bytes, and the part of the buffer that it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Inbound {
    pub(crate) range: Range<usize>,
    pub(crate) purpose: Use,
}

/// The segments of one collective on one rank.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    operation: Operation,
    ranks: usize,
    me: usize,
    root: usize,
    elements: usize,
    element_bytes: usize,
}

enum Piece {
    Contribution(usize),
    Result(usize),
}

impl Plan {
    /// `root` is a rank of the group, and 0 where there is none.
    pub(crate) fn new(
        operation: Operation,
        ranks: usize,
        me: usize,
        root: usize,
        elements: usize,
        element_bytes: usize,
    ) -> Self {
        Self { operation, ranks, me, root, elements, element_bytes }
    }

    /// The bytes of rank `rank`'s slice.
    pub(crate) fn slice(&self, rank: usize) -> Range<usize> {
        let (share, rest) = (self.elements / self.ranks, self.elements % self.ranks);
        let start = rank * share + rank.min(rest);
        let length = share + usize::from(rank < rest);
        start * self.element_bytes..(start + length) * self.element_bytes
    }

    /// The offset up to which the own slice is final from the start.
    pub(crate) fn final_at_start(&self) -> usize {
        match self.operation {
            Operation::Broadcast if self.me == self.root => usize::MAX,
            Operation::AllReduce if self.ranks == 2 => 0,
            _ => self.slice(self.me).start,
        }
    }

    /// Segment `index` of what goes to `peer`.
    pub(crate) fn outbound(&self, peer: usize, index: usize) -> Option<Outbound> {
        let open = |range| Some(Outbound { range, when_final: false });
        match (self.operation, index) {
            (Operation::AllReduce, 0) if self.ranks == 2 => open(self.whole()),
            (Operation::AllReduce, _) if self.ranks > 2 => match self.piece(index)? {
                Piece::Contribution(piece) => open(self.cut(peer, piece)),
                Piece::Result(piece) => Some(Outbound { range: self.cut(self.me, piece), when_final: true }),
            },
            (Operation::ReduceScatter | Operation::AllToAll, 0) => open(self.slice(peer)),
            (Operation::AllGather, 0) => open(self.slice(self.me)),
            (Operation::Gather, 0) if peer == self.root => open(self.slice(self.me)),
            (Operation::Broadcast, 0) if self.me == self.root => open(self.slice(peer)),
            (Operation::Broadcast, 1) if self.me == self.root => open(self.slice(self.me)),
            (Operation::Broadcast, 0) if peer != self.root => {
                Some(Outbound { range: self.slice(self.me), when_final: true })
            }
            _ => None,
        }
    }

    /// Segment `index` of what comes from `peer`.
    pub(crate) fn inbound(&self, peer: usize, index: usize) -> Option<Inbound> {
        let inbound = |range, purpose| Some(Inbound { range, purpose });
        match (self.operation, index) {
            (Operation::AllReduce, 0) if self.ranks == 2 => inbound(self.whole(), Use::ReduceAfterSending),
            (Operation::AllReduce, _) if self.ranks > 2 => match self.piece(index)? {
                Piece::Contribution(piece) => inbound(self.cut(self.me, piece), Use::Reduce),
                Piece::Result(piece) => inbound(self.cut(peer, piece), Use::Fill),
            },
            (Operation::ReduceScatter, 0) => inbound(self.slice(self.me), Use::Reduce),
            (Operation::AllToAll, 0) => inbound(self.slice(peer), Use::FillAfterSending),
            (Operation::AllGather, 0) => inbound(self.slice(peer), Use::Fill),
            (Operation::Gather, 0) if self.me == self.root => inbound(self.slice(peer), Use::Fill),
            (Operation::Broadcast, 0) if peer == self.root => inbound(self.slice(self.me), Use::FillOwn),
            (Operation::Broadcast, 1) if peer == self.root => inbound(self.slice(peer), Use::Fill),
            (Operation::Broadcast, 0) if self.me != self.root => inbound(self.slice(peer), Use::Fill),
            _ => None,
        }
    }

    fn whole(&self) -> Range<usize> {
        0..self.elements * self.element_bytes
    }

    fn cut(&self, rank: usize, piece: usize) -> Range<usize> {
        let slice = self.slice(rank);
        let start = (slice.start + piece * PIECE).min(slice.end);
        start..(start + PIECE).min(slice.end)
    }

    /// The order of an all-reduce: contributions 0..LAG, then contribution and result in turn, then the last results.
    fn piece(&self, index: usize) -> Option<Piece> {
        let pieces = self.slice(0).len().div_ceil(PIECE).max(1);
        let lag = LAG.min(pieces);
        let alternating = index.checked_sub(lag).map(|position| (position / 2, position % 2));
        match alternating {
            None => Some(Piece::Contribution(index)),
            Some((pair, 0)) if lag + pair < pieces => Some(Piece::Contribution(lag + pair)),
            Some((pair, 1)) if lag + pair < pieces => Some(Piece::Result(pair)),
            Some(_) => (index < 2 * pieces).then(|| Piece::Result(index - pieces)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLLECTIVES: [Operation; 6] = [
        Operation::AllReduce,
        Operation::ReduceScatter,
        Operation::AllGather,
        Operation::Gather,
        Operation::Broadcast,
        Operation::AllToAll,
    ];

    fn plans(operation: Operation, ranks: usize, root: usize, elements: usize) -> Vec<Plan> {
        (0..ranks).map(|me| Plan::new(operation, ranks, me, root, elements, 4)).collect()
    }

    #[test]
    fn both_ends_of_a_link_expect_the_same_bytes() {
        for operation in COLLECTIVES {
            for ranks in 2..=5 {
                for elements in [0, 1, ranks, 60 * ranks, 100_003 * ranks + 1, 163_840 * ranks] {
                    if elements % ranks != 0
                        && !matches!(operation, Operation::AllReduce | Operation::Broadcast)
                    {
                        continue;
                    }
                    let plans = plans(operation, ranks, ranks - 1, elements);
                    for (from, to) in (0..ranks).flat_map(|f| (0..ranks).map(move |t| (f, t))) {
                        if from == to {
                            continue;
                        }
                        for index in 0.. {
                            let sent = plans[from].outbound(to, index);
                            let expected = plans[to].inbound(from, index);
                            let lengths = (
                                sent.as_ref().map(|sent| sent.range.len()),
                                expected.as_ref().map(|expected| expected.range.len()),
                            );
                            assert_eq!(lengths.0, lengths.1, "{operation} {from} -> {to}, segment {index}");
                            if sent.is_none() {
                                break;
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn an_all_reduce_sends_two_parts_in_n_of_the_buffer() {
        for ranks in 2..=6 {
            let elements = 70_000 * ranks;
            for plan in plans(Operation::AllReduce, ranks, 0, elements) {
                let sent: usize = (0..ranks)
                    .filter(|peer| *peer != plan.me)
                    .flat_map(|peer| (0..).map_while(|index| plan.outbound(peer, index)).collect::<Vec<_>>())
                    .map(|segment| segment.range.len())
                    .sum();
                assert_eq!(sent, 2 * elements * 4 * (ranks - 1) / ranks);
            }
        }
    }

    #[test]
    fn slices_are_a_disjoint_complete_cover() {
        for ranks in 1..=9 {
            for elements in 0..30 {
                let plan = Plan::new(Operation::AllReduce, ranks, 0, 0, elements, 8);
                let mut end = 0;
                for rank in 0..ranks {
                    assert_eq!(plan.slice(rank).start, end);
                    end = plan.slice(rank).end;
                }
                assert_eq!(end, elements * 8);
            }
        }
    }
}
