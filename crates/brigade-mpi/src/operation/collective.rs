//! One collective of one rank, from step to step.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::ops::Range;
use std::time::Instant;

use brigade_comm::engine::{HEADER_BYTES, decode_header, encode_header, reduce};
use brigade_comm::flight::ExternalOp;
use brigade_comm::{Call, OpBuffer};
use brigade_random::keyed_bytes;

use crate::library::{Op, Request, Tag};
use crate::membership::Membership;
use crate::operation::scratch::Scratch;
use crate::operation::steps::{Step, part, steps};
use crate::operation::stop::Stop;

/// A collective that has been called and is not complete.
pub(crate) struct Collective {
    pub(crate) call: Call,
    pub(crate) root: usize,
    pub(crate) since: Instant,
    pub(crate) flight: ExternalOp,
    pub(crate) buffer: Box<dyn OpBuffer>,
    steps: VecDeque<Step>,
    requests: Vec<Request>,
    has_begun: bool,
    scratch: Scratch,
    /// Lengths and places of parts, which MPI reads while it gathers them.
    lists: [Vec<c_int>; 2],
}

/// The buffer's memory.
#[derive(Clone, Copy)]
struct Memory {
    base: *mut u8,
    bytes: usize,
}

impl Memory {
    /// Where a range begins.
    fn at(self, range: &Range<usize>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= self.bytes);
        // SAFETY: it is inside the buffer.
        unsafe { self.base.add(range.start) }
    }
}

impl Collective {
    pub(crate) fn new(
        call: Call,
        root: usize,
        group: &Membership,
        buffer: Box<dyn OpBuffer>,
        flight: ExternalOp,
    ) -> Self {
        let steps = steps(&call, group.size(), group.order);
        Self {
            call,
            root,
            since: Instant::now(),
            flight,
            buffer,
            steps,
            requests: Vec::new(),
            has_begun: false,
            scratch: Scratch::default(),
            lists: [Vec::new(), Vec::new()],
        }
    }

    /// Goes on as far as it can without waiting; whether it is complete.
    pub(crate) fn advance(&mut self, group: &Membership) -> Result<bool, Stop> {
        loop {
            let Some(step) = self.steps.front().cloned() else { return Ok(true) };
            if !self.has_begun {
                self.has_begun = true;
                self.begin(&step, group)?;
            }
            while let Some(request) = self.requests.last_mut() {
                if !request.is_complete()? {
                    return Ok(false);
                }
                self.requests.pop();
            }
            self.finish(&step, group)?;
            self.steps.pop_front();
            self.has_begun = false;
        }
    }

