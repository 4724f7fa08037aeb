//! What the ranks of a world in memory share.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::execute::execute;
use super::queue::{Posted, Sent};
use super::state::{GroupState, Next};
use crate::Result;
use crate::error::Error;
use crate::fault::Fault;
use crate::op::call::{Call, OpType};
use crate::op::plan::Plan;
use crate::op::plan::layout::Layout;
use crate::op::stats::Stats;
use crate::process_group::work::OpBuffer;
use crate::sync::lock;
use crate::timeouts::{OpTimeout, Timeouts};

/// The longest wait between two checks of the deadlines.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The groups of a world, and its first failure.
pub(super) struct SharedState {
    fault: Fault,
    timeout: OpTimeout,
    groups: Mutex<HashMap<u64, GroupState>>,
}

impl SharedState {
    pub(super) fn new(timeouts: Timeouts) -> Self {
        Self { fault: Fault::default(), timeout: OpTimeout::new(timeouts), groups: Mutex::default() }
    }

    /// A rank becomes a member of a group.
    pub(super) fn join_group(&self, group: u64, name: &str, members: &[usize]) {
        lock(&self.groups).entry(group).or_insert_with(|| GroupState::new(name, members));
    }

    /// A rank makes no more calls in a group.
    pub(super) fn leave_group(&self, group: u64, rank: usize) {
        let mut groups = lock(&self.groups);
        let Some(state) = groups.get_mut(&group) else { return };
        let failure = state.leave(rank);
        let over = if state.is_over() { groups.remove(&group) } else { None };
        let Some((rank, error)) = failure else { return };
        self.fault.raise(rank, error);
        drop(groups);
        self.clear();
        self.end(over.map(|mut state| state.clear()).unwrap_or_default());
    }

    /// Fails when the world has.
    pub(super) fn check(&self, world_rank: usize) -> Result<()> {
        self.fault.check(world_rank)
    }

    pub(super) fn op_timeout(&self) -> Duration {
        self.timeout.now()
    }

    pub(super) fn stats(&self, group: u64, rank: usize) -> Stats {
        lock(&self.groups).get(&group).map(|state| state.counters(rank).read()).unwrap_or_default()
    }

    /// Fails the world: everything that is in flight, and what is called later.
    pub(super) fn fail(&self, world_rank: usize, error: Error) {
        self.fault.raise(world_rank, error);
        self.clear();
    }

    /// Ends everything that is in flight, if the world has failed.
    fn clear(&self) {
        let buffers: Vec<_> = lock(&self.groups).values_mut().flat_map(GroupState::clear).collect();
        self.end(buffers);
    }

    /// Gives buffers back with the world's failure.
    fn end(&self, buffers: Vec<(usize, Box<dyn OpBuffer>)>) {
        for (rank, buffer) in buffers {
            buffer.complete(self.fault.check(rank));
        }
    }

    /// Checks the deadlines of a rank's operations; returns the time until the next check.
    pub(super) fn poll(&self, group: u64, rank: usize, world_rank: usize) -> Duration {
        let limit = self.timeout.now();
        let left = lock(&self.groups).get(&group).map_or(Ok(limit), |state| state.time_left(rank, limit));
        match left {
            Ok(left) => left.min(POLL_INTERVAL),
            Err(error) => {
                self.fail(world_rank, error);
                Duration::ZERO
            }
        }
    }

