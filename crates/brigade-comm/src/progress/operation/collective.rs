//! One collective in flight on one rank.

use std::time::Instant;

use crate::error::Error;
use crate::flight::EntryId;
use crate::link::endpoint::{Link, PeerLinks};
use crate::link::role::LinkRole;
use crate::op::call::Call;
use crate::op::dtype::ReduceOp;
use crate::op::header::encode;
use crate::op::plan::Plan;
use crate::op::reduce::reduce;
use crate::op::view::View;
use crate::process_group::work::OpBuffer;
use crate::progress::operation::in_flight_op::InFlightOp;
use crate::progress::operation::incoming::Incoming;
use crate::progress::operation::outgoing::Outgoing;
use crate::progress::operation::stop::Stop;
use crate::progress::operation::stream_state::STEP_BYTES;

/// A collective, with the buffer that it works on.
pub(crate) struct Collective<'a> {
    pub(crate) call: Call,
    pub(crate) entry_id: EntryId,
    /// When it became the oldest of its group.
    pub(crate) started: Option<Instant>,
    group: u64,
    plan: Plan,
    phase: usize,
    buffer: Box<dyn OpBuffer + 'a>,
    /// In the order of the ranks.
    streams: Vec<Streams>,
    /// How many of them belong to ranks before this one. Each rank starts with the rank after it, so that not all start with the
    /// same one.
    before: usize,
    /// The offset in the buffer up to which this rank's own slice is final.
    final_end: usize,
    /// Whether there are links to all peers.
    linked: bool,
    flushed: bool,
}

/// Both directions of the link to a peer.
struct Streams {
    peer: usize,
    outgoing: Outgoing,
    incoming: Incoming,
}

impl<'a> Collective<'a> {
    pub(crate) fn new(
        group: u64,
        me: usize,
        call: Call,
        entry_id: EntryId,
        started: Option<Instant>,
        plan: Plan,
        buffer: Box<dyn OpBuffer + 'a>,
    ) -> Self {
        let header = encode(group, &call);
        let streams = |peer| Streams { peer, outgoing: Outgoing::new(header), incoming: Incoming::new() };
        let streams: Vec<Streams> = plan.peers().into_iter().map(streams).collect();
        Self {
            call,
            entry_id,
            started,
            group,
            final_end: plan.final_at_start(0),
            plan,
            phase: 0,
            buffer,
            before: streams.partition_point(|streams| streams.peer < me),
            linked: streams.is_empty(),
            flushed: streams.is_empty(),
            streams,
        }
    }

    /// Gets the missing links to its peers.
    pub(crate) fn link<E>(
        &mut self,
        fetch: &mut impl FnMut(usize, LinkRole, &Call) -> Result<bool, E>,
    ) -> Result<(), E> {
        if !self.linked {
            let mut linked = true;
            for streams in &self.streams {
                linked &= fetch(streams.peer, LinkRole::Collective, &self.call)?;
            }
            self.linked = linked;
        }
        Ok(())
    }

    /// Does what can be done without waiting. Returns whether there was progress.
    pub(crate) fn advance(&mut self, links: &mut [PeerLinks]) -> Result<bool, Stop> {
        let Self { plan, phase, buffer, streams, final_end, .. } = self;
        let bytes = buffer.bytes();
        let mut moved = false;
        for Streams { peer, outgoing, incoming } in in_turn(streams, self.before) {
            let (peer, phase) = (*peer, *phase);
            let Some(link) = &mut links[peer].collective else { continue };
            // A pair of ranks stays in step for as long as anything comes back.
            let limit = if incoming.rests() { usize::MAX } else { link.lead() };
            let limit = incoming.payload().saturating_add(limit as u64);
            moved |= outgoing
                .advance(link, bytes, *final_end, limit, |index| plan.outbound(phase, peer, index))
                .map_err(Stop::link(peer))?;
            moved |= incoming.read_header(link, peer, self.group, &self.call)?.is_some();
            let (filled, own_end) = incoming
                .fill(link, bytes, outgoing.frontier(), |index| plan.inbound(phase, peer, index))
                .map_err(Stop::link(peer))?;
            moved |= filled;
            *final_end = own_end.unwrap_or(*final_end);
        }
        if self.call.reduce.is_some() {
            moved |= self.reduce(links)?;
        }
        moved |= self.turn_to_next_stage();
        self.flushed = true;
        for Streams { peer, .. } in in_turn(&mut self.streams, self.before) {
            let Some(link) = &mut links[*peer].collective else { continue };
            self.flushed &= link.flush().map_err(Stop::link(*peer))?;
        }
        Ok(moved)
    }

