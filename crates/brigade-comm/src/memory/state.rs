//! What the ranks of one group have handed over.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::queue::{Posted, Queue, Sent};
use crate::error::{Diagnosis, Error};
use crate::op::call::{Call, OpType};
use crate::op::stats::Counters;
use crate::process_group::work::OpBuffer;

/// What is to be done after a rank has handed over a buffer.
pub(super) enum Next {
    /// Nothing: others are awaited.
    Wait,
    /// All buffers of a collective are there, in the order of the ranks.
    Collective(Vec<Posted>),
    /// A message and its receive are there.
    Transfer { from: usize, to: usize, sent: Sent, receive: Posted },
    /// The sender has its buffer back.
    Copied(Box<dyn OpBuffer>),
    /// The world fails.
    Fail(Error),
}

/// The operations of one group that are not complete.
pub(super) struct GroupState {
    name: String,
    /// The world ranks of the members.
    members: Vec<usize>,
    /// In call order, from the oldest that is not complete.
    collectives: VecDeque<Vec<Option<Posted>>>,
    /// How many collectives are complete.
    completed: u64,
    /// When a collective last became complete.
    progressed: Instant,
    /// By sender and receiver.
    queues: HashMap<(usize, usize), Queue>,
    counters: Vec<Counters>,
    left: Vec<bool>,
}

impl GroupState {
    pub(super) fn new(name: &str, members: &[usize]) -> Self {
        Self {
            name: name.into(),
            members: members.into(),
            collectives: VecDeque::new(),
            completed: 0,
            progressed: Instant::now(),
            queues: HashMap::new(),
            counters: members.iter().map(|_| Counters::default()).collect(),
            left: vec![false; members.len()],
        }
    }

    pub(super) fn counters(&self, rank: usize) -> &Counters {
        &self.counters[rank]
    }

