//! From a call to an operation of the engine: what can be checked without the other ranks, and how the call is started.

use super::handle::Group;
use crate::Result;
use crate::error::Error;
use crate::op::buffer::HostBuffer;
use crate::op::call::{Call, OpType};
use crate::op::dtype::{DType, Element, ReduceOp};
use crate::progress::context::GroupSpec;
use crate::progress::operation::work::{OpBuffer, OwnedBuffer, Work};
use crate::progress::submissions::CollectiveArgs;

impl Group {
    pub(super) fn start<B: HostBuffer>(
        &self,
        operation: OpType,
        buffer: B,
        dtype: DType,
        reduce: Option<ReduceOp>,
        root: Option<usize>,
    ) -> Work<B> {
        match self.request(operation, buffer.as_bytes().len(), dtype, reduce, root) {
            Ok(request) => {
                let (work, pending) = OwnedBuffer::sized(buffer);
                self.0.progress.queue_collective(&request, work);
                pending
            }
            Err(error) => Work::failed(error),
        }
    }

    pub(super) fn run<T: Element>(
        &self,
        operation: OpType,
        slice: &mut [T],
        reduce: Option<ReduceOp>,
        root: Option<usize>,
    ) -> Result<()> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(slice);
        let request = self.request(operation, bytes.len(), T::DTYPE, reduce, root)?;
        if !self.0.progress.run_inline(&request, bytes)? {
            let (work, pending) = OwnedBuffer::sized(bytes.to_vec());
            self.0.progress.queue_collective(&request, work);
            bytes.copy_from_slice(&pending.wait()?);
        }
        Ok(())
    }

    pub(super) fn transfer<B>(
        &self,
        operation: OpType,
        bytes: usize,
        dtype: DType,
        peer: usize,
        (work, pending): (Box<dyn OpBuffer>, Work<B>),
    ) -> Work<B> {
        let request = self.request(operation, bytes, dtype, None, None);
        let request = request.and_then(|request| match peer {
            peer if peer >= self.size() => {
                let reason = format!("peer {peer} is given, the group has {} ranks", self.size());
                Err(self.refuse(operation, reason))
            }
            peer if peer == self.rank() => {
                Err(self.refuse(operation, format!("peer {peer} is given, which is the caller itself")))
            }
            _ => Ok(request),
        });
        match request {
            Ok(request) => {
                self.0.progress.queue_transfer(request.call, peer, work);
                pending
            }
            Err(error) => Work::failed(error),
        }
    }

    /// Checks what can be checked without the other ranks.
    pub(super) fn request(
        &self,
        operation: OpType,
        bytes: usize,
        dtype: DType,
        reduce: Option<ReduceOp>,
        root: Option<usize>,
    ) -> Result<CollectiveArgs> {
        let GroupSpec { members, .. } = self.spec();
        self.0.progress.context.fault.check(self.spec().world_rank())?;
        let sliced = matches!(
            operation,
            OpType::ReduceScatter | OpType::AllGather | OpType::Gather | OpType::AllToAll
        );
        let unit = dtype.size() * if sliced { members.len() } else { 1 };
        if !bytes.is_multiple_of(unit) {
            let shape = if sliced { format!(" in {} equal slices", members.len()) } else { String::new() };
            let reason =
                format!("{bytes} bytes are given, a multiple of {unit} is needed for {dtype}{shape}");
            return Err(self.refuse(operation, reason));
        }
        if let Some(root) = root.filter(|root| *root >= members.len()) {
            let reason = format!("root {root} is given, the group has {} ranks", members.len());
            return Err(self.refuse(operation, reason));
        }
        let call = Call {
            operation,
            sequence: 0,
            dtype,
            reduce,
            root: root.map(|root| members[root]),
            bytes: bytes as u64,
        };
        Ok(CollectiveArgs { call, root: root.unwrap_or(0) })
    }

    /// Fails the world because of a call that cannot run.
    pub(super) fn refuse(&self, operation: OpType, reason: String) -> Error {
        let rank = self.spec().world_rank();
        let error = Error::InvalidArgument { rank, group: self.name().into(), operation, reason };
        self.0.progress.context.fault.raise(rank, error.clone());
        error
    }
}
