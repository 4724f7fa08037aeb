//! Transfers of one pair of ranks in one direction.

use std::collections::VecDeque;
use std::time::Instant;

use crate::op::call::{Call, OpType};
use crate::process_group::work::OpBuffer;

/// Messages up to this size are copied when they are sent, so that the sender has its buffer back at once. Longer ones wait
/// for the receiver.
const EAGER_BYTES: usize = 256 << 10;

/// An operation that has been handed over.
pub(super) struct Posted {
    pub(super) call: Call,
    pub(super) buffer: Box<dyn OpBuffer>,
    /// When it was called.
    pub(super) since: Instant,
}

/// A message on its way.
pub(super) enum Sent {
    /// The sender has its buffer back.
    Copied {
        call: Call,
        bytes: Vec<u8>,
    },
    Waiting(Posted),
}

impl Sent {
    pub(super) fn call(&self) -> &Call {
        match self {
            Self::Copied { call, .. } | Self::Waiting(Posted { call, .. }) => call,
        }
    }
}

/// The transfers from one rank to another that are not complete, in the order of their calls.
pub(super) struct Queue {
    sends: VecDeque<Sent>,
    receives: VecDeque<Posted>,
    /// How many sends and receives have been called.
    called: [u64; 2],
    /// When a transfer last became complete.
    progressed: Instant,
}

impl Queue {
    pub(super) fn new(now: Instant) -> Self {
        Self { sends: VecDeque::new(), receives: VecDeque::new(), called: [0; 2], progressed: now }
    }

    /// Adds a send or a receive. Returns a sender's buffer that is no longer needed.
    pub(super) fn post(&mut self, mut posted: Posted) -> Option<Box<dyn OpBuffer>> {
        let called = &mut self.called[usize::from(posted.call.operation != OpType::Send)];
        posted.call.sequence = *called;
        *called += 1;
        if posted.call.operation != OpType::Send {
            self.receives.push_back(posted);
            return None;
        }
        if self.receives.is_empty() && posted.buffer.size() <= EAGER_BYTES {
            let Posted { call, mut buffer, .. } = posted;
            let bytes = buffer.bytes().to_vec();
            self.sends.push_back(Sent::Copied { call, bytes });
            return Some(buffer);
        }
        self.sends.push_back(Sent::Waiting(posted));
        None
    }

    /// A send with its receive, if both are there.
    pub(super) fn take_pair(&mut self) -> Option<(Sent, Posted)> {
        if self.sends.is_empty() || self.receives.is_empty() {
            return None;
        }
        self.progressed = Instant::now();
        self.sends.pop_front().zip(self.receives.pop_front())
    }

    /// Whether anything has been sent and not been received.
    pub(super) fn has_message(&self) -> bool {
        !self.sends.is_empty()
    }

    /// The call of the oldest receive, or of the oldest send that waits for its receiver.
    pub(super) fn waiting(&self, receives: bool) -> Option<&Call> {
        self.oldest(receives).map(|posted| &posted.call)
    }

    /// The same, and since when it is the oldest.
    pub(super) fn waiting_since(&self, receives: bool) -> Option<(&Call, Instant)> {
        self.oldest(receives).map(|posted| (&posted.call, posted.since.max(self.progressed)))
    }

    fn oldest(&self, receives: bool) -> Option<&Posted> {
        if receives {
            return self.receives.front();
        }
        self.sends.iter().find_map(|sent| match sent {
            Sent::Waiting(posted) => Some(posted),
            Sent::Copied { .. } => None,
        })
    }

    /// Takes out the buffers of the sends and of the receives that are not complete.
    pub(super) fn clear(&mut self) -> [Vec<Box<dyn OpBuffer>>; 2] {
        let sends = self.sends.drain(..).filter_map(|sent| match sent {
            Sent::Waiting(posted) => Some(posted.buffer),
            Sent::Copied { .. } => None,
        });
        [sends.collect(), self.receives.drain(..).map(|posted| posted.buffer).collect()]
    }
}
