//! A group's operations that are not complete.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_comm::engine::payload;
use brigade_comm::{Call, Error, OpBuffer, OpType, ProcessGroup};

use crate::membership::Shared;
use crate::operation::collective::Collective;
use crate::operation::stop::Stop;
use crate::operation::transfer::{Queue, Transfer};

/// A group's operations that are not complete.
pub(crate) struct GroupOps {
    group: Arc<Shared>,
    collectives: VecDeque<Collective>,
    called: u64,
    /// When a collective last became complete.
    progressed: Instant,
    /// By peer, and whether they are receives.
    queues: BTreeMap<(usize, bool), Queue>,
}

/// An operation whose deadline has passed.
struct Overdue {
    call: Call,
    waited: Duration,
}

impl GroupOps {
    pub(crate) fn new(group: Arc<Shared>) -> Self {
        Self {
            group,
            collectives: VecDeque::new(),
            called: 0,
            progressed: Instant::now(),
            queues: BTreeMap::new(),
        }
    }

    pub(crate) fn push_collective(&mut self, mut collective: Collective) {
        collective.call.sequence = self.called;
        self.called += 1;
        self.collectives.push_back(collective);
    }

    pub(crate) fn push_transfer(&mut self, peer: usize, transfer: Transfer) {
        let direction = (peer, transfer.call.operation.is_receive());
        self.queues.entry(direction).or_insert_with(Queue::new).push(transfer);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.collectives.is_empty() && self.queues.values().all(|queue| queue.transfers.is_empty())
    }

    /// Whether a thread waits for one of them.
    pub(crate) fn is_awaited(&self) -> bool {
        self.collectives.iter().any(|collective| collective.buffer.is_awaited())
            || self.queues.values().flat_map(|queue| &queue.transfers).any(|it| it.buffer.is_awaited())
    }

    /// Goes on as far as it can without waiting; whether anything became complete. What cannot continue fails the world.
    pub(crate) fn advance(&mut self) -> bool {
        let mut progress = false;
        let membership = &self.group.membership;
        while let Some(collective) = self.collectives.front_mut() {
            match collective.advance(membership) {
                Ok(false) => break,
                Ok(true) => {}
                Err(stop) => {
                    let call = collective.call;
                    self.fail(call, stop);
                    return true;
                }
            }
            if let Some(collective) = self.collectives.pop_front() {
                self.progressed = Instant::now();
                let (call, root) = (collective.call, collective.root);
                let bytes = payload(&call, membership.size(), membership.rank, root);
                self.group.counters.add(call.operation, bytes);
                let (buffer, flight) = collective.end();
                flight.done(true);
                buffer.complete(Ok(()));
                progress = true;
            }
        }
        let mut stopped = None;
        for queue in self.queues.values_mut() {
            let (complete, stop) = queue.advance(membership);
            for transfer in complete {
                let sent = if transfer.call.operation == OpType::Send { transfer.call.bytes } else { 0 };
                self.group.counters.add(transfer.call.operation, sent);
                let (buffer, flight) = transfer.end();
                flight.done(true);
                buffer.complete(Ok(()));
                progress = true;
            }
            stopped = stopped.or(stop);
        }
        if let Some((call, stop)) = stopped {
            self.fail(call, stop);
            return true;
        }
        if let Some(overdue) = self.overdue() {
            self.expire(overdue);
            return true;
        }
        progress
    }

    fn fail(&self, call: Call, stop: Stop) {
        let group = &self.group;
        // A rank that is gone may be the reason; the control plane will say which.
        group.control.fail(stop.error(&group.membership, &call));
    }

    fn overdue(&self) -> Option<Overdue> {
        let limit = self.group.control.op_timeout();
        let late = |since: Instant, progressed: Instant| since.max(progressed).elapsed() >= limit;
        if let Some(first) = self.collectives.front()
            && late(first.since, self.progressed)
        {
            first.flight.overdue();
            return Some(Overdue { call: first.call, waited: limit });
        }
        self.queues.values().find_map(|queue| {
            let first = queue.transfers.front().filter(|first| late(first.since, queue.progressed))?;
            first.flight.overdue();
            Some(Overdue { call: first.call, waited: limit })
        })
    }

    /// Raises the failure of an operation whose deadline has passed, after finding out which rank caused it.
    fn expire(&self, Overdue { call, waited }: Overdue) {
        let control = &self.group.control;
        let error = Error::Timeout {
            group: self.group.membership.name.clone(),
            rank: self.group.membership.world_rank(),
            call: Box::new(call),
            waited,
            absent: Vec::new(),
            stalled: Vec::new(),
            diagnosis: Box::new(control.diagnose()),
        };
        control.fail(error);
    }

    /// Ends all of them with the world's failure. Memory that MPI may still use is never freed.
    pub(crate) fn end(&mut self, error: &Error) {
        let give_back = |buffer: Box<dyn OpBuffer>, is_in_use| match is_in_use {
            true => buffer.abandon(error.clone()),
            false => buffer.complete(Err(error.clone())),
        };
        for collective in self.collectives.drain(..) {
            let is_in_use = collective.is_in_use();
            let (buffer, flight) = collective.end();
            flight.done(false);
            give_back(buffer, is_in_use);
        }
        for transfer in self.queues.values_mut().flat_map(|queue| queue.transfers.drain(..)) {
            let is_in_use = transfer.is_in_use();
            let (buffer, flight) = transfer.end();
            flight.done(false);
            give_back(buffer, is_in_use);
        }
    }

    /// The world's failure.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.group.control.failure()
    }
}
