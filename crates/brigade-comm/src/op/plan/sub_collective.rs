//! One collective among the ranks of a phase: its slices, and the segments between two ranks.

use std::ops::Range;

use crate::op::call::OpType;
use crate::op::plan::segment::{Inbound, InboundUse, Outbound};

/// Bytes after which an all-reduce turns from contributions to results. Part of the protocol.
const PIECE: usize = 64 << 10;

/// By how many pieces the results stay behind the contributions. Part of the protocol.
const LAG: usize = 2;

/// How the buffer, or a part of it, is cut into one slice per rank.
#[derive(Debug, Clone)]
pub(super) enum Slices {
    /// Elements from byte `start` on, in slices that differ by at most one element.
    Even { start: usize, elements: usize },
    /// Slices of `bytes` bytes that begin `stride` bytes after each other.
    Spread { start: usize, stride: usize, bytes: usize },
}

/// One collective among some ranks, by their places among them.
#[derive(Debug, Clone)]
pub(super) struct SubCollective {
    pub(super) operation: OpType,
    pub(super) ranks: usize,
    pub(super) me: usize,
    pub(super) root: usize,
    pub(super) element_bytes: usize,
    pub(super) slices: Slices,
    /// How often a reduce-scatter or all-gather is repeated, and after how many bytes.
    pub(super) blocks: usize,
    pub(super) block_bytes: usize,
}

enum Piece {
    Contribution(usize),
    Result(usize),
}

impl SubCollective {
    /// The bytes of a rank's slice.
    pub(super) fn slice(&self, rank: usize) -> Range<usize> {
        match self.slices {
            Slices::Even { start, elements } => {
                let (share, rest) = (elements / self.ranks, elements % self.ranks);
                let first = rank * share + rank.min(rest);
                let length = share + usize::from(rank < rest);
                start + first * self.element_bytes..start + (first + length) * self.element_bytes
            }
            Slices::Spread { start, stride, bytes } => start + rank * stride..start + rank * stride + bytes,
        }
    }

    /// The same in a block.
    fn slice_in(&self, block: usize, rank: usize) -> Range<usize> {
        let Range { start, end } = self.slice(rank);
        start + block * self.block_bytes..end + block * self.block_bytes
    }

    pub(super) fn final_at_start(&self) -> usize {
        match self.operation {
            OpType::Broadcast if self.me == self.root => usize::MAX,
            OpType::AllReduce if self.ranks == 2 => 0,
            _ => self.slice(self.me).start,
        }
    }

    pub(super) fn outbound(&self, peer: usize, index: usize) -> Option<Outbound> {
        let open = |range| Some(Outbound { range, when_final: false });
        match (self.operation, index) {
            (OpType::AllReduce, 0) if self.ranks == 2 => open(self.whole()),
            (OpType::AllReduce, _) if self.ranks > 2 => match self.piece(index)? {
                Piece::Contribution(piece) => open(self.cut(peer, piece)),
                Piece::Result(piece) => Some(Outbound { range: self.cut(self.me, piece), when_final: true }),
            },
            (OpType::ReduceScatter, block) if block < self.blocks => open(self.slice_in(block, peer)),
            (OpType::AllToAll, 0) => open(self.slice(peer)),
            (OpType::AllGather, block) if block < self.blocks => open(self.slice_in(block, self.me)),
            (OpType::Gather, 0) if peer == self.root => open(self.slice(self.me)),
            (OpType::Broadcast, 0) if self.me == self.root => open(self.slice(peer)),
            (OpType::Broadcast, 1) if self.me == self.root => open(self.slice(self.me)),
            (OpType::Broadcast, 0) if peer != self.root => {
                Some(Outbound { range: self.slice(self.me), when_final: true })
            }
            _ => None,
        }
    }

    pub(super) fn inbound(&self, peer: usize, index: usize) -> Option<Inbound> {
        let inbound = |range, purpose| Some(Inbound { range, purpose });
        match (self.operation, index) {
            (OpType::AllReduce, 0) if self.ranks == 2 => {
                inbound(self.whole(), InboundUse::ReduceAfterSending)
            }
            (OpType::AllReduce, _) if self.ranks > 2 => match self.piece(index)? {
                Piece::Contribution(piece) => inbound(self.cut(self.me, piece), InboundUse::Reduce),
                Piece::Result(piece) => inbound(self.cut(peer, piece), InboundUse::Fill),
            },
            (OpType::ReduceScatter, block) if block < self.blocks => {
                inbound(self.slice_in(block, self.me), InboundUse::Reduce)
            }
            (OpType::AllToAll, 0) => inbound(self.slice(peer), InboundUse::FillAfterSending),
            (OpType::AllGather, block) if block < self.blocks => {
                inbound(self.slice_in(block, peer), InboundUse::Fill)
            }
            (OpType::Gather, 0) if self.me == self.root => inbound(self.slice(peer), InboundUse::Fill),
            (OpType::Broadcast, 0) if peer == self.root => inbound(self.slice(self.me), InboundUse::FillOwn),
            (OpType::Broadcast, 1) if peer == self.root => inbound(self.slice(peer), InboundUse::Fill),
            (OpType::Broadcast, 0) if self.me != self.root => inbound(self.slice(peer), InboundUse::Fill),
            _ => None,
        }
    }

    fn whole(&self) -> Range<usize> {
        self.slice(0).start..self.slice(self.ranks - 1).end
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
