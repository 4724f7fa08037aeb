//! Messages between stages: their descriptions travel ahead through the host, their tensors from GPU to GPU.

use std::sync::Arc;

use brigade_comm::{DType, OpType};
use brigade_core::{Error, Message, Part, Result};
use brigade_host::message::{Description, described};
use burn::tensor::{Device, Int, Tensor};

use super::flat_tensor::{DeviceMemory, FlatTensor};
use crate::{CommStream, GroupCall, NcclWork};

/// The sender's rank in a link's communicator, and the receiver's.
pub(super) const SENDER: usize = 0;
pub(super) const RECEIVER: usize = 1;

/// A message that the GPU is receiving.
pub(super) struct Incoming {
    work: Option<NcclWork>,
    parts: Vec<Option<(FlatTensor, Description)>>,
}

impl Incoming {
    /// Enqueues the receive of the message that has this description.
    pub(super) fn enqueue(
        comm_stream: &Arc<CommStream>,
        description: Result<Vec<u8>, brigade_comm::Error>,
        device: &Device,
    ) -> Result<Self> {
        let parts = described(&description.map_err(Error::collective)?)?.into_iter();
        let parts = parts.map(|part| part.map(|part| empty(part, device)).transpose());
        let parts = parts.collect::<Result<Vec<_>>>()?;
        let memory = memory_of(parts.iter().flatten().map(|(flat, _)| flat))?;
        let work = transfer(comm_stream, OpType::Recv, memory, |call, to, bytes| {
            // SAFETY: the memory is held until the operation is done.
            unsafe { call.recv(to, bytes, DType::U8, SENDER) }
        })?;
        Ok(Self { work, parts })
    }

    /// The message, for whatever is computed from now on.
    pub(super) fn take(self) -> Result<Message> {
        if let Some(work) = self.work {
            work.synchronize().map_err(Error::collective)?;
        }
        let part = |(flat, Description { dtype, shape }): (FlatTensor, Description)| match (Description {
            dtype,
            shape: Vec::new(),
        })
        .is_float()
        {
            true => Part::Float(flat.into_floats(), shape),
            false => Part::Int(flat.into_ints(), shape),
        };
        Ok(self.parts.into_iter().map(|received| received.map(part)).collect())
    }
}

/// A message whose tensors stay in place until they have been sent.
pub(super) struct Outgoing(Vec<(DeviceMemory, usize)>);

impl Outgoing {
    pub(super) fn new(message: Message) -> Result<Self> {
        let flat = |part| match part {
            Part::Float(flat, _) => FlatTensor::floats(flat),
            Part::Int(flat, _) => FlatTensor::ints(flat),
        };
        let tensors = message.into_iter().flatten().map(flat).collect::<Result<Vec<_>>>()?;
        Ok(Self(memory_of(tensors.iter())?))
    }

    /// Enqueues the send. The message's description has been sent already.
    pub(super) fn send(self, comm_stream: &CommStream) -> Result<Option<NcclWork>> {
        transfer(comm_stream, OpType::Send, self.0, |call, from, bytes| {
            // SAFETY: the memory is held until the operation is done.
            unsafe { call.send(from, bytes, DType::U8, RECEIVER) }
        })
    }
}

/// The memory of all tensors that are not empty, with its size in bytes.
fn memory_of<'a>(tensors: impl Iterator<Item = &'a FlatTensor>) -> Result<Vec<(DeviceMemory, usize)>> {
    tensors.filter(|flat| flat.elements() > 0).map(|flat| Ok((flat.memory()?, flat.bytes()))).collect()
}

/// Enqueues the transfer of a message's tensors as one operation, unless all are empty.
fn transfer(
    comm_stream: &CommStream,
    kind: OpType,
    memory: Vec<(DeviceMemory, usize)>,
    enqueue: impl Fn(&GroupCall<'_>, u64, usize),
) -> Result<Option<NcclWork>> {
    if memory.is_empty() {
        return Ok(None);
    }
    let places: Vec<(u64, usize)> = memory.iter().map(|(memory, bytes)| (memory.address, *bytes)).collect();
    let total = places.iter().map(|(_, bytes)| bytes).sum();
    let started = comm_stream.start(kind, (DType::U8, total), Box::new(memory), |call| {
        places.iter().for_each(|(address, bytes)| enqueue(call, *address, *bytes));
    });
    started.map(Some).map_err(Error::collective)
}

/// An uninitialised tensor to receive `part` into.
fn empty(part: Description, device: &Device) -> Result<(FlatTensor, Description)> {
    let options = (device, part.dtype);
    let flat = if part.is_float() {
        FlatTensor::floats(Tensor::<1>::empty([part.elements()], options))
    } else {
        FlatTensor::ints(Tensor::<1, Int>::empty([part.elements()], options))
    };
    Ok((flat?, part))
}
