//! Core's collectives on tensors of CUDA, by NCCL.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use brigade_comm::{DType, Group, Operation as Kind, ReduceOp};
use brigade_core::{
    Collectives, Error, Message, Operation, Pending, PendingTensor, PendingValues, Result, Traffic,
};
use brigade_host::message::describe;
use brigade_host::{HostCollectives, Placement};
use burn::tensor::{Device, Tensor};

use super::flat_tensor::Flat;
use super::messages::{Incoming, Outgoing};
use crate::backoff::lock;
use crate::{ElementType, Inbox, Lane, Queue};

/// A group's collectives from GPU to GPU. Numbers of a few bytes (exchanges, barriers, what a message is) go through the
/// host.
///
/// NCCL adds in an order of its own, so sums agree with those of other backends within rounding only.
pub struct NcclCollectives {
    lane: Lane,
    host: HostCollectives,
    group: Group,
    /// Directions to other ranks, and from them.
    out: BTreeMap<usize, Lane>,
    inboxes: Inboxes,
    traffic: Mutex<Traffic>,
}

/// Directions from other ranks, by their number.
pub(super) type Inboxes = BTreeMap<usize, (Arc<Lane>, Arc<Inbox<Result<Incoming>>>)>;

/// What an operation reads and writes.
struct Call {
    send: u64,
    recv: u64,
    element: ElementType,
}

impl NcclCollectives {
    pub(super) fn new(lane: Lane, group: Group, out: BTreeMap<usize, Lane>, inboxes: Inboxes) -> Self {
        let host = HostCollectives::new(group.clone(), Placement::DEVICE);
        Self { lane, host, group, out, inboxes, traffic: Mutex::default() }
    }

    /// Runs an operation from a tensor into one of `elements` elements: the tensor itself where it may be, if `in_place`.
    fn run(
        &self,
        operation: Operation,
        tensor: Tensor<1>,
        elements: usize,
        in_place: bool,
        enqueue: impl FnOnce(&Queue<'_>, Call),
    ) -> PendingTensor {
        let start = || {
            let (device, dtype) = (tensor.device(), tensor.dtype());
            let input = Flat::floats(tensor)?;
            let element = input.element()?;
            let room = (!(in_place && input.is_sole()))
                .then(|| Flat::floats(Tensor::empty([elements], (&device, dtype))))
                .transpose()?;
            let from = input.pin()?;
            let (recv, mut memory) = match &room {
                Some(room) => {
                    let into = room.pin()?;
                    (into.address, vec![into])
                }
                None => (from.address, Vec::new()),
            };
            let (send, bytes) = (from.address, input.bytes());
            memory.push(from);
            let kind = match operation {
                Operation::ReduceScatter => Kind::ReduceScatter,
                Operation::AllGather => Kind::AllGather,
                Operation::Broadcast => Kind::Broadcast,
                _ => Kind::AllReduce,
            };
            let call = Call { send, recv, element };
            let what = (dtype_of(element), bytes);
            let started = self.lane.start(kind, what, Box::new(memory), |queue| enqueue(queue, call));
            let in_flight = started.map_err(Error::collective)?;
            let result = room.unwrap_or(input).into_floats();
            Ok((in_flight, if device.is_autodiff() { result.autodiff() } else { result }))
        };
        match start() {
            Ok((in_flight, result)) => {
                PendingTensor::new(move || in_flight.order().map(|()| result).map_err(Error::collective))
            }
            Err(error) => PendingTensor::new(self.failed(error)),
        }
    }

    /// What could not begin here will not end elsewhere.
    fn failed<T>(&self, error: Error) -> impl FnOnce() -> Result<T> + Send + use<T> {
        self.lane.rank().fail(error.to_string());
        move || Err(error)
    }

    fn count(&self, operation: Operation, bytes: usize) {
        let mut traffic = lock(&self.traffic);
        let count = traffic.entry(operation).or_default();
        *count = (count.0 + 1, count.1 + bytes as u64);
    }

    /// The part of `bytes` that each rank sends in one half of an all-reduce.
    fn half(&self, bytes: usize) -> usize {
        bytes / self.size() * (self.size() - 1)
    }
}

impl Collectives for NcclCollectives {
    fn rank(&self) -> usize {
        self.group.rank()
    }

    fn size(&self) -> usize {
        self.group.size()
    }

    fn all_reduce(&self, tensor: Tensor<1>) -> PendingTensor {
        let (elements, bytes) = extent(&tensor);
        self.count(Operation::AllReduce, 2 * self.half(bytes));
        if elements == 0 {
            return PendingTensor::ready(tensor);
        }
        self.run(Operation::AllReduce, tensor, elements, true, |queue, Call { send, recv, element }| {
            // SAFETY: both are pinned, of `elements` elements, until the operation is over.
            unsafe { queue.all_reduce(send, recv, elements, element, ReduceOp::Sum) }
        })
    }

