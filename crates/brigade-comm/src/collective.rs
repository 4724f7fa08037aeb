//! One collective in flight on one rank.

use std::time::Instant;

use crate::call::{Call, encode};
use crate::dtype::ReduceOp;
use crate::engine::Identity;
use crate::error::Error;
use crate::flight::Ticket;
use crate::in_flight::Underway;
use crate::link::{Link, PeerLinks, View};
use crate::pending::Work;
use crate::plan::Plan;
use crate::reduce::reduce;
use crate::stream::{Incoming, Outgoing, STEP_BYTES, Stop};

/// A collective, with the buffer that it works on.
pub(crate) struct Collective<'a> {
    pub(crate) call: Call,
    pub(crate) ticket: Ticket,
    /// When it became the oldest of its group.
    pub(crate) started: Option<Instant>,
    group: u64,
    me: usize,
    plan: Plan,
    work: Box<dyn Work + 'a>,
    outgoing: Vec<Outgoing>,
    incoming: Vec<Incoming>,
    /// The offset in the buffer up to which this rank's own slice is final.
    final_end: usize,
    flushed: bool,
}

impl<'a> Collective<'a> {
    pub(crate) fn new(
        identity: &Identity,
        call: Call,
        ticket: Ticket,
        started: Option<Instant>,
        plan: Plan,
        work: Box<dyn Work + 'a>,
    ) -> Self {
        let Identity { group, rank: me, ref members, .. } = *identity;
        let ranks = members.len();
        let header = encode(group, &call);
        Self {
            call,
            ticket,
            started,
            group,
            me,
            final_end: plan.final_at_start(),
            plan,
            work,
            outgoing: (0..ranks).map(|_| Outgoing::new(header)).collect(),
            incoming: (0..ranks).map(|_| Incoming::new()).collect(),
            flushed: ranks == 1,
        }
    }

    /// Does what can be done without waiting; says whether that was anything.
    pub(crate) fn advance(&mut self, links: &mut [Option<PeerLinks>]) -> Result<bool, Stop> {
        let Self { plan, work, outgoing, incoming, final_end, .. } = self;
        let bytes = work.bytes();
        let mut moved = false;
        for peer in others(self.me, outgoing.len()) {
            let Some(link) = link(links, peer) else { continue };
            let (outgoing, incoming) = (&mut outgoing[peer], &mut incoming[peer]);
            moved |= outgoing
                .advance(link, bytes, *final_end, |index| plan.outbound(peer, index))
                .map_err(Stop::link(peer))?;
            moved |= incoming.greet(link, peer, self.group, &self.call)?.is_some();
            let (filled, own_end) = incoming
                .fill(link, bytes, outgoing.frontier(), |index| plan.inbound(peer, index))
                .map_err(Stop::link(peer))?;
            moved |= filled;
            *final_end = own_end.unwrap_or(*final_end);
        }
        if self.call.reduce.is_some() {
            moved |= self.reduce(links)?;
        }
        self.flushed = true;
        for peer in others(self.me, self.outgoing.len()) {
            let Some(link) = link(links, peer) else { continue };
            self.flushed &= link.flush().map_err(Stop::link(peer))?;
        }
        Ok(moved)
    }

    /// Reduces what has come from all peers.
    fn reduce(&mut self, links: &mut [Option<PeerLinks>]) -> Result<bool, Stop> {
        let ranks = self.outgoing.len();
        let (mut start, mut count) = (0, STEP_BYTES);
        let mut complete = ranks > 1;
        for peer in others(self.me, ranks) {
            let Some(link) = link(links, peer) else { continue };
            let sent = self.outgoing[peer].frontier();
            let range = self.incoming[peer]
                .reducible(link, sent, self.call.dtype.size(), |index| self.plan.inbound(peer, index))
                .map_err(Stop::link(peer))?;
            match range {
                Some(range) => (start, count) = (range.start, count.min(range.len())),
                None => complete = false,
            }
        }
        if !complete || count == 0 {
            return Ok(false);
        }
        let inputs: Vec<View<'_>> =
            links.iter().flatten().map(|links| links.collective.peek().first(count)).collect();
        let own = &mut self.work.bytes()[start..start + count];
        reduce(self.call.dtype, self.call.reduce.unwrap_or(ReduceOp::Sum), self.me, own, &inputs);
        for peer in others(self.me, ranks) {
            let Some(link) = link(links, peer) else { continue };
            link.consume(count);
            self.incoming[peer].pass(count);
        }
        self.final_end = start + count;
        Ok(true)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.flushed
            && others(self.me, self.outgoing.len())
                .all(|peer| self.outgoing[peer].is_done() && self.incoming[peer].is_done())
    }

    /// Whether it waits for `peer` to send, and to receive.
    pub(crate) fn awaits(&self, peer: usize) -> (bool, bool) {
        (self.incoming[peer].is_starved(), self.outgoing[peer].is_blocked())
    }

    pub(crate) fn complete(self, outcome: Result<(), Error>) {
        self.work.complete(outcome);
    }
}

impl Underway for Collective<'_> {
    fn call(&self) -> &Call {
        &self.call
    }

    fn ticket(&self) -> Ticket {
        self.ticket
    }

    fn started(&self) -> Option<Instant> {
        self.started
    }

    fn is_awaited(&self) -> bool {
        self.work.is_awaited()
    }

    /// The peers that have not called the operation and, where all have, those that are furthest from its end.
    fn missing(&self) -> (Vec<usize>, Vec<usize>) {
        let peers = || others(self.me, self.incoming.len());
        let absent: Vec<usize> = peers().filter(|peer| !self.incoming[*peer].has_arrived()).collect();
        let exchanged = |peer: &usize| self.incoming[*peer].payload() + self.outgoing[*peer].payload();
        let unfinished = || peers().filter(|peer| !self.incoming[*peer].is_done());
        let least = unfinished().map(|peer| exchanged(&peer)).min();
        let stalled =
            unfinished().filter(|peer| absent.is_empty() && Some(exchanged(peer)) == least).collect();
        (absent, stalled)
    }

    fn traffic(&self) -> (u64, u64) {
        let sent = self.outgoing.iter().map(Outgoing::payload).sum();
        (sent, self.incoming.iter().map(Incoming::payload).sum())
    }
}

/// The other ranks, the next one first, so that not all ranks turn to the same one at once.
fn others(me: usize, ranks: usize) -> impl Iterator<Item = usize> {
    (me + 1..ranks).chain(0..me)
}

fn link(links: &mut [Option<PeerLinks>], peer: usize) -> Option<&mut Link> {
    links[peer].as_mut().map(|links| &mut links.collective)
}