    /// A rank hands over the buffer of an operation.
    pub(super) fn post(
        &self,
        group: u64,
        rank: usize,
        peer: Option<usize>,
        call: Call,
        buffer: Box<dyn OpBuffer>,
    ) {
        let posted = Posted { call, buffer, since: Instant::now() };
        let mut groups = lock(&self.groups);
        // What is called after a failure never completes: a mismatch is raised under the lock that found it. And a failure is
        // raised before it ends what is in flight, so that nothing is left behind here.
        let failed = groups.get(&group).and_then(|state| self.fault.error_for(state.members()[rank]));
        let state = match (failed, groups.get_mut(&group)) {
            (None, Some(state)) => state,
            (Some(error), _) => {
                drop(groups);
                return posted.buffer.complete(Err(error));
            }
            // A group exists as long as one of its members does.
            (None, None) => return,
        };
        let next = match peer {
            None => state.post_collective(rank, posted),
            Some(peer) => state.post_transfer(rank, peer, posted),
        };
        let world_rank = state.members()[rank];
        match next {
            Next::Wait => {}
            Next::Fail(error) => {
                self.fault.raise(world_rank, error);
                drop(groups);
                self.clear();
            }
            Next::Copied(buffer) => {
                state.counters(rank).add(OpType::Send, buffer.size() as u64);
                drop(groups);
                buffer.complete(Ok(()));
            }
            Next::Collective(posted) => {
                let root = posted[0].call.root;
                let root = state.members().iter().position(|member| Some(*member) == root).unwrap_or(0);
                let layout = Layout::on_one_host(posted.len());
                for (rank, posted) in posted.iter().enumerate() {
                    let plan = Plan::new(&posted.call, &layout, rank, root);
                    state.counters(rank).add(posted.call.operation, plan.payload());
                }
                drop(groups);
                self.run_collective(world_rank, root, posted);
            }
            Next::Transfer { from, to, sent, receive } => {
                let (ours, theirs) = (receive.call, *sent.call());
                if !ours.accepts(&theirs) {
                    let error = state.mismatch((to, ours), (from, theirs));
                    let (receiver, sender) = (state.members()[to], state.members()[from]);
                    self.fault.raise(receiver, error);
                    drop(groups);
                    self.clear();
                    receive.buffer.complete(self.check(receiver));
                    if let Sent::Waiting(Posted { buffer, .. }) = sent {
                        buffer.complete(self.check(sender));
                    }
                    return;
                }
                if let Sent::Waiting(_) = sent {
                    state.counters(from).add(OpType::Send, theirs.bytes);
                }
                state.counters(to).add(ours.operation, 0);
                let (group, ranks) = (state.name().to_owned(), (state.members()[from], state.members()[to]));
                drop(groups);
                self.run_transfer(group, ranks, sent, receive);
            }
        }
    }

    /// Computes the result of a collective in all ranks' buffers, and gives them back.
    fn run_collective(&self, world_rank: usize, root: usize, mut posted: Vec<Posted>) {
        let call = posted[0].call;
        let result = catch_unwind(AssertUnwindSafe(|| {
            let mut buffers: Vec<&mut [u8]> = posted.iter_mut().map(|posted| posted.buffer.bytes()).collect();
            execute(&call, root, &mut buffers);
        }));
        let outcome = result.map_err(|_| self.panicked(world_rank, &call));
        for posted in posted {
            posted.buffer.complete(outcome.clone());
        }
    }

    /// Copies a message to its receiver, and gives both their buffers back.
    fn run_transfer(&self, group: String, (from, to): (usize, usize), sent: Sent, mut receive: Posted) {
        let (ours, theirs) = (receive.call, *sent.call());
        let (bytes, mut sender) = match sent {
            Sent::Copied { bytes, .. } => (bytes, None),
            Sent::Waiting(Posted { buffer, .. }) => (Vec::new(), Some(buffer)),
        };
        let copy = AssertUnwindSafe(|| {
            if ours.operation == OpType::RecvMessage {
                receive.buffer.reserve(theirs.bytes as usize)?;
            }
            let bytes = sender.as_mut().map_or(&bytes[..], |buffer| buffer.bytes());
            receive.buffer.bytes().copy_from_slice(bytes);
            Ok::<_, std::collections::TryReserveError>(())
        });
        let outcome = match catch_unwind(copy) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                let (ours, theirs) = (Box::new(ours), Box::new(theirs));
                let reason = error.to_string();
                self.fail(to, Error::NoMemory { group, rank: to, peer: from, ours, theirs, reason });
                Err(())
            }
            Err(_) => {
                self.panicked(to, &ours);
                Err(())
            }
        };
        let outcome_of = |rank| outcome.or_else(|()| self.check(rank));
        receive.buffer.complete(outcome_of(to));
        if let Some(buffer) = sender {
            buffer.complete(outcome_of(from));
        }
    }

    /// Fails the world because a buffer panicked on this thread.
    fn panicked(&self, rank: usize, call: &Call) -> Error {
        let error = Error::Aborted { rank, reason: format!("a buffer of {call} panicked") };
        self.fail(rank, error.clone());
        error
    }
}
