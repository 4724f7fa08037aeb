//! Operations that another library runs between the ranks of a group, in the recorder.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::record::Waiting;
use super::recorder::{Recorder, Ticket};
use crate::call::{Call, Operation};
use crate::dtype::{DType, ReduceOp};

/// Notes what another library, as NCCL, runs between the ranks of a group, so that the flight recorder names it, too.
///
/// Its operations are numbered apart from the group's own, in the order in which they are noted, which must be the same on
/// all ranks.
pub struct Outside {
    recorder: Arc<Recorder>,
    place: usize,
    /// The others' world ranks.
    others: Vec<usize>,
    sequence: AtomicU64,
}

impl Outside {
    pub(crate) fn new(recorder: Arc<Recorder>, number: u64, name: &str, members: &[usize]) -> Self {
        let place = recorder.register(number, name, members);
        let others = members.iter().copied().filter(|member| *member != recorder.rank).collect();
        Self { recorder, place, others, sequence: AtomicU64::new(0) }
    }

    /// An operation of this rank began, on `bytes` bytes of `dtype`. It is in flight until [`Noted::done`].
    pub fn begin(&self, operation: Operation, bytes: u64, dtype: DType) -> Noted {
        let reduces = matches!(operation, Operation::AllReduce | Operation::ReduceScatter);
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let reduce = reduces.then_some(ReduceOp::Sum);
        let call = Call { operation, sequence, dtype, reduce, root: None, bytes };
        // Transfers are noted in a group of two.
        let peer = operation.is_transfer().then(|| self.others.first().copied()).flatten();
        let ticket = self.recorder.called(self.place, &call, peer, Instant::now(), true);
        let waiting = Waiting { awaited: true, absent: self.others.clone(), ..Waiting::default() };
        self.recorder.waits(ticket, waiting.clone());
        Noted { recorder: self.recorder.clone(), ticket, waiting }
    }
}

/// An operation in the recorder.
pub struct Noted {
    recorder: Arc<Recorder>,
    ticket: Ticket,
    waiting: Waiting,
}

impl Noted {
    /// Its time is over: what comes next is because of it.
    pub fn overdue(&self) {
        self.recorder.waits(self.ticket, Waiting { overdue: true, ..self.waiting.clone() });
    }

    /// It is complete, or has failed.
    pub fn done(&self, succeeded: bool) {
        self.recorder.finished(self.ticket, succeeded, (0, 0));
    }
}
