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
//!
//! In a large group not everybody should have to talk to everybody. Where its size is a multiple of a power of two, its
//! ranks form a grid, rank = row · columns + column with a power of two of columns, and a collective is two or three of
//! the above, one after the other, along this rank's row and column:
//!
//! | collective on a grid | stages |
//! |---|---|
//! | all-reduce | reduce-scatter along the row, all-reduce of the own part along the column, all-gather along the row |
//! | reduce-scatter | of all slices of the own column along the row, of these along the column |
//! | all-gather | along the row, then of whole rows along the column |
//! | broadcast | along the root's column, then along each row |
//! | barrier | along the row, then along the column |
//!
//! A row is a power of two of neighbours, so its sum is a node of the tree that the crate's header describes, and rows are
//! added as that tree adds them: the bits are the same. Each rank sends as many bytes as without the grid. Halves are the
//! exception: their sums are rounded once, at the end of the tree, so they are reduced without a grid, as are gathers and
//! all-to-alls.

use std::ops::Range;

use crate::call::{Call, OpType};
use crate::dtype::DType;

/// Bytes after which an all-reduce turns from contributions to results. Part of the protocol.
const PIECE: usize = 64 << 10;

/// By how many pieces the results stay behind the contributions. Part of the protocol.
const LAG: usize = 2;

/// The largest group in which everybody talks to everybody in every collective. Part of the protocol.
const DIRECT: usize = 32;

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

/// What comes next on a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Next<T> {
    Segment(T),
    /// Nothing before the next stage.
    Later,
    /// Nothing at all.
    End,
}

impl<T> From<Option<T>> for Next<T> {
    fn from(segment: Option<T>) -> Self {
        segment.map_or(Self::End, Self::Segment)
    }
}

/// The segments of one collective on one rank: exchanges with some ranks of the group each, one after the other.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    me: usize,
    stages: Vec<Stage>,
}

#[derive(Debug, Clone)]
struct Stage {
    members: Members,
    part: SubCollective,
}

/// Ranks of the group, in order and at equal distances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Members {
    first: usize,
    step: usize,
    count: usize,
}

impl Members {
    fn ranks(self) -> impl DoubleEndedIterator<Item = usize> + Clone {
        (0..self.count).map(move |index| self.first + index * self.step)
    }

    /// The place of a rank among them.
    fn place(self, rank: usize) -> Option<usize> {
        let distance = rank.checked_sub(self.first)?;
        (distance.is_multiple_of(self.step) && distance / self.step < self.count)
            .then(|| distance / self.step)
    }
}

/// A group of `rows` times `columns` ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Grid {
    rows: usize,
    columns: usize,
}

impl Grid {
    /// The grid of a group in which each rank has the fewest peers, if it is large enough and has one.
    fn of(ranks: usize) -> Option<Self> {
        let widths = (1..=ranks.trailing_zeros()).map(|power| 1 << power);
        let grids = widths.map(|columns| Self { rows: ranks / columns, columns });
        grids.filter(|grid| ranks > DIRECT && grid.rows > 1).min_by_key(|grid| grid.rows + grid.columns)
    }

    fn row(self, rank: usize) -> Members {
        Members { first: rank - rank % self.columns, step: 1, count: self.columns }
    }

    fn column(self, rank: usize) -> Members {
        Members { first: rank % self.columns, step: self.columns, count: self.rows }
    }
}

impl Plan {
    /// The plan of the group's rank `me`. `root` is a rank of the group, and 0 where there is none.
    pub(crate) fn new(call: &Call, ranks: usize, me: usize, root: usize) -> Self {
        let halves = matches!(call.dtype, DType::Bf16 | DType::F16) && call.reduce.is_some();
        let grid = Grid::of(ranks).filter(|_| !halves);
        let stages = grid.and_then(|grid| on_grid(call, grid, me, root));
        let stages = stages.unwrap_or_else(|| {
            let everybody = Members { first: 0, step: 1, count: ranks };
            vec![Stage::new(call.operation, everybody, me, root, whole(call), call)]
        });
        Self { me, stages }
    }

    /// Bytes that a barrier passes on, where its stages need some to wait for each other.
    pub(crate) fn barrier_bytes(ranks: usize) -> usize {
        Grid::of(ranks).map_or(0, |grid| grid.rows)
    }

    pub(crate) fn stages(&self) -> usize {
        self.stages.len()
    }