    /// Reduces what has arrived from all peers of the phase.
    fn reduce(&mut self, links: &mut [PeerLinks]) -> Result<bool, Stop> {
        let Self { plan, phase, streams, .. } = self;
        let phase = *phase;
        let (mut start, mut count) = (0, STEP_BYTES);
        let mut complete = false;
        for Streams { peer, outgoing, incoming } in in_turn(streams, self.before) {
            let peer = *peer;
            if !plan.is_in(phase, peer) {
                continue;
            }
            let Some(link) = &mut links[peer].collective else { return Ok(false) };
            let segment = |index| plan.inbound(phase, peer, index);
            let range = incoming
                .reducible(link, outgoing.frontier(), self.call.dtype.size(), segment)
                .map_err(Stop::link(peer))?;
            let Some(range) = range else {
                // Nothing is reduced before all contributions are there, but the other links are still read.
                count = 0;
                continue;
            };
            complete = true;
            (start, count) = (range.start, count.min(range.len()));
        }
        if !complete || count == 0 {
            return Ok(false);
        }
        let fetched = |peer: usize| links[peer].collective.as_ref().map(Link::peek);
        let inputs: Vec<View<'_>> =
            plan.peers_in(phase).filter_map(fetched).map(|bytes| bytes.first(count)).collect();
        let own = &mut self.buffer.bytes()[start..start + count];
        let op = self.call.reduce.unwrap_or(ReduceOp::Sum);
        reduce(self.call.dtype, op, plan.place_in(phase), own, &inputs);
        for Streams { peer, incoming, .. } in
            streams.iter_mut().filter(|streams| plan.is_in(phase, streams.peer))
        {
            if let Some(link) = &mut links[*peer].collective {
                link.consume(count);
                incoming.pass(count);
            }
        }
        self.final_end = start + count;
        Ok(true)
    }

    /// Moves on to the next phase once this one is complete.
    fn turn_to_next_stage(&mut self) -> bool {
        let Self { plan, phase, streams, .. } = self;
        let is_last = *phase + 1 == plan.phases();
        let rests = |Streams { outgoing, incoming, .. }: &Streams| {
            incoming.has_arrived() && incoming.rests() && outgoing.rests()
        };
        if is_last || !streams.iter().filter(|streams| plan.is_in(*phase, streams.peer)).all(rests) {
            return false;
        }
        *phase += 1;
        self.final_end = plan.final_at_start(*phase);
        for Streams { outgoing, incoming, .. } in streams {
            outgoing.next_stage();
            incoming.next_stage();
        }
        true
    }

    pub(crate) fn is_done(&self) -> bool {
        let is_done = |streams: &Streams| streams.outgoing.is_done() && streams.incoming.is_done();
        self.flushed && self.streams.iter().all(is_done)
    }

    /// The peers, and whether it waits for them to send, and to receive.
    pub(crate) fn awaits(&self) -> Vec<(usize, (bool, bool))> {
        let awaits = |streams: &Streams| {
            (streams.peer, (streams.incoming.is_starved(), streams.outgoing.is_blocked()))
        };
        self.streams.iter().map(awaits).collect()
    }

    pub(crate) fn complete(self, outcome: Result<(), Error>) {
        self.buffer.complete(outcome);
    }
}

impl InFlightOp for Collective<'_> {
    fn call(&self) -> &Call {
        &self.call
    }

    fn entry_id(&self) -> EntryId {
        self.entry_id
    }

    fn started(&self) -> Option<Instant> {
        self.started
    }

    fn is_awaited(&self) -> bool {
        self.buffer.is_awaited()
    }

    /// The peers that have not called the operation and, where all have, those of the phase that are furthest from its end.
    fn missing(&self) -> (Vec<usize>, Vec<usize>) {
        let streams = || self.streams[self.before..].iter().chain(&self.streams[..self.before]);
        let absent: Vec<usize> =
            streams().filter(|streams| !streams.incoming.has_arrived()).map(|streams| streams.peer).collect();
        let exchanged = |streams: &Streams| streams.incoming.payload() + streams.outgoing.payload();
        let unfinished = || {
            streams().filter(|streams| self.plan.is_in(self.phase, streams.peer) && !streams.incoming.rests())
        };
        let least = unfinished().map(exchanged).min();
        let stalled = unfinished().filter(|streams| absent.is_empty() && Some(exchanged(streams)) == least);
        let stalled = stalled.map(|streams| streams.peer).collect();
        (absent, stalled)
    }

    fn sent(&self, to: &dyn Fn(usize) -> bool) -> u64 {
        let streams = self.streams.iter().filter(|streams| to(streams.peer));
        streams.map(|streams| streams.outgoing.payload()).sum()
    }

    fn traffic(&self) -> (u64, u64) {
        (self.sent(&|_| true), self.streams.iter().map(|streams| streams.incoming.payload()).sum())
    }
}

/// The streams of the ranks after this one first.
fn in_turn(streams: &mut [Streams], before: usize) -> impl Iterator<Item = &mut Streams> {
    let (before, after) = streams.split_at_mut(before);
    after.iter_mut().chain(before)
}
