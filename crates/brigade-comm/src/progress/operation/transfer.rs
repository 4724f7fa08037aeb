//! One buffer on its way between two ranks.

use std::time::Instant;

use crate::error::Error;
use crate::flight::EntryId;
use crate::link::endpoint::Link;
use crate::op::call::Call;
use crate::op::header::encode;
use crate::op::plan::segment::InboundUse;
use crate::op::plan::segment::{Inbound, Next, Outbound};
use crate::process_group::work::OpBuffer;
use crate::progress::operation::in_flight_op::InFlightOp;
use crate::progress::operation::incoming::Incoming;
use crate::progress::operation::outgoing::Outgoing;
use crate::progress::operation::stop::{Stop, StopReason};

/// A send or a receive, with its buffer.
pub(crate) struct Transfer {
    pub(crate) call: Call,
    pub(crate) entry_id: EntryId,
    pub(crate) peer: usize,
    /// When it became the oldest of its pair and direction.
    pub(crate) started: Option<Instant>,
    group: u64,
    buffer: Box<dyn OpBuffer>,
    stream: Stream,
}

enum Stream {
    Out { outgoing: Outgoing, flushed: bool },
    In(Incoming),
}

impl Transfer {
    /// `call` says whether it is a send or a receive.
    pub(crate) fn new(
        group: u64,
        peer: usize,
        call: Call,
        entry_id: EntryId,
        buffer: Box<dyn OpBuffer>,
    ) -> Self {
        let stream = if call.operation.is_receive() {
            Stream::In(Incoming::new())
        } else {
            Stream::Out { outgoing: Outgoing::new(encode(group, &call)), flushed: false }
        };
        Self { call, entry_id, peer, started: None, group, buffer, stream }
    }

    /// Does what can be done without waiting. Returns whether there was progress.
    pub(crate) fn advance(&mut self, link: &mut Link) -> Result<bool, Stop> {
        match &mut self.stream {
            Stream::Out { outgoing, flushed } => {
                let bytes = self.buffer.bytes();
                let range = 0..bytes.len();
                let segment = |index| {
                    Next::from((index == 0).then(|| Outbound { range: range.clone(), when_final: false }))
                };
                let moved =
                    outgoing.advance(link, bytes, 0, u64::MAX, segment).map_err(Stop::link(self.peer))?;
                *flushed = link.flush().map_err(Stop::link(self.peer))?;
                Ok(moved)
            }
            Stream::In(incoming) => {
                let theirs = incoming.read_header(link, self.peer, self.group, &self.call)?;
                if let Some(theirs) = theirs {
                    self.buffer.reserve(theirs.bytes as usize).map_err(|error| {
                        let reason = StopReason::NoMemory(Box::new(theirs), error.to_string());
                        Stop { peer: self.peer, reason }
                    })?;
                }
                let bytes = self.buffer.bytes();
                let range = 0..bytes.len();
                let segment = |index| {
                    Next::from(
                        (index == 0).then(|| Inbound { range: range.clone(), purpose: InboundUse::Fill }),
                    )
                };
                let (moved, _) = incoming.fill(link, bytes, 0, segment).map_err(Stop::link(self.peer))?;
                link.flush().map_err(Stop::link(self.peer))?;
                Ok(moved || theirs.is_some())
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

    pub(crate) fn complete(self, outcome: Result<(), Error>) {
        self.buffer.complete(outcome);
    }
}

impl InFlightOp for Transfer {
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

    /// The peer, if it has not called its side, and if it has but stopped.
    fn missing(&self) -> (Vec<usize>, Vec<usize>) {
        match &self.stream {
            Stream::In(incoming) if incoming.has_arrived() => (vec![], vec![self.peer]),
            _ => (vec![self.peer], vec![]),
        }
    }

    fn traffic(&self) -> (u64, u64) {
        match &self.stream {
            Stream::Out { outgoing, .. } => (outgoing.payload(), 0),
            Stream::In(incoming) => (0, incoming.payload()),
        }
    }

    fn sent(&self, to: &dyn Fn(usize) -> bool) -> u64 {
        if to(self.peer) { self.traffic().0 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::flight::Recorder;
    use crate::link::shared::event_fd::EventFd;
    use crate::link::shared::segment::Segment;
    use crate::link::shared::{SharedLink, segment_bytes};
    use crate::op::call::OpType;
    use crate::op::dtype::{DType, ReduceOp};
    use crate::process_group::work::OwnedBuffer;

    const GROUP: u64 = 7;

    fn call(operation: OpType, bytes: u64) -> Call {
        Call { operation, sequence: 3, dtype: DType::U8, reduce: None, root: None, bytes }
    }

    /// How a receive of a message of at most `limit` bytes reacts to a header, and how much memory it has then.
    fn receive(limit: u64, group: u64, theirs: &Call) -> (Result<bool, Stop>, usize) {
        let segment = Arc::new(Segment::anonymous(segment_bytes(2)).unwrap());
        let event_fd = Arc::new(EventFd::new().unwrap());
        let link = |side| Link::Shared(SharedLink::new(segment.clone(), side, event_fd.clone()));
        let (mut near, mut far) = (link(0), link(1));
        let recorder = Recorder::new(0, 2, 0);
        let group_index = recorder.register(GROUP, "pair", &[0, 1]);
        let entry_id =
            recorder.called(group_index, &call(OpType::RecvMessage, limit), Some(1), Instant::now(), true);
        let buffer = OwnedBuffer::message().0;
        let mut transfer = Transfer::new(GROUP, 1, call(OpType::RecvMessage, limit), entry_id, buffer);
        assert!(!transfer.advance(&mut near).unwrap());
        assert_eq!((transfer.buffer.bytes().len(), transfer.awaits()), (0, (true, false)));
        far.write(&encode(group, theirs)).unwrap();
        far.flush().unwrap();
        let outcome = transfer.advance(&mut near);
        (outcome, transfer.buffer.bytes().len())
    }

    #[test]
    fn memory_that_there_is_not_is_an_error() {
        for bytes in [1 << 62, u64::MAX] {
            let sent = call(OpType::Send, bytes);
            match receive(u64::MAX, GROUP, &sent) {
                (Err(Stop { peer: 1, reason: StopReason::NoMemory(theirs, _) }), 0) => {
                    assert_eq!(*theirs, sent);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    proptest! {
        #[test]
        fn only_a_header_within_the_limit_gets_memory(
            limit in 0..200_000u64,
            bytes in prop_oneof![0..400_000u64, any::<u64>()],
            group in prop_oneof![9 => Just(GROUP), 1 => any::<u64>()],
            sequence in prop_oneof![9 => Just(3), 1 => any::<u64>()],
            operation in prop_oneof![9 => Just(OpType::Send), 1 => proptest::sample::select(&OpType::ALL[..])],
            dtype in prop_oneof![9 => Just(DType::U8), 1 => Just(DType::F32)],
            reduce in prop_oneof![9 => Just(None), 1 => Just(Some(ReduceOp::Sum))],
            root in prop_oneof![9 => Just(None), 1 => Just(Some(0))],
        ) {
            let theirs = Call { operation, sequence, dtype, reduce, root, bytes };
            let fits = bytes <= limit && group == GROUP && theirs == call(OpType::Send, bytes);
            let (outcome, allocated) = receive(limit, group, &theirs);
            prop_assert_eq!(outcome.is_ok(), fits);
            prop_assert_eq!(allocated as u64, if fits { bytes } else { 0 });
        }
    }
}
