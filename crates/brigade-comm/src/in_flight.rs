//! The operations of one group that are in flight on one rank, and the links that they use.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use rustix::event::PollFlags;

use crate::call::{Call, Operation};
use crate::collective::Collective;
use crate::error::Error;
use crate::flight::Ticket;
use crate::link::PeerLinks;
use crate::transfer::Transfer;

/// An operation on its way.
pub(crate) trait Underway {
    fn call(&self) -> &Call;
    fn ticket(&self) -> Ticket;
    /// When it became the first of its queue.
    fn started(&self) -> Option<Instant>;
    /// Whether a thread waits for it.
    fn is_awaited(&self) -> bool;
    /// The ranks of the group that have not called it, and those that have but from which something is missing. Only
    /// known of the first of a queue.
    fn missing(&self) -> (Vec<usize>, Vec<usize>);
    /// Payload bytes sent and received so far.
    fn traffic(&self) -> (u64, u64);
}

/// An operation that runs in the background.
pub(crate) enum Job {
    Collective(Collective<'static>),
    Transfer(Transfer),
}

/// The operations in flight, in the order of their calls. Of each queue, only the first makes progress.
pub(crate) struct InFlight {
    pub(crate) links: Vec<Option<PeerLinks>>,
    pub(crate) collectives: VecDeque<Collective<'static>>,
    /// Per peer: sends and receives.
    pub(crate) transfers: Vec<[VecDeque<Transfer>; 2]>,
}

impl InFlight {
    pub(crate) fn new(links: Vec<Option<PeerLinks>>) -> Self {
        let transfers = links.iter().map(|_| Default::default()).collect();
        Self { links, collectives: VecDeque::new(), transfers }
    }

    pub(crate) fn take_up(&mut self, jobs: Vec<Job>) {
        for job in jobs {
            match job {
                Job::Collective(collective) => self.collectives.push_back(collective),
                Job::Transfer(transfer) => {
                    self.transfers[transfer.peer][direction(transfer.call.operation)].push_back(transfer);
                }
            }
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.collectives.is_empty() && self.transfers.iter().flatten().all(VecDeque::is_empty)
    }

    /// Everything that is in flight, with whether it is the first of its queue.
    pub(crate) fn all<'a>(
        &'a self,
        inline: Option<&'a Collective<'_>>,
    ) -> impl Iterator<Item = (&'a dyn Underway, bool)> {
        let inline = inline.map(|collective| (collective as &dyn Underway, true));
        let collectives =
            self.collectives.iter().enumerate().map(|(place, job)| (job as &dyn Underway, place == 0));
        let transfers = self.transfers.iter().flatten().flat_map(|queue| {
            queue.iter().enumerate().map(|(place, job)| (job as &dyn Underway, place == 0))
        });
        inline.into_iter().chain(collectives).chain(transfers)
    }

    /// Takes out everything that is in flight.
    pub(crate) fn clear(&mut self) -> Vec<Job> {
        let collectives = self.collectives.drain(..).map(Job::Collective);
        let transfers = self.transfers.iter_mut().flatten().flat_map(|queue| queue.drain(..));
        collectives.chain(transfers.map(Job::Transfer)).collect()
    }

    pub(crate) fn arm(&mut self) {
        for links in self.links.iter_mut().flatten() {
            links.collective.arm();
            links.transfer.arm();
        }
    }

    pub(crate) fn disarm(&mut self) {
        for links in self.links.iter_mut().flatten() {
            links.collective.disarm();
            links.transfer.disarm();
        }
    }

    /// The descriptors that anything in flight waits for.
    pub(crate) fn awaited<'a>(&'a self, inline: Option<&Collective<'_>>) -> Vec<(BorrowedFd<'a>, PollFlags)> {
        let mut awaited = Vec::new();
        for (peer, links) in self.links.iter().enumerate() {
            let Some(links) = links else { continue };
            let collective = inline
                .map(|collective| collective.awaits(peer))
                .or_else(|| self.collectives.front().map(|collective| collective.awaits(peer)));
            if let Some((read, write)) = collective {
                awaited.extend(links.collective.poll_for(read, write));
            }
            let transfers = self.transfers[peer].iter().filter_map(VecDeque::front).map(Transfer::awaits);
            let (read, write) = transfers.fold((false, false), |(r, w), (read, write)| (r | read, w | write));
            awaited.extend(links.transfer.poll_for(read, write));
        }
        awaited
    }
}

impl Job {
    pub(crate) fn underway(&self) -> &dyn Underway {
        match self {
            Job::Collective(collective) => collective,
            Job::Transfer(transfer) => transfer,
        }
    }

    pub(crate) fn complete(self, outcome: Result<(), Error>) {
        match self {
            Job::Collective(collective) => collective.complete(outcome),
            Job::Transfer(transfer) => transfer.complete(outcome),
        }
    }
}

/// The queue of a transfer among those of its peer.
pub(crate) fn direction(operation: Operation) -> usize {
    usize::from(operation.is_receive())
}
