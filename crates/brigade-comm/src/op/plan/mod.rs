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
//! two directions of a link between ranks that wait for each other differ by at most an element per phase.
//!
//! Ranks lie on one or more levels (see [`Levels`](levels::Levels)), and a rank is the number that its places on them form: on the
//! first level are its neighbours, on the last the most distant ranks. A collective is several of the above, one after the other,
//! each among the ranks that differ from this one on one level alone:
//!
//! | collective on levels | phases |
//! |---|---|
//! | all-reduce | reduce-scatter on each level but the last, all-reduce of the own part on the last, all-gathers back to the first |
//! | reduce-scatter | on each level from the first, of all slices that are still to be reduced |
//! | all-gather | on each level from the last, of all slices that have come |
//! | broadcast | on each level from the last, from the ranks that have it |
//! | barrier | on each level |
//!
//! One level is everybody with everybody. Two are the rows and columns of a grid, so that not everybody has to talk to
//! everybody in a large group, or what is inside a host and between hosts, so that each byte crosses the network once per host. Levels
//! of two ranks each are recursive halving and doubling.
//!
//! All levels but the last are powers of two of neighbours, so their sums are nodes of the tree that the crate's header
//! describes, and the last level adds as that tree does: the bits are the same. Each rank sends as many bytes as on one level.
//! Halves are the exception: their sums are rounded once, at the end of the tree, so they are reduced on one level, as are gathers
//! and all-to-alls.

pub(crate) mod layout;
mod levels;
pub(crate) mod segment;
mod sub_collective;

use crate::op::plan::layout::Layout;
use crate::op::plan::levels::Level;
use crate::op::plan::levels::Levels;
use crate::op::plan::levels::Members;
use crate::op::plan::segment::Inbound;
use crate::op::plan::segment::Next;
use crate::op::plan::segment::Outbound;
use crate::op::plan::sub_collective::Slices;
use crate::op::plan::sub_collective::SubCollective;

use crate::op::call::{Call, OpType};

/// The segments of one collective on one rank: exchanges with some ranks of the group each, one after the other.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    me: usize,
    phases: Vec<Phase>,
}

#[derive(Debug, Clone)]
struct Phase {
    members: Members,
    collective: SubCollective,
}

impl Plan {
    /// The plan of the group's rank `me`. `root` is a rank of the group, and 0 where there is none.
    pub(crate) fn new(call: &Call, layout: &Layout, me: usize, root: usize) -> Self {
        Self { me, phases: on_levels(call, layout.levels(call), me, root) }
    }

    pub(crate) fn phases(&self) -> usize {
        self.phases.len()
    }

    /// The other ranks that take part, in order.
    pub(crate) fn peers(&self) -> Vec<usize> {
        let mut peers: Vec<usize> = self.phases.iter().flat_map(|phase| phase.members.ranks()).collect();
        peers.sort_unstable();
        peers.dedup();
        peers.retain(|peer| *peer != self.me);
        peers
    }

    /// Bytes of the buffer that this rank sends, to each rank that they go to.
    pub(crate) fn payload(&self) -> u64 {
        let sent = |phase: usize, peer: usize| {
            let segments = (0..).map_while(move |index| match self.outbound(phase, peer, index) {
                Next::Segment(segment) => Some(segment.range.len() as u64),
                Next::Later | Next::End => None,
            });
            segments.sum::<u64>()
        };
        (0..self.phases()).flat_map(|phase| self.peers_in(phase).map(move |peer| sent(phase, peer))).sum()
    }

    /// The other ranks that take part in a phase, in order.
    pub(crate) fn peers_in(&self, phase: usize) -> impl DoubleEndedIterator<Item = usize> + Clone {
        self.phases[phase].members.ranks().filter(|peer| *peer != self.me)
    }

    /// Whether a rank takes part in a phase.
    pub(crate) fn is_in(&self, phase: usize, rank: usize) -> bool {
        self.phases[phase].members.place(rank).is_some()
    }

    /// This rank's place among those of a phase.
    pub(crate) fn place_in(&self, phase: usize) -> usize {
        self.phases[phase].collective.me
    }

