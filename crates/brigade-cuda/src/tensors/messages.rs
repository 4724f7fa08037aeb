//! Messages between stages: their descriptions go ahead through the host, their tensors from GPU to GPU.

use std::sync::Arc;

use brigade_comm::{DType, Operation};
use brigade_core::{Error, Message, Part, Result};
use brigade_host::message::{Description, described};
use burn::tensor::{Device, Int, Tensor};

use super::flat_tensor::{Flat, Pinned};
use crate::{ElementType, InFlight, Lane, Queue};

/// The sender's number in a direction's communicator, and the receiver's.
pub(crate) const SENDER: usize = 0;
pub(crate) const RECEIVER: usize = 1;

/// A message that the GPU is receiving.
pub(crate) struct Incoming {
    in_flight: Option<InFlight>,
    parts: Vec<Option<(Flat, Description)>>,
}

impl Incoming {
    /// Enqueues the receive of the message that is described so.
    pub(crate) fn enqueue(
        lane: &Arc<Lane>,
        description: Result<Vec<u8>, brigade_comm::Error>,
        device: &Device,
    ) -> Result<Self> {
        let parts = described(&description.map_err(Error::collective)?)?.into_iter();
        let parts = parts.map(|part| part.map(|part| room(part, device)).transpose());
        let parts = parts.collect::<Result<Vec<_>>>()?;
        let memory = pinned(parts.iter().flatten().map(|(flat, _)| flat))?;
        let in_flight = pass(lane, Operation::Recv, memory, |queue, to, bytes| {
            // SAFETY: the memory is held until the operation is over.
            unsafe { queue.recv(to, bytes, ElementType::U8, SENDER) }
        })?;
        Ok(Self { in_flight, parts })
    }

    /// The message, for what is computed from now on.
    pub(crate) fn take(self) -> Result<Message> {
        if let Some(in_flight) = self.in_flight {
            in_flight.order().map_err(Error::collective)?;
        }
        let part = |(flat, Description { dtype, shape }): (Flat, Description)| match (Description {
            dtype,
            shape: Vec::new(),
        })
        .is_float()
        {
            true => Part::Float(flat.into_floats(), shape),
            false => Part::Int(flat.into_ints(), shape),
        };
        Ok(self.parts.into_iter().map(|found| found.map(part)).collect())
    }
}

/// A message whose tensors stay in their place until they are sent.
pub(crate) struct Outgoing(Vec<(Pinned, usize)>);

impl Outgoing {
    pub(crate) fn new(message: Message) -> Result<Self> {
        let flat = |part| match part {
            Part::Float(flat, _) => Flat::floats(flat),
            Part::Int(flat, _) => Flat::ints(flat),
        };
        let tensors = message.into_iter().flatten().map(flat).collect::<Result<Vec<_>>>()?;
        Ok(Self(pinned(tensors.iter())?))
    }

    /// Enqueues the send, whose description is on its way.
    pub(crate) fn send(self, lane: &Lane) -> Result<Option<InFlight>> {
        pass(lane, Operation::Send, self.0, |queue, from, bytes| {
            // SAFETY: the memory is held until the operation is over.
            unsafe { queue.send(from, bytes, ElementType::U8, RECEIVER) }
        })
    }
}

/// The memory of the tensors that hold anything, and its bytes.
fn pinned<'a>(tensors: impl Iterator<Item = &'a Flat>) -> Result<Vec<(Pinned, usize)>> {
    tensors.filter(|flat| flat.elements() > 0).map(|flat| Ok((flat.pin()?, flat.bytes()))).collect()
}

/// Enqueues the transfer of the tensors of a message, if they hold anything, as one operation.
fn pass(
    lane: &Lane,
    kind: Operation,
    memory: Vec<(Pinned, usize)>,
    transfer: impl Fn(&Queue<'_>, u64, usize),
) -> Result<Option<InFlight>> {
    if memory.is_empty() {
        return Ok(None);
    }
    let places: Vec<(u64, usize)> = memory.iter().map(|(pinned, bytes)| (pinned.address, *bytes)).collect();
    let total = places.iter().map(|(_, bytes)| bytes).sum();
    let started = lane.start(kind, (DType::U8, total), Box::new(memory), |queue| {
        places.iter().for_each(|(address, bytes)| transfer(queue, *address, *bytes));
    });
    started.map(Some).map_err(Error::collective)
}

fn room(part: Description, device: &Device) -> Result<(Flat, Description)> {
    let options = (device, part.dtype);
    let flat = if part.is_float() {
        Flat::floats(Tensor::<1>::empty([part.elements()], options))
    } else {
        Flat::ints(Tensor::<1, Int>::empty([part.elements()], options))
    };
    Ok((flat?, part))
}
