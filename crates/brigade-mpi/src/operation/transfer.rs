//! Sends and receives of one pair of ranks.

use std::collections::VecDeque;
use std::time::Instant;

use brigade_comm::engine::{HEADER_BYTES, decode_header, encode_header};
use brigade_comm::flight::ExternalOp;
use brigade_comm::{Call, OpBuffer, OpType};

use crate::library::{Request, Tag};
use crate::membership::Membership;
use crate::operation::stop::Stop;

/// A send or a receive that has been called and is not complete. What a send gives goes out as two messages, a header and the
/// bytes; a receive takes the header, compares the calls, makes room, and takes the bytes.
pub(crate) struct Transfer {
    pub(crate) call: Call,
    pub(crate) since: Instant,
    pub(crate) flight: ExternalOp,
    pub(crate) buffer: Box<dyn OpBuffer>,
    peer: usize,
    stage: Stage,
    requests: Vec<Request>,
    header: Box<[u8; HEADER_BYTES]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Called,
    Header,
    Payload,
}

impl Transfer {
    pub(crate) fn new(call: Call, peer: usize, buffer: Box<dyn OpBuffer>, flight: ExternalOp) -> Self {
        Self {
            call,
            since: Instant::now(),
            flight,
            buffer,
            peer,
            stage: Stage::Called,
            requests: Vec::new(),
            header: Box::new([0; HEADER_BYTES]),
        }
    }

    /// Goes on as far as it can without waiting; whether it is complete.
    pub(crate) fn advance(&mut self, group: &Membership) -> Result<bool, Stop> {
        loop {
            while let Some(request) = self.requests.last_mut() {
                if !request.is_complete()? {
                    return Ok(false);
                }
                self.requests.pop();
            }
            match (self.stage, self.call.operation) {
                (Stage::Called, OpType::Send) => self.send(group)?,
                (Stage::Called, _) => self.receive_header(group)?,
                (Stage::Header, _) => self.receive_payload(group)?,
                (Stage::Payload, _) => return Ok(true),
            }
        }
    }

    fn send(&mut self, group: &Membership) -> Result<(), Stop> {
        self.stage = Stage::Payload;
        *self.header = encode_header(group.number, &self.call);
        let payload = self.buffer.bytes();
        let (peer, requests) = (self.peer, &mut self.requests);
        // SAFETY: header and buffer stay until the requests are complete, or are never freed.
        unsafe {
            group.comm.send(self.header.as_ptr(), HEADER_BYTES, peer, Tag::Header, requests)?;
            group.comm.send(payload.as_ptr(), payload.len(), peer, Tag::Payload, requests)?;
        }
        Ok(())
    }

    fn receive_header(&mut self, group: &Membership) -> Result<(), Stop> {
        self.stage = Stage::Header;
        let place = self.header.as_mut_ptr();
        // SAFETY: as in `send`.
        unsafe { group.comm.receive(place, HEADER_BYTES, self.peer, Tag::Header, &mut self.requests) }?;
        Ok(())
    }

    fn receive_payload(&mut self, group: &Membership) -> Result<(), Stop> {
        self.stage = Stage::Payload;
        let peer = self.peer;
        let theirs = match decode_header(&self.header) {
            Ok((number, theirs)) if number == group.number => theirs,
            Ok(_) => return Err(Stop::Header { peer, reason: "a header belongs to another group".into() }),
            Err(reason) => return Err(Stop::Header { peer, reason }),
        };
        if !self.call.accepts(&theirs) {
            return Err(Stop::OtherCall { peer, theirs });
        }
        if self.call.operation == OpType::RecvMessage {
            let none = |error: std::collections::TryReserveError| error.to_string();
            let room = self.buffer.reserve(theirs.bytes as usize).map_err(none);
            room.map_err(|reason| Stop::NoMemory { peer, theirs, reason })?;
        }
        let payload = self.buffer.bytes();
        let (place, bytes) = (payload.as_mut_ptr(), payload.len());
        // SAFETY: as in `send`.
        unsafe { group.comm.receive(place, bytes, peer, Tag::Payload, &mut self.requests) }?;
        Ok(())
    }

    /// Whether MPI may use the memory still.
    pub(crate) fn is_in_use(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Gives the buffer; where MPI may still use the header's memory, it is never freed.
    pub(crate) fn end(self) -> (Box<dyn OpBuffer>, ExternalOp) {
        if !self.requests.is_empty() {
            std::mem::forget(self.header);
        }
        (self.buffer, self.flight)
    }
}

/// The transfers of one direction between this rank and another that are not complete, in the order of their calls.
pub(crate) struct Queue {
    pub(crate) transfers: VecDeque<Transfer>,
    called: u64,
    /// When one last became complete.
    pub(crate) progressed: Instant,
}

impl Queue {
    pub(crate) fn new() -> Self {
        Self { transfers: VecDeque::new(), called: 0, progressed: Instant::now() }
    }

    pub(crate) fn push(&mut self, mut transfer: Transfer) {
        transfer.call.sequence = self.called;
        self.called += 1;
        self.transfers.push_back(transfer);
    }

    /// Goes on as far as it can. All sends go out at once; a receive begins when those before it are complete. Gives those that
    /// are complete, and the call that stopped, if one did.
    pub(crate) fn advance(&mut self, group: &Membership) -> (Vec<Transfer>, Option<(Call, Stop)>) {
        let mut complete = Vec::new();
        let mut index = 0;
        while let Some(transfer) = self.transfers.get_mut(index) {
            match transfer.advance(group) {
                Err(stop) => return (complete, Some((transfer.call, stop))),
                Ok(true) if index == 0 => {
                    complete.extend(self.transfers.pop_front());
                    self.progressed = Instant::now();
                }
                Ok(_) if transfer.call.operation == OpType::Send => index += 1,
                Ok(_) => break,
            }
        }
        (complete, None)
    }
}