    /// The offset up to which the own slice is final from a phase's start.
    pub(crate) fn final_at_start(&self, phase: usize) -> usize {
        self.phases[phase].collective.final_at_start()
    }

    /// Segment `index` of what goes to `peer` in a phase.
    pub(crate) fn outbound(&self, phase: usize, peer: usize, index: usize) -> Next<Outbound> {
        self.next(phase, peer, |collective, peer| collective.outbound(peer, index))
    }

    /// Segment `index` of what comes from `peer` in a phase.
    pub(crate) fn inbound(&self, phase: usize, peer: usize, index: usize) -> Next<Inbound> {
        self.next(phase, peer, |collective, peer| collective.inbound(peer, index))
    }

    fn next<T>(
        &self,
        phase: usize,
        peer: usize,
        segment: impl FnOnce(&SubCollective, usize) -> Option<T>,
    ) -> Next<T> {
        let Phase { members, collective } = &self.phases[phase];
        match members.place(peer).and_then(|place| segment(collective, place)) {
            Some(segment) => Next::Segment(segment),
            None if (phase + 1..self.phases.len()).any(|later| self.is_in(later, peer)) => Next::Later,
            None => Next::End,
        }
    }
}

fn whole(call: &Call) -> Slices {
    Slices::Even { start: 0, elements: call.bytes as usize / call.dtype.size() }
}

fn on_levels(call: &Call, levels: &Levels, me: usize, root: usize) -> Vec<Phase> {
    let ranks: usize = levels.each().map(|level| level.count).product();
    let phase = |operation, level, slices| Phase::new(operation, level, me, root, slices, call);
    // Of the slices where everybody has one, each level's phase has those that agree with this rank on the levels before it.
    let slice = call.bytes as usize / ranks;
    let spread = |operation, level: Level| {
        let Level { step, count } = level;
        let slices = Slices::Spread { start: me % step * slice, stride: step * slice, bytes: slice };
        let mut phase = phase(operation, level, slices);
        phase.collective.blocks = ranks / (step * count);
        phase.collective.block_bytes = step * count * slice;
        phase
    };
    match call.operation {
        OpType::AllReduce => {
            let (last, inner) = levels.split_last();
            let mut slices = whole(call);
            let mut scatters = Vec::new();
            for level in inner {
                let scatter = phase(OpType::ReduceScatter, *level, slices);
                let part = scatter.collective.slice(scatter.collective.me);
                slices = Slices::Even { start: part.start, elements: part.len() / call.dtype.size() };
                scatters.push(scatter);
            }
            let mut gathers = scatters.clone();
            gathers.iter_mut().for_each(|gather| gather.collective.operation = OpType::AllGather);
            let reduce = phase(OpType::AllReduce, last, slices);
            scatters.into_iter().chain([reduce]).chain(gathers.into_iter().rev()).collect()
        }
        OpType::ReduceScatter => levels.each().map(|level| spread(OpType::ReduceScatter, level)).collect(),
        OpType::AllGather => levels.each().rev().map(|level| spread(OpType::AllGather, level)).collect(),
        OpType::Broadcast => {
            let takes_part = |level: &Level| me % level.step == root % level.step;
            let phases = levels.each().rev().filter(takes_part);
            phases.map(|level| phase(OpType::Broadcast, level, whole(call))).collect()
        }
        // After the first level, a byte says that all before it are there.
        OpType::Barrier => {
            let bytes = || Slices::Spread { start: 0, stride: 1, bytes: 1 };
            let wait = |level: Level| match level.step {
                1 => phase(OpType::Barrier, level, whole(call)),
                _ => phase(OpType::AllGather, level, bytes()),
            };
            levels.each().map(wait).collect()
        }
        operation => levels.each().map(|level| phase(operation, level, whole(call))).collect(),
    }
}

impl Phase {
    fn new(operation: OpType, level: Level, me: usize, root: usize, slices: Slices, call: &Call) -> Self {
        let collective = SubCollective {
            operation,
            ranks: level.count,
            me: level.place(me),
            root: level.place(root),
            element_bytes: call.dtype.size(),
            slices,
            blocks: 1,
            block_bytes: 0,
        };
        Self { members: level.members(me), collective }
    }
}

#[cfg(test)]
mod tests;
