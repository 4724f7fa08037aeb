//! The operations of one group that are in flight on one rank, and the links that they use.

use crate::progress::operation::in_flight_op::InFlightOp;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use rustix::event::PollFlags;

use crate::error::Error;
use crate::link::endpoint::{Link, PeerLinks};
use crate::op::call::OpType;
use crate::progress::operation::collective::Collective;
use crate::progress::operation::transfer::Transfer;

/// An operation that runs in the background.
pub(crate) enum QueuedOp {
    Collective(Collective<'static>),
    Transfer(Transfer),
}

/// The operations in flight, in the order of their calls. Of each queue, only the first makes progress.
pub(crate) struct InFlight {
    /// Per peer.
    pub(crate) links: Vec<PeerLinks>,
    pub(crate) collectives: VecDeque<Collective<'static>>,
    /// Per peer: sends and receives.
    pub(crate) transfers: Vec<[VecDeque<Transfer>; 2]>,
}

impl InFlight {
    pub(crate) fn new(members: usize) -> Self {
        let links = (0..members).map(|_| PeerLinks::default()).collect();
        let transfers = (0..members).map(|_| Default::default()).collect();
        Self { links, collectives: VecDeque::new(), transfers }
    }

    pub(crate) fn take_up(&mut self, ops: Vec<QueuedOp>) {
        for op in ops {
            match op {
                QueuedOp::Collective(collective) => self.collectives.push_back(collective),
                QueuedOp::Transfer(transfer) => {
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
    ) -> impl Iterator<Item = (&'a dyn InFlightOp, bool)> {
        let inline = inline.map(|collective| (collective as &dyn InFlightOp, true));
        let collectives =
            self.collectives.iter().enumerate().map(|(place, op)| (op as &dyn InFlightOp, place == 0));
        let transfers = self.transfers.iter().flatten().flat_map(|queue| {
            queue.iter().enumerate().map(|(place, op)| (op as &dyn InFlightOp, place == 0))
        });
        inline.into_iter().chain(collectives).chain(transfers)
    }

    /// Takes out everything that is in flight.
    pub(crate) fn clear(&mut self) -> Vec<QueuedOp> {
        let collectives = self.collectives.drain(..).map(QueuedOp::Collective);
        let transfers = self.transfers.iter_mut().flatten().flat_map(|queue| queue.drain(..));
        collectives.chain(transfers.map(QueuedOp::Transfer)).collect()
    }

    pub(crate) fn arm(&mut self) {
        self.links.iter_mut().flat_map(PeerLinks::each).for_each(Link::arm);
    }

    pub(crate) fn disarm(&mut self) {
        self.links.iter_mut().flat_map(PeerLinks::each).for_each(Link::disarm);
    }

    /// The descriptors that anything in flight waits for.
    pub(crate) fn awaited<'a>(&'a self, inline: Option<&Collective<'_>>) -> Vec<(BorrowedFd<'a>, PollFlags)> {
        let collective = match inline {
            Some(collective) => collective.awaits(),
            None => self.collectives.front().map(Collective::awaits).unwrap_or_default(),
        };
        let polled = |link: &'a Option<Link>, (read, write)| link.as_ref()?.poll_for(read, write);
        let mut awaited: Vec<_> = collective
            .into_iter()
            .filter_map(|(peer, awaits)| polled(&self.links[peer].collective, awaits))
            .collect();
        for (links, [sends, receives]) in self.links.iter().zip(&self.transfers) {
            let awaits = |queue: &VecDeque<Transfer>| queue.front().map(Transfer::awaits);
            awaited.extend(awaits(sends).and_then(|awaits| polled(&links.outbound, awaits)));
            awaited.extend(awaits(receives).and_then(|awaits| polled(&links.inbound, awaits)));
        }
        awaited
    }
}

impl QueuedOp {
    pub(crate) fn as_in_flight(&self) -> &dyn InFlightOp {
        match self {
            QueuedOp::Collective(collective) => collective,
            QueuedOp::Transfer(transfer) => transfer,
        }
    }

    pub(crate) fn complete(self, outcome: Result<(), Error>) {
        match self {
            QueuedOp::Collective(collective) => collective.complete(outcome),
            QueuedOp::Transfer(transfer) => transfer.complete(outcome),
        }
    }
}

/// The queue of a transfer among those of its peer.
pub(crate) fn direction(operation: OpType) -> usize {
    usize::from(operation.is_receive())
}
