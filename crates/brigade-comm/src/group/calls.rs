//! Turns calls into operations of the engine.

use std::sync::Arc;
use std::time::Duration;

use super::handle::Group;
use crate::Result;
use crate::error::Error;
use crate::op::call::OpType;
use crate::op::dtype::{Element, ReduceOp};
use crate::op::stats::Stats;
use crate::process_group::work::{OpBuffer, OwnedBuffer};
use crate::process_group::{OpArgs, ProcessGroup};
use crate::progress::submissions::CollectiveArgs;

impl Group {
    /// Runs a collective on a slice: on this thread, or after the operations that are still in flight.
    pub(super) fn run<T: Element>(
        &self,
        op_type: OpType,
        slice: &mut [T],
        reduce: Option<ReduceOp>,
        root: Option<usize>,
    ) -> Result<()> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(slice);
        let args = OpArgs { reduce, root, ..OpArgs::new(op_type, T::DTYPE) };
        let checked = self.check(args, bytes.len())?;
        if !self.0.progress.run_inline(&checked, bytes)? {
            let (buffer, work) = OwnedBuffer::sized(bytes.to_vec());
            self.0.progress.queue_collective(&checked, buffer);
            bytes.copy_from_slice(&work.wait()?);
        }
        Ok(())
    }

    /// Checks what can be checked without the other ranks.
    fn check(&self, args: OpArgs, bytes: usize) -> Result<CollectiveArgs> {
        let spec = self.spec();
        self.0.progress.context.fault.check(spec.world_rank())?;
        let call = args.call(bytes, spec.rank, &spec.members);
        let call = call.map_err(|reason| self.refuse(args.op_type, reason))?;
        Ok(CollectiveArgs { call, root: args.root.unwrap_or(0) })
    }

    /// Fails the world because of a call that cannot run.
    pub(super) fn refuse(&self, operation: OpType, reason: String) -> Error {
        let rank = self.spec().world_rank();
        let error = Error::InvalidArgument { rank, group: self.name().into(), operation, reason };
        self.0.progress.context.fault.raise(rank, error.clone());
        error
    }
}

impl ProcessGroup for Group {
    fn rank(&self) -> usize {
        self.spec().rank
    }

    fn size(&self) -> usize {
        self.spec().members.len()
    }

    fn name(&self) -> &str {
        &self.spec().name
    }

    fn spans_hosts(&self) -> bool {
        (1..self.size()).any(|rank| self.locality(rank).host != self.locality(0).host)
    }

    fn neighbours(&self) -> Option<usize> {
        self.0.progress.layout.neighbours()
    }

    fn start(&self, args: OpArgs, buffer: Box<dyn OpBuffer>) {
        match self.check(args, buffer.size()) {
            Err(error) => buffer.complete(Err(error)),
            Ok(checked) => match args.peer {
                None => self.0.progress.queue_collective(&checked, buffer),
                Some(peer) => self.0.progress.queue_transfer(checked.call, peer, buffer),
            },
        }
    }

    fn barrier(&self) -> Result<()> {
        self.run::<u8>(OpType::Barrier, &mut vec![0; self.0.progress.layout.barrier_bytes()], None, None)
    }

    fn split(&self, name: &str, color: u32, key: u32) -> Result<Arc<dyn ProcessGroup>> {
        Ok(Arc::new(self.split(name, color, key)?))
    }

    fn stats(&self) -> Stats {
        self.0.progress.counters.read()
    }

    fn op_timeout(&self) -> Duration {
        self.0.progress.context.timeout.now()
    }

    fn failure(&self) -> Option<Error> {
        self.0.progress.context.fault.error_for(self.spec().world_rank())
    }

    fn abort(&self, reason: &str) {
        let rank = self.spec().world_rank();
        self.0.progress.context.fault.raise(rank, Error::Aborted { rank, reason: reason.into() });
    }
}
