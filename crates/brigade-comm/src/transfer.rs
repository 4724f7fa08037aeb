//! One buffer on its way between two ranks.

use std::time::Instant;

use crate::call::{Call, Operation, encode};
use crate::error::Error;
use crate::link::Link;
use crate::pending::Work;
use crate::plan::{Inbound, Outbound, Use};
use crate::stream::{Incoming, Outgoing, Stop};

/// A send or a receive, with its buffer.
pub(crate) struct Transfer {
    pub(crate) call: Call,
    pub(crate) peer: usize,
    /// When it became the oldest of its pair and direction.
    pub(crate) started: Option<Instant>,
    group: u64,
    work: Box<dyn Work>,
    stream: Stream,
}

enum Stream {
    Out { outgoing: Outgoing, flushed: bool },
    In(Incoming),
}

impl Transfer {
    /// `call` says whether it is a send or a receive.
    pub(crate) fn new(group: u64, peer: usize, call: Call, work: Box<dyn Work>) -> Self {
        let stream = match call.operation {
            Operation::Recv => Stream::In(Incoming::new()),
            _ => Stream::Out { outgoing: Outgoing::new(encode(group, &call)), flushed: false },
        };
        Self { call, peer, started: None, group, work, stream }
    }

    /// Does what can be done without waiting; says whether that was anything.
    pub(crate) fn advance(&mut self, link: &mut Link) -> Result<bool, Stop> {
        let bytes = self.work.bytes();
        let range = 0..bytes.len();
        match &mut self.stream {
            Stream::Out { outgoing, flushed } => {
                let segment =
                    |index| (index == 0).then(|| Outbound { range: range.clone(), when_final: false });
                let moved = outgoing.advance(link, bytes, 0, segment).map_err(Stop::link(self.peer))?;
                *flushed = link.flush().map_err(Stop::link(self.peer))?;
                Ok(moved)
            }
            Stream::In(incoming) => {
                let expected = Call { operation: Operation::Send, ..self.call };
                let greeted = incoming.greet(link, self.peer, self.group, &expected)?;
                let segment =
                    |index| (index == 0).then(|| Inbound { range: range.clone(), purpose: Use::Fill });
                let (moved, _) = incoming.fill(link, bytes, 0, segment).map_err(Stop::link(self.peer))?;
                link.flush().map_err(Stop::link(self.peer))?;
                Ok(moved || greeted)
            }
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        match &self.stream {
            Stream::Out { outgoing, flushed } => *flushed && outgoing.is_done(),
            Stream::In(incoming) => incoming.is_done(),
        }
    }

    /// Whether it waits for the peer to send, and to receive.
    pub(crate) fn awaits(&self) -> (bool, bool) {
        match &self.stream {
            Stream::Out { outgoing, .. } => (false, outgoing.is_blocked()),
            Stream::In(incoming) => (incoming.is_starved(), false),
        }
    }

    /// The peer, if it has not called its side, and if it has but stopped.
    pub(crate) fn missing(&self) -> (Vec<usize>, Vec<usize>) {
        match &self.stream {
            Stream::In(incoming) if incoming.has_arrived() => (vec![], vec![self.peer]),
            _ => (vec![self.peer], vec![]),
        }
    }

    /// Payload bytes sent so far.
    pub(crate) fn sent(&self) -> u64 {
        match &self.stream {
            Stream::Out { outgoing, .. } => outgoing.payload(),
            Stream::In(_) => 0,
        }
    }

    pub(crate) fn complete(self, outcome: Result<(), Error>) {
        self.work.complete(outcome);
    }
}