    pub(super) fn members(&self) -> &[usize] {
        &self.members
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// A rank calls a collective.
    pub(super) fn post_collective(&mut self, rank: usize, mut posted: Posted) -> Next {
        let size = self.members.len();
        let index = self.collectives.iter().take_while(|slots| slots[rank].is_some()).count();
        if index == self.collectives.len() {
            self.collectives.push_back((0..size).map(|_| None).collect());
        }
        posted.call.sequence = self.completed + index as u64;
        let slots = &mut self.collectives[index];
        let first = slots.iter().enumerate().find_map(|(peer, slot)| Some((peer, slot.as_ref()?.call)));
        let ours = posted.call;
        slots[rank] = Some(posted);
        if let Some((peer, theirs)) = first.filter(|(_, theirs)| *theirs != ours) {
            return Next::Fail(self.mismatch((rank, ours), (peer, theirs)));
        }
        if slots.iter().all(Option::is_some) {
            // Ranks call in order, so that the first to be complete is the oldest.
            let slots = self.collectives.remove(index).unwrap_or_default();
            self.completed += 1;
            self.progressed = Instant::now();
            return Next::Collective(slots.into_iter().flatten().collect());
        }
        let gone = (0..size).find(|peer| slots[*peer].is_none() && self.left[*peer]);
        gone.map_or(Next::Wait, |peer| Next::Fail(self.peer_left(rank, peer, ours)))
    }

    /// A rank calls a send or a receive.
    pub(super) fn post_transfer(&mut self, rank: usize, peer: usize, posted: Posted) -> Next {
        let call = posted.call;
        let receives = call.operation != OpType::Send;
        let (from, to) = if receives { (peer, rank) } else { (rank, peer) };
        let queue = self.queues.entry((from, to)).or_insert_with(|| Queue::new(posted.since));
        let copied = queue.post(posted);
        if let Some((sent, receive)) = queue.take_pair() {
            return Next::Transfer { from, to, sent, receive };
        }
        if let Some(buffer) = copied {
            return Next::Copied(buffer);
        }
        match queue.waiting(receives).copied() {
            Some(call) if self.left[peer] => Next::Fail(self.peer_left(rank, peer, call)),
            _ => Next::Wait,
        }
    }

    /// A rank makes no more calls. Returns the failure of a rank that still waits for it.
    pub(super) fn leave(&mut self, rank: usize) -> Option<(usize, Error)> {
        self.left[rank] = true;
        for slots in self.collectives.iter().filter(|slots| slots[rank].is_none()) {
            let waits = slots.iter().enumerate().find_map(|(peer, slot)| Some((peer, slot.as_ref()?.call)));
            if let Some((waiter, call)) = waits {
                return Some((self.members[waiter], self.peer_left(waiter, rank, call)));
            }
        }
        self.queues.iter().find_map(|((from, to), queue)| {
            let waits = |waiter: usize, receives| {
                let call = *queue.waiting(receives)?;
                Some((self.members[waiter], self.peer_left(waiter, rank, call)))
            };
            match rank {
                rank if rank == *from && !queue.has_message() => waits(*to, true),
                rank if rank == *to => waits(*from, false),
                _ => None,
            }
        })
    }

    /// Whether all ranks have left.
    pub(super) fn is_over(&self) -> bool {
        self.left.iter().all(|left| *left)
    }

    /// How long a rank may still wait for its oldest operations, or the failure of one whose deadline has passed.
    pub(super) fn time_left(&self, rank: usize, limit: Duration) -> Result<Duration, Error> {
        let now = Instant::now();
        let collective = self.collectives.front().and_then(|slots| {
            let Posted { call, since, .. } = slots[rank].as_ref()?;
            let absent = (0..slots.len()).filter(|peer| slots[*peer].is_none()).collect();
            Some((*call, (*since).max(self.progressed), absent))
        });
        let transfers = self.queues.iter().filter_map(|((from, to), queue)| {
            let (receives, peer) = match rank {
                rank if rank == *from => (false, *to),
                rank if rank == *to => (true, *from),
                _ => return None,
            };
            let (call, since) = queue.waiting_since(receives)?;
            Some((*call, since, vec![peer]))
        });
        let mut least = limit;
        for (call, since, absent) in collective.into_iter().chain(transfers) {
            let left = limit.saturating_sub(now.saturating_duration_since(since));
            if left.is_zero() {
                return Err(Error::Timeout {
                    group: self.name.clone(),
                    rank: self.members[rank],
                    call: Box::new(call),
                    waited: limit,
                    absent: absent.into_iter().map(|peer| self.members[peer]).collect(),
                    stalled: Vec::new(),
                    diagnosis: Box::new(Diagnosis::default()),
                });
            }
            least = least.min(left);
        }
        Ok(least)
    }

    /// Takes out all buffers, with the world ranks that they belong to.
    pub(super) fn clear(&mut self) -> Vec<(usize, Box<dyn OpBuffer>)> {
        let members = &self.members;
        let mut buffers = Vec::new();
        for slots in self.collectives.drain(..) {
            let owned = slots.into_iter().zip(members).filter_map(|(slot, rank)| Some((*rank, slot?.buffer)));
            buffers.extend(owned);
        }
        for ((from, to), queue) in &mut self.queues {
            let [sends, receives] = queue.clear();
            buffers.extend(sends.into_iter().map(|buffer| (members[*from], buffer)));
            buffers.extend(receives.into_iter().map(|buffer| (members[*to], buffer)));
        }
        buffers
    }

    pub(super) fn mismatch(&self, (rank, ours): (usize, Call), (peer, theirs): (usize, Call)) -> Error {
        Error::Mismatch {
            group: self.name.clone(),
            rank: self.members[rank],
            peer: self.members[peer],
            ours: Box::new(ours),
            theirs: Box::new(theirs),
        }
    }

    fn peer_left(&self, rank: usize, peer: usize, call: Call) -> Error {
        Error::PeerLeft {
            group: self.name.clone(),
            rank: self.members[rank],
            peer: self.members[peer],
            call: Box::new(call),
        }
    }
}