    /// The other ranks that take part, in order.
    pub(crate) fn peers(&self) -> Vec<usize> {
        let mut peers: Vec<usize> = self.stages.iter().flat_map(|stage| stage.members.ranks()).collect();
        peers.sort_unstable();
        peers.dedup();
        peers.retain(|peer| *peer != self.me);
        peers
    }

    /// The other ranks that take part in a stage, in order.
    pub(crate) fn peers_in(&self, stage: usize) -> impl DoubleEndedIterator<Item = usize> + Clone {
        self.stages[stage].members.ranks().filter(|peer| *peer != self.me)
    }

    /// Whether a rank takes part in a stage.
    pub(crate) fn is_in(&self, stage: usize, rank: usize) -> bool {
        self.stages[stage].members.place(rank).is_some()
    }

    /// This rank's place among those of a stage.
    pub(crate) fn place_in(&self, stage: usize) -> usize {
        self.stages[stage].part.me
    }

    /// The offset up to which the own slice is final from a stage's start.
    pub(crate) fn final_at_start(&self, stage: usize) -> usize {
        self.stages[stage].part.final_at_start()
    }

    /// Segment `index` of what goes to `peer` in a stage.
    pub(crate) fn outbound(&self, stage: usize, peer: usize, index: usize) -> Next<Outbound> {
        self.next(stage, peer, |part, peer| part.outbound(peer, index))
    }

    /// Segment `index` of what comes from `peer` in a stage.
    pub(crate) fn inbound(&self, stage: usize, peer: usize, index: usize) -> Next<Inbound> {
        self.next(stage, peer, |part, peer| part.inbound(peer, index))
    }

    fn next<T>(
        &self,
        stage: usize,
        peer: usize,
        segment: impl FnOnce(&SubCollective, usize) -> Option<T>,
    ) -> Next<T> {
        let Stage { members, part } = &self.stages[stage];
        match members.place(peer).and_then(|place| segment(part, place)) {
            Some(segment) => Next::Segment(segment),
            None if (stage + 1..self.stages.len()).any(|later| self.is_in(later, peer)) => Next::Later,
            None => Next::End,
        }
    }
}

fn whole(call: &Call) -> Slices {
    Slices::Even { start: 0, elements: call.bytes as usize / call.dtype.size() }
}

/// The stages of a collective on a grid, where it has some.
fn on_grid(call: &Call, grid: Grid, me: usize, root: usize) -> Option<Vec<Stage>> {
    let Grid { rows, columns } = grid;
    let along_row = |operation, slices| Stage::new(operation, grid.row(me), me, root, slices, call);
    let along_column = |operation, slices| Stage::new(operation, grid.column(me), me, root, slices, call);
    let (row, column) = (me / columns, me % columns);
    // Of the slices where everybody has one.
    let slice = call.bytes as usize / (rows * columns);
    let stages = match call.operation {
        OpType::AllReduce => {
            let scatter = along_row(OpType::ReduceScatter, whole(call));
            let part = scatter.part.slice(column);
            let elements = part.len() / call.dtype.size();
            let reduce = along_column(OpType::AllReduce, Slices::Even { start: part.start, elements });
            vec![scatter, reduce, along_row(OpType::AllGather, whole(call))]
        }
        OpType::ReduceScatter => {
            let mut scatter =
                along_row(OpType::ReduceScatter, Slices::Spread { start: 0, stride: slice, bytes: slice });
            (scatter.part.blocks, scatter.part.block_bytes) = (rows, columns * slice);
            let own = Slices::Spread { start: column * slice, stride: columns * slice, bytes: slice };
            vec![scatter, along_column(OpType::ReduceScatter, own)]
        }
        OpType::AllGather => {
            let start = row * columns * slice;
            let in_row = Slices::Spread { start, stride: slice, bytes: slice };
            let rows = Slices::Spread { start: 0, stride: columns * slice, bytes: columns * slice };
            vec![along_row(OpType::AllGather, in_row), along_column(OpType::AllGather, rows)]
        }
        OpType::Broadcast => {
            let down = (column == root % columns).then(|| along_column(OpType::Broadcast, whole(call)));
            // The root of each row stands in the root's column.
            let mut across = along_row(OpType::Broadcast, whole(call));
            across.part.root = root % columns;
            down.into_iter().chain([across]).collect()
        }
        // A byte of each row says that all of it is there.
        OpType::Barrier => {
            let bytes = Slices::Spread { start: 0, stride: 1, bytes: 1 };
            vec![along_row(OpType::Barrier, whole(call)), along_column(OpType::AllGather, bytes)]
        }
        _ => return None,
    };
    Some(stages)
}

