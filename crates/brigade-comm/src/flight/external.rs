//! Records the operations that another library runs between the ranks of a group.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::record::Waiting;
use super::recorder::{EntryId, Recorder};
use crate::op::call::{Call, OpType};
use crate::op::dtype::{DType, ReduceOp};

/// Records what another library, such as NCCL, runs between the ranks of a group, so that the flight recorder can name it.
///
/// These operations have sequence numbers of their own, in the order in which they are recorded, which must be the same on
/// all ranks.
pub struct ExternalRecorder {
    recorder: Arc<Recorder>,
    group_index: usize,
    /// The others' world ranks.
    others: Vec<usize>,
    sequence: AtomicU64,
}

impl ExternalRecorder {
    pub(crate) fn new(recorder: Arc<Recorder>, number: u64, name: &str, members: &[usize]) -> Self {
        let group_index = recorder.register(number, name, members);
        let others = members.iter().copied().filter(|member| *member != recorder.rank).collect();
        Self { recorder, group_index, others, sequence: AtomicU64::new(0) }
    }

    /// An operation of this rank began, on `bytes` bytes of `dtype`. It is in flight until [`ExternalOp::done`].
    pub fn begin(&self, operation: OpType, bytes: u64, dtype: DType) -> ExternalOp {
        let reduces = matches!(operation, OpType::AllReduce | OpType::ReduceScatter);
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let reduce = reduces.then_some(ReduceOp::Sum);
        let call = Call { operation, sequence, dtype, reduce, root: None, bytes };
        // Transfers are recorded in a group of two ranks.
        let peer = operation.is_transfer().then(|| self.others.first().copied()).flatten();
        let entry_id = self.recorder.called(self.group_index, &call, peer, Instant::now(), true);
        let waiting = Waiting { awaited: true, absent: self.others.clone(), ..Waiting::default() };
        self.recorder.waits(entry_id, waiting.clone());
        ExternalOp { recorder: self.recorder.clone(), entry_id, waiting }
    }
}

/// An operation in the recorder.
pub struct ExternalOp {
    recorder: Arc<Recorder>,
    entry_id: EntryId,
    waiting: Waiting,
}

impl ExternalOp {
    /// Its deadline has passed: the failure that follows is due to it.
    pub fn overdue(&self) {
        self.recorder.waits(self.entry_id, Waiting { overdue: true, ..self.waiting.clone() });
    }

    /// It is complete, or has failed.
    pub fn done(&self, succeeded: bool) {
        self.recorder.finished(self.entry_id, succeeded, (0, 0));
    }
}
