//! How calls reach the engine.

use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use crate::error::Error;
use crate::op::call::Call;
use crate::op::plan::Plan;
use crate::process_group::work::OpBuffer;
use crate::progress::context::GroupSpec;
use crate::progress::in_flight::{QueuedOp, direction};
use crate::progress::operation::collective::Collective;
use crate::progress::operation::transfer::Transfer;
use crate::progress::progress_engine::ProgressEngine;
use crate::progress::submissions::{CollectiveArgs, Submissions};
use crate::sync::lock;

impl ProgressEngine {
    /// Queues a collective.
    pub(crate) fn queue_collective(self: &Arc<Self>, args: &CollectiveArgs, buffer: Box<dyn OpBuffer>) {
        let mut submissions = lock(&self.submissions);
        let collective = self.collective(&mut submissions, args, buffer, false);
        self.submit(submissions, QueuedOp::Collective(collective));
    }

    /// Queues a send or a receive.
    pub(crate) fn queue_transfer(self: &Arc<Self>, mut call: Call, peer: usize, buffer: Box<dyn OpBuffer>) {
        let mut submissions = lock(&self.submissions);
        let next = &mut submissions.transfers[peer][direction(call.operation)];
        call.sequence = *next;
        *next += 1;
        let GroupSpec { group, members, .. } = &self.spec;
        let entry_id =
            self.context.recorder.called(self.group_index, &call, Some(members[peer]), Instant::now(), false);
        self.submit(submissions, QueuedOp::Transfer(Transfer::new(*group, peer, call, entry_id, buffer)));
    }

    /// The user has no more handles: the progress thread ends when all that was called is complete.
    pub(crate) fn close(&self) {
        lock(&self.submissions).closing = true;
        self.submitted.notify_all();
    }

    /// A collective; one that `starts` is the oldest of the group.
    pub(super) fn collective<'a>(
        &self,
        submissions: &mut Submissions,
        args: &CollectiveArgs,
        buffer: Box<dyn OpBuffer + 'a>,
        starts: bool,
    ) -> Collective<'a> {
        let GroupSpec { group, rank, .. } = &self.spec;
        let call = Call { sequence: submissions.collectives, ..args.call };
        submissions.collectives += 1;
        let plan = Plan::new(&call, &self.layout, *rank, args.root);
        let now = Instant::now();
        let entry_id = self.context.recorder.called(self.group_index, &call, None, now, starts);
        let started = starts.then_some(now);
        Collective::new(*group, *rank, call, entry_id, started, plan, buffer)
    }

    fn submit(self: &Arc<Self>, mut submissions: MutexGuard<'_, Submissions>, op: QueuedOp) {
        submissions.ops.push(op);
        submissions.outstanding += 1;
        if !submissions.has_thread {
            let progress = self.clone();
            let name = format!("brigade {}", self.spec.name);
            match std::thread::Builder::new().name(name).spawn(move || progress.run()) {
                Ok(_) => submissions.has_thread = true,
                Err(error) => {
                    let reason = error.to_string();
                    let error = Error::System { what: "start a progress thread", reason };
                    self.fault().raise(self.spec.world_rank(), error.clone());
                    for op in std::mem::take(&mut submissions.ops) {
                        submissions.outstanding -= 1;
                        self.context.recorder.finished(op.as_in_flight().entry_id(), false, (0, 0));
                        op.complete(Err(error.clone()));
                    }
                    return;
                }
            }
        }
        drop(submissions);
        self.submitted.notify_all();
        self.event_fd.notify();
    }
}