    /// Whether MPI may use the memory still.
    pub(crate) fn is_in_use(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Gives the buffer; where MPI may still use its memory and that of the operation, neither is freed.
    pub(crate) fn end(self) -> (Box<dyn OpBuffer>, ExternalOp) {
        if !self.requests.is_empty() {
            std::mem::forget((self.scratch, self.lists));
        }
        (self.buffer, self.flight)
    }

    fn memory(&mut self) -> Memory {
        let bytes = self.buffer.bytes();
        Memory { base: bytes.as_mut_ptr(), bytes: bytes.len() }
    }

    fn slice(&self, size: usize, rank: usize) -> Range<usize> {
        let bytes = self.call.bytes as usize / size;
        rank * bytes..(rank + 1) * bytes
    }

    fn begin(&mut self, step: &Step, group: &Membership) -> Result<(), Stop> {
        let (rank, size, element) = (group.rank, group.size(), self.call.dtype.size());
        let comm = group.comm;
        let memory = self.memory();
        // SAFETY, of all calls of MPI below: the ranges are inside the buffer or the scratch memory, `Memory::at` and `take` check
        // that. Both stay until the requests are complete or are never freed, and `finish` is the next to use them.
        match step {
            Step::Agree => {
                let digest = self.digest(group);
                let place = self.scratch.take(2 * size_of::<u64>())?;
                self.scratch.words(2).copy_from_slice(&[digest, !digest]);
                let request = unsafe { comm.all_reduce(place, 2, crate::library::MpiDtype::U64, Op::Max) }?;
                self.requests.push(request);
            }
            Step::Compare => {
                let place = self.scratch.take(size * HEADER_BYTES)?;
                let header = encode_header(group.number, &self.call);
                unsafe { place.add(rank * HEADER_BYTES).copy_from(header.as_ptr(), HEADER_BYTES) };
                self.requests.push(unsafe { comm.all_gather(place, HEADER_BYTES) }?);
            }
            Step::EngineAllReduce(range) => {
                let Some(number) = group.order.number(&self.call) else { return Ok(()) };
                let mut place = memory.at(range);
                if !place.addr().is_multiple_of(element) {
                    let aligned = self.scratch.take(range.len())?;
                    unsafe { aligned.copy_from(place, range.len()) };
                    place = aligned;
                }
                let request = unsafe { comm.all_reduce(place, range.len() / element, number, Op::Sum) }?;
                self.requests.push(request);
            }
            Step::EngineReduceScatter => {
                let Some(number) = group.order.number(&self.call) else { return Ok(()) };
                let slice = memory.bytes / size;
                if slice / element > c_int::MAX as usize {
                    return Err(Stop::TooLarge { given: slice / element, most: c_int::MAX as usize });
                }
                let is_aligned = memory.base.addr().is_multiple_of(element);
                let room = slice.next_multiple_of(size_of::<u64>());
                let into = self.scratch.take(if is_aligned { slice } else { room + memory.bytes })?;
                let from = match is_aligned {
                    true => memory.base,
                    false => unsafe {
                        let copy = into.add(room);
                        copy.copy_from(memory.base, memory.bytes);
                        copy
                    },
                };
                let request = unsafe { comm.reduce_scatter(from, into, slice / element, number) }?;
                self.requests.push(request);
            }
            Step::GatherAndReduce(range) => {
                let place = self.scratch.take(size * range.len())?;
                unsafe { place.add(rank * range.len()).copy_from(memory.at(range), range.len()) };
                self.requests.push(unsafe { comm.all_gather(place, range.len()) }?);
            }
            Step::ReducePart(range) => {
                let parts = |rank| part(range, element, size, rank);
                self.exchange(group, memory, parts)?;
            }
            Step::ReduceSlice(range) => {
                let parts = |rank: usize| {
                    let slice = rank * (memory.bytes / size);
                    slice + range.start..slice + range.end
                };
                self.exchange(group, memory, parts)?;
            }
            Step::GatherParts(range) => {
                let parts: Vec<_> = (0..size).map(|rank| part(range, element, size, rank)).collect();
                let counts = parts.iter().map(|part| part.len() as c_int).collect();
                let places = parts.iter().map(|part| (part.start - range.start) as c_int).collect();
                self.lists = [counts, places];
                let [counts, places] = &self.lists;
                let request = unsafe { comm.all_gather_v(memory.at(range), counts, places) }?;
                self.requests.push(request);
            }
            Step::AllGather => {
                let slice = memory.bytes / size;
                self.requests.push(unsafe { comm.all_gather(memory.base, slice) }?);
            }
            Step::Gather if rank == self.root => {
                for peer in (0..size).filter(|peer| *peer != rank) {
                    let slice = self.slice(size, peer);
                    let (into, bytes) = (memory.at(&slice), slice.len());
                    unsafe { comm.receive(into, bytes, peer, Tag::Part, &mut self.requests) }?;
                }
            }
            Step::Gather => {
                let slice = self.slice(size, rank);
                let (from, bytes) = (memory.at(&slice), slice.len());
                unsafe { comm.send(from, bytes, self.root, Tag::Part, &mut self.requests) }?;
            }
            Step::Broadcast(range) => {
                self.requests.push(unsafe { comm.broadcast(memory.at(range), range.len(), self.root) }?);
            }
            Step::AllToAll => {
                let copy = self.scratch.take(memory.bytes)?;
                unsafe { copy.copy_from(memory.base, memory.bytes) };
                for peer in (0..size).filter(|peer| *peer != rank) {
                    let slice = self.slice(size, peer);
                    let (into, from) = (memory.at(&slice), unsafe { copy.add(slice.start) });
                    unsafe {
                        comm.receive(into, slice.len(), peer, Tag::Part, &mut self.requests)?;
                        comm.send(from, slice.len(), peer, Tag::Part, &mut self.requests)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Sends each rank its part, and receives this rank's own part of all others into the scratch memory, in rank order.
    fn exchange(
        &mut self,
        group: &Membership,
        memory: Memory,
        parts: impl Fn(usize) -> Range<usize>,
    ) -> Result<(), Stop> {
        let own = parts(group.rank).len();
        let others = || (0..group.size()).filter(|peer| *peer != group.rank);
        let place = self.scratch.take(own * (group.size() - 1))?;
        for (index, peer) in others().enumerate() {
            // SAFETY: as in `begin`.
            unsafe {
                let into = place.add(index * own);
                group.comm.receive(into, own, peer, Tag::Part, &mut self.requests)?;
            }
        }
        for peer in others() {
            let part = parts(peer);
            let from = memory.at(&part);
            // SAFETY: as in `begin`.
            unsafe { group.comm.send(from, part.len(), peer, Tag::Part, &mut self.requests) }?;
        }
        Ok(())
    }

    fn finish(&mut self, step: &Step, group: &Membership) -> Result<(), Stop> {
        let (rank, size, element) = (group.rank, group.size(), self.call.dtype.size());
        match step {
            Step::Agree => {
                let digest = self.digest(group);
                if self.scratch.words(2) != [digest, !digest] {
                    self.steps = [Step::Agree, Step::Compare].into();
                }
            }
            Step::Compare => return Err(self.difference(group)),
            Step::EngineAllReduce(range) => {
                let memory = &mut self.buffer.bytes()[range.clone()];
                if !memory.as_ptr().addr().is_multiple_of(element) {
                    memory.copy_from_slice(self.scratch.bytes(range.len()));
                }
            }
            Step::EngineReduceScatter => {
                let slice = self.slice(size, rank);
                let sum = self.scratch.bytes(slice.len());
                self.buffer.bytes()[slice].copy_from_slice(sum);
            }
            Step::GatherAndReduce(range) => {
                let mut all: Vec<_> = self.scratch.bytes(size * range.len()).chunks(range.len()).collect();
                all.remove(rank);
                reduce_into(&self.call, rank, &mut self.buffer.bytes()[range.clone()], &all);
            }
            Step::ReducePart(range) => self.reduce_exchanged(group, part(range, element, size, rank)),
            Step::ReduceSlice(range) => {
                let slice = self.slice(size, rank).start;
                self.reduce_exchanged(group, slice + range.start..slice + range.end);
            }
            _ => {}
        }
        Ok(())
    }

    /// Reduces what [`exchange`](Self::exchange) has received.
    fn reduce_exchanged(&mut self, group: &Membership, own: Range<usize>) {
        if own.is_empty() {
            return;
        }
        let others = self.scratch.bytes(own.len() * (group.size() - 1)).chunks(own.len());
        let others: Vec<_> = others.collect();
        reduce_into(&self.call, group.rank, &mut self.buffer.bytes()[own], &others);
    }

    fn digest(&self, group: &Membership) -> u64 {
        keyed_bytes(0, &encode_header(group.number, &self.call))
    }

    /// The first rank with another call.
    fn difference(&self, group: &Membership) -> Stop {
        let headers = self.scratch.bytes(group.size() * HEADER_BYTES).as_chunks::<HEADER_BYTES>().0;
        let own = encode_header(group.number, &self.call);
        let other = headers.iter().position(|header| *header != own).unwrap_or(group.rank);
        match decode_header(&headers[other]) {
            Ok((_, theirs)) => Stop::OtherCall { peer: other, theirs },
            Err(reason) => Stop::Header { peer: other, reason },
        }
    }
}

/// Reduces other ranks' bytes into this one's.
fn reduce_into(call: &Call, rank: usize, own: &mut [u8], others: &[&[u8]]) {
    if let Some(op) = call.reduce {
        reduce(call.dtype, op, rank, own, others);
    }
}