    fn reduce_scatter(&self, tensor: Tensor<1>) -> PendingTensor {
        let (elements, bytes) = extent(&tensor);
        let own = elements / self.size();
        if own * self.size() != elements {
            let text = format!("reduce_scatter of {elements} elements over {} ranks", self.size());
            return PendingTensor::new(self.failed(Error::collective(text)));
        }
        self.count(Operation::ReduceScatter, self.half(bytes));
        if elements == 0 {
            return PendingTensor::ready(tensor);
        }
        self.run(Operation::ReduceScatter, tensor, own, false, |queue, Call { send, recv, element }| {
            // SAFETY: the input is pinned with `own` elements for each rank, the output with `own`.
            unsafe { queue.reduce_scatter(send, recv, own, element, ReduceOp::Sum) }
        })
    }

    fn all_gather(&self, tensor: Tensor<1>) -> PendingTensor {
        let (elements, bytes) = extent(&tensor);
        self.count(Operation::AllGather, bytes * (self.size() - 1));
        if elements == 0 {
            return PendingTensor::ready(tensor);
        }
        self.run(
            Operation::AllGather,
            tensor,
            elements * self.size(),
            false,
            |queue, Call { send, recv, element }| {
                // SAFETY: the input is pinned with `elements` elements, the output with as many for each rank.
                unsafe { queue.all_gather(send, recv, elements, element) }
            },
        )
    }

    fn broadcast(&self, tensor: Tensor<1>, root: usize) -> PendingTensor {
        let (elements, bytes) = extent(&tensor);
        let sent = if root == self.rank() { bytes * (self.size() - 1) } else { 0 };
        self.count(Operation::Broadcast, sent);
        if root >= self.size() {
            let text = format!("broadcast from rank {root}: the group has {} ranks", self.size());
            return PendingTensor::new(self.failed(Error::collective(text)));
        }
        if elements == 0 {
            return PendingTensor::ready(tensor);
        }
        self.run(Operation::Broadcast, tensor, elements, true, |queue, Call { send, recv, element }| {
            // SAFETY: both are pinned, of `elements` elements, until the operation is over.
            unsafe { queue.broadcast(send, recv, elements, element, root) }
        })
    }

    /// To a neighbour along the group's ring from GPU to GPU, to others through the host.
    fn send(&self, message: Message, to: usize) -> Pending<()> {
        let Some(lane) = self.out.get(&to) else { return self.host.send(message, to) };
        self.count(Operation::Send, message.iter().flatten().map(brigade_core::Part::bytes).sum());
        let start = || {
            let description = describe(&message)?;
            let outgoing = Outgoing::new(message)?;
            let description = self.group.send(description, DType::U8, to);
            Ok((description, outgoing.send(lane)?))
        };
        match start() {
            Ok((description, in_flight)) => {
                let rank = self.lane.rank().clone();
                Pending::new(move || {
                    rank.or_fail(description.wait()).map_err(Error::collective)?;
                    in_flight.map_or(Ok(()), |in_flight| in_flight.wait()).map_err(Error::collective)
                })
            }
            Err(error) => Pending::new(self.failed(error)),
        }
    }

    fn receive(&self, from: usize, device: &Device) -> Pending<Message> {
        match self.inboxes.get(&from) {
            Some((lane, inbox)) => {
                let (lane, device) = (lane.clone(), device.clone());
                let posted = inbox.post(move |description| Incoming::enqueue(&lane, description, &device));
                let rank = self.lane.rank().clone();
                Pending::new(move || {
                    let received = || posted().map_err(Error::collective)??.take();
                    rank.or_fail(received())
                })
            }
            None => self.host.receive(from, device),
        }
    }

    fn exchange(&self, values: Vec<f64>) -> PendingValues {
        match self.lane.rank().check() {
            Ok(()) => self.host.exchange(values),
            Err(error) => PendingValues::new(move || Err(Error::collective(error))),
        }
    }

    fn barrier(&self) -> Result<()> {
        self.lane.rank().check().map_err(Error::collective)?;
        self.host.barrier()
    }

    fn traffic(&self) -> Traffic {
        let mut traffic = lock(&self.traffic).clone();
        let host = self.host.traffic();
        for operation in [Operation::Exchange, Operation::Barrier] {
            traffic.insert(operation, host.get(&operation).copied().unwrap_or_default());
        }
        traffic
    }
}

impl Drop for NcclCollectives {
    /// After a failure nothing is waited for.
    fn drop(&mut self) {
        if let Some(failure) = self.group.failure() {
            let reason = failure.to_string();
            self.lane.rank().fail(reason.as_str());
            let lanes = self.out.values().chain(self.inboxes.values().map(|(lane, _)| lane.as_ref()));
            lanes.chain([&self.lane]).for_each(|lane| lane.abort(&reason));
        }
    }
}

fn dtype_of(element: ElementType) -> DType {
    match element {
        ElementType::F32 => DType::F32,
        ElementType::F64 => DType::F64,
        ElementType::F16 => DType::F16,
        ElementType::Bf16 => DType::Bf16,
        ElementType::I64 => DType::I64,
        ElementType::U8 => DType::U8,
    }
}

fn extent(tensor: &Tensor<1>) -> (usize, usize) {
    let elements = tensor.dims()[0];
    (elements, elements * tensor.dtype().size())
}