impl Stage {
    fn new(operation: OpType, members: Members, me: usize, root: usize, slices: Slices, call: &Call) -> Self {
        let place = |rank| members.place(rank).unwrap_or(0);
        let part = SubCollective {
            operation,
            ranks: members.count,
            me: place(me),
            root: place(root),
            element_bytes: call.dtype.size(),
            slices,
            blocks: 1,
            block_bytes: 0,
        };
        Self { members, part }
    }
}

/// How the buffer, or a part of it, is cut into one slice per rank.
#[derive(Debug, Clone)]
enum Slices {
    /// Elements from byte `start` on, in slices that differ by at most one element.
    Even { start: usize, elements: usize },
    /// Slices of `bytes` bytes that begin `stride` bytes after each other.
    Spread { start: usize, stride: usize, bytes: usize },
}

/// One collective among some ranks, by their places among them.
#[derive(Debug, Clone)]
struct SubCollective {
    operation: OpType,
    ranks: usize,
    me: usize,
    root: usize,
    element_bytes: usize,
    slices: Slices,
    /// How often a reduce-scatter is repeated, and after how many bytes.
    blocks: usize,
    block_bytes: usize,
}

enum Piece {
    Contribution(usize),
    Result(usize),
}

impl SubCollective {
    /// The bytes of a rank's slice.
    fn slice(&self, rank: usize) -> Range<usize> {
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

    fn final_at_start(&self) -> usize {
        match self.operation {
            OpType::Broadcast if self.me == self.root => usize::MAX,
            OpType::AllReduce if self.ranks == 2 => 0,
            _ => self.slice(self.me).start,
        }
    }

    fn outbound(&self, peer: usize, index: usize) -> Option<Outbound> {
        let open = |range| Some(Outbound { range, when_final: false });
        match (self.operation, index) {
            (OpType::AllReduce, 0) if self.ranks == 2 => open(self.whole()),
            (OpType::AllReduce, _) if self.ranks > 2 => match self.piece(index)? {
                Piece::Contribution(piece) => open(self.cut(peer, piece)),
                Piece::Result(piece) => Some(Outbound { range: self.cut(self.me, piece), when_final: true }),
            },
            (OpType::ReduceScatter, block) if block < self.blocks => open(self.slice_in(block, peer)),
            (OpType::AllToAll, 0) => open(self.slice(peer)),
            (OpType::AllGather, 0) => open(self.slice(self.me)),
            (OpType::Gather, 0) if peer == self.root => open(self.slice(self.me)),
            (OpType::Broadcast, 0) if self.me == self.root => open(self.slice(peer)),
            (OpType::Broadcast, 1) if self.me == self.root => open(self.slice(self.me)),
            (OpType::Broadcast, 0) if peer != self.root => {
                Some(Outbound { range: self.slice(self.me), when_final: true })
            }
            _ => None,
        }
    }

    fn inbound(&self, peer: usize, index: usize) -> Option<Inbound> {
        let inbound = |range, purpose| Some(Inbound { range, purpose });
        match (self.operation, index) {
            (OpType::AllReduce, 0) if self.ranks == 2 => inbound(self.whole(), Use::ReduceAfterSending),
            (OpType::AllReduce, _) if self.ranks > 2 => match self.piece(index)? {
                Piece::Contribution(piece) => inbound(self.cut(self.me, piece), Use::Reduce),
                Piece::Result(piece) => inbound(self.cut(peer, piece), Use::Fill),
            },
            (OpType::ReduceScatter, block) if block < self.blocks => {
                inbound(self.slice_in(block, self.me), Use::Reduce)
            }
            (OpType::AllToAll, 0) => inbound(self.slice(peer), Use::FillAfterSending),
            (OpType::AllGather, 0) => inbound(self.slice(peer), Use::Fill),
            (OpType::Gather, 0) if self.me == self.root => inbound(self.slice(peer), Use::Fill),
            (OpType::Broadcast, 0) if peer == self.root => inbound(self.slice(self.me), Use::FillOwn),
            (OpType::Broadcast, 1) if peer == self.root => inbound(self.slice(peer), Use::Fill),
            (OpType::Broadcast, 0) if self.me != self.root => inbound(self.slice(peer), Use::Fill),
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

#[cfg(test)]
mod tests;
