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
//! An all-reduce alternates its two kinds of segments in pieces of `PIECE` bytes, `LAG` pieces apart, so that a
//! piece of the buffer is still in the cache when its result comes back. It cannot deadlock: a piece waits only for
//! pieces with lower numbers, and each link blocks on its own alone. Where both ends of a TCP connection are on one host,
//! what goes out also waits for what comes back, up to `RING_BYTES` before it. That is lower by several pieces, and the
//! two directions of a link between ranks that wait for each other differ by at most an element per stage.
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

mod grid;
pub(crate) mod segment;
mod sub_collective;

use crate::op::plan::grid::Grid;
use crate::op::plan::grid::Members;
use crate::op::plan::segment::Inbound;
use crate::op::plan::segment::Next;
use crate::op::plan::segment::Outbound;
use crate::op::plan::sub_collective::Slices;
use crate::op::plan::sub_collective::SubCollective;

use crate::op::call::{Call, OpType};
use crate::op::dtype::DType;

/// The segments of one collective on one rank: exchanges with some ranks of the group each, one after the other.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    me: usize,
    stages: Vec<Stage>,
}

#[derive(Debug, Clone)]
struct Stage {
    members: Members,
    collective: SubCollective,
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

    /// Bytes of the buffer that this rank sends, to each rank that they go to.
    pub(crate) fn payload(&self) -> u64 {
        let sent = |stage: usize, peer: usize| {
            let segments = (0..).map_while(move |index| match self.outbound(stage, peer, index) {
                Next::Segment(segment) => Some(segment.range.len() as u64),
                Next::Later | Next::End => None,
            });
            segments.sum::<u64>()
        };
        (0..self.stages()).flat_map(|stage| self.peers_in(stage).map(move |peer| sent(stage, peer))).sum()
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
        self.stages[stage].collective.me
    }

    /// The offset up to which the own slice is final from a stage's start.
    pub(crate) fn final_at_start(&self, stage: usize) -> usize {
        self.stages[stage].collective.final_at_start()
    }

    /// Segment `index` of what goes to `peer` in a stage.
    pub(crate) fn outbound(&self, stage: usize, peer: usize, index: usize) -> Next<Outbound> {
        self.next(stage, peer, |collective, peer| collective.outbound(peer, index))
    }

    /// Segment `index` of what comes from `peer` in a stage.
    pub(crate) fn inbound(&self, stage: usize, peer: usize, index: usize) -> Next<Inbound> {
        self.next(stage, peer, |collective, peer| collective.inbound(peer, index))
    }

    fn next<T>(
        &self,
        stage: usize,
        peer: usize,
        segment: impl FnOnce(&SubCollective, usize) -> Option<T>,
    ) -> Next<T> {
        let Stage { members, collective } = &self.stages[stage];
        match members.place(peer).and_then(|place| segment(collective, place)) {
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
            let part = scatter.collective.slice(column);
            let elements = part.len() / call.dtype.size();
            let reduce = along_column(OpType::AllReduce, Slices::Even { start: part.start, elements });
            vec![scatter, reduce, along_row(OpType::AllGather, whole(call))]
        }
        OpType::ReduceScatter => {
            let mut scatter =
                along_row(OpType::ReduceScatter, Slices::Spread { start: 0, stride: slice, bytes: slice });
            (scatter.collective.blocks, scatter.collective.block_bytes) = (rows, columns * slice);
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
            across.collective.root = root % columns;
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
        let collective = SubCollective {
            operation,
            ranks: members.count,
            me: place(me),
            root: place(root),
            element_bytes: call.dtype.size(),
            slices,
            blocks: 1,
            block_bytes: 0,
        };
        Self { members, collective }
    }
}

#[cfg(test)]
mod tests;
