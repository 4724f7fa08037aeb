//! Core's collectives on tensors of CUDA, by NCCL.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use brigade_comm::{DType, Group, OpType, ReduceOp};
use brigade_core::{
    CollectiveKind, Collectives, Error, Message, Pending, PendingTensor, PendingValues, Result, Traffic,
};
use brigade_host::message::describe;
use brigade_host::{HostCollectives, MemorySpace};
use burn::tensor::{Device, Tensor};

use super::flat_tensor::FlatTensor;
use super::messages::{Incoming, Outgoing};
use crate::polling::lock;
use crate::{CommStream, GroupCall, NcclWork, ReceiveQueue};

/// A group's collectives from GPU to GPU. A few bytes at a time (scalars, barriers, descriptions of messages) go through the host.
///
/// NCCL adds in an order of its own, so its sums agree with those of other backends only up to rounding.
pub struct NcclCollectives {
    comm_stream: CommStream,
    host: HostCollectives,
    group: Group,
    links: PipelineLinks,
    traffic: Mutex<Traffic>,
}

/// This rank's links to and from its neighbours in a pipeline, by their ranks in the group. The last stage and the first are
/// neighbours, too.
#[derive(Default)]
pub(super) struct PipelineLinks {
    pub(super) to: BTreeMap<usize, CommStream>,
    pub(super) from: BTreeMap<usize, (Arc<CommStream>, MessageQueue)>,
}

pub(super) type MessageQueue = Arc<ReceiveQueue<Result<Incoming>>>;

/// The memory that an operation reads and writes.
struct Buffers {
    send: u64,
    recv: u64,
    dtype: DType,
}

impl NcclCollectives {
    pub(super) fn new(comm_stream: CommStream, group: Group, links: PipelineLinks) -> Self {
        let host = HostCollectives::new(group.clone(), MemorySpace::DEVICE);
        Self { comm_stream, host, group, links, traffic: Mutex::default() }
    }

    /// Starts an operation from a tensor into one of `elements` elements: with `in_place`, into the tensor itself if it is the
    /// only owner of its memory.
    fn run(
        &self,
        operation: CollectiveKind,
        tensor: Tensor<1>,
        elements: usize,
        in_place: bool,
        enqueue: impl FnOnce(&GroupCall<'_>, Buffers),
    ) -> PendingTensor {
        let start = || {
            let (device, burn_dtype) = (tensor.device(), tensor.dtype());
            let input = FlatTensor::floats(tensor)?;
            let dtype = input.dtype()?;
            let output = (!(in_place && input.is_sole_owner()))
                .then(|| FlatTensor::floats(Tensor::empty([elements], (&device, burn_dtype))))
                .transpose()?;
            let from = input.memory()?;
            let (recv, mut memory) = match &output {
                Some(output) => {
                    let into = output.memory()?;
                    (into.address, vec![into])
                }
                None => (from.address, Vec::new()),
            };
            let (send, bytes) = (from.address, input.bytes());
            memory.push(from);
            let kind = match operation {
                CollectiveKind::ReduceScatter => OpType::ReduceScatter,
                CollectiveKind::AllGather => OpType::AllGather,
                CollectiveKind::Broadcast => OpType::Broadcast,
                _ => OpType::AllReduce,
            };
            let buffers = Buffers { send, recv, dtype };
            let enqueue = |group_call: &GroupCall<'_>| enqueue(group_call, buffers);
            let started = self.comm_stream.start(kind, (dtype, bytes), Box::new(memory), enqueue);
            let work = started.map_err(Error::collective)?;
            let result = output.unwrap_or(input).into_floats();
            Ok((work, if device.is_autodiff() { result.autodiff() } else { result }))
        };
        match start() {
            Ok((work, result)) => {
                PendingTensor::new(move || work.synchronize().map(|()| result).map_err(Error::collective))
            }
            Err(error) => PendingTensor::new(self.failed(error)),
        }
    }

    /// Fails the rank: other ranks would wait for an operation that could not start here.
    fn failed<T>(&self, error: Error) -> impl FnOnce() -> Result<T> + Send + use<T> {
        self.comm_stream.rank().fail(error.to_string());
        move || Err(error)
    }

    fn count(&self, operation: CollectiveKind, bytes: usize) {
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
        self.count(CollectiveKind::AllReduce, 2 * self.half(bytes));
        if elements == 0 {
            return PendingTensor::ready(tensor);
        }
        self.run(CollectiveKind::AllReduce, tensor, elements, true, |call, Buffers { send, recv, dtype }| {
            // SAFETY: both have `elements` elements, and are held until the operation is done.
            unsafe { call.all_reduce(send, recv, elements, dtype, ReduceOp::Sum) }
        })
    }

    fn reduce_scatter(&self, tensor: Tensor<1>) -> PendingTensor {
        let (elements, bytes) = extent(&tensor);
        let own = elements / self.size();
        if own * self.size() != elements {
            let text = format!("reduce_scatter of {elements} elements over {} ranks", self.size());
            return PendingTensor::new(self.failed(Error::collective(text)));
        }
        self.count(CollectiveKind::ReduceScatter, self.half(bytes));
        if elements == 0 {
            return PendingTensor::ready(tensor);
        }
        self.run(CollectiveKind::ReduceScatter, tensor, own, false, |call, Buffers { send, recv, dtype }| {
            // SAFETY: the input has `own` elements for each rank and the output has `own`; both are held until the operation
            // is done.
            unsafe { call.reduce_scatter(send, recv, own, dtype, ReduceOp::Sum) }
        })
    }

    fn all_gather(&self, tensor: Tensor<1>) -> PendingTensor {
        let (elements, bytes) = extent(&tensor);
        self.count(CollectiveKind::AllGather, bytes * (self.size() - 1));
        if elements == 0 {
            return PendingTensor::ready(tensor);
        }
        self.run(
            CollectiveKind::AllGather,
            tensor,
            elements * self.size(),
            false,
            |call, Buffers { send, recv, dtype }| {
                // SAFETY: the input has `elements` elements and the output as many for each rank; both are held until the
                // operation is done.
                unsafe { call.all_gather(send, recv, elements, dtype) }
            },
        )
    }

    fn broadcast(&self, tensor: Tensor<1>, root: usize) -> PendingTensor {
        let (elements, bytes) = extent(&tensor);
        let sent = if root == self.rank() { bytes * (self.size() - 1) } else { 0 };
        self.count(CollectiveKind::Broadcast, sent);
        if root >= self.size() {
            let text = format!("broadcast from rank {root}: the group has {} ranks", self.size());
            return PendingTensor::new(self.failed(Error::collective(text)));
        }
        if elements == 0 {
            return PendingTensor::ready(tensor);
        }
        self.run(CollectiveKind::Broadcast, tensor, elements, true, |call, Buffers { send, recv, dtype }| {
            // SAFETY: both have `elements` elements, and are held until the operation is done.
            unsafe { call.broadcast(send, recv, elements, dtype, root) }
        })
    }

    /// From GPU to GPU to neighbours in the pipeline, and through the host to other ranks.
    fn send(&self, message: Message, to: usize) -> Pending<()> {
        let Some(comm_stream) = self.links.to.get(&to) else { return self.host.send(message, to) };
        self.count(CollectiveKind::Send, message.iter().flatten().map(brigade_core::Part::bytes).sum());
        let start = || {
            let description = describe(&message)?;
            let outgoing = Outgoing::new(message)?;
            let description = self.group.send(description, DType::U8, to);
            Ok((description, outgoing.send(comm_stream)?))
        };
        match start() {
            Ok((description, work)) => {
                let rank = self.comm_stream.rank().clone();
                Pending::new(move || {
                    rank.fail_on_error(description.wait()).map_err(Error::collective)?;
                    work.map_or(Ok(()), NcclWork::wait).map_err(Error::collective)
                })
            }
            Err(error) => Pending::new(self.failed(error)),
        }
    }

    fn receive(&self, from: usize, device: &Device) -> Pending<Message> {
        match self.links.from.get(&from) {
            Some((comm_stream, queue)) => {
                let (comm_stream, device) = (comm_stream.clone(), device.clone());
                let posted =
                    queue.post(move |description| Incoming::enqueue(&comm_stream, description, &device));
                let rank = self.comm_stream.rank().clone();
                Pending::new(move || {
                    let received = || posted().map_err(Error::collective)??.take();
                    rank.fail_on_error(received())
                })
            }
            None => self.host.receive(from, device),
        }
    }

    fn all_gather_scalars(&self, values: Vec<f64>) -> PendingValues {
        match self.comm_stream.rank().check() {
            Ok(()) => self.host.all_gather_scalars(values),
            Err(error) => PendingValues::new(move || Err(Error::collective(error))),
        }
    }

    fn all_to_all_bytes(&self, bytes: Vec<u8>) -> Pending<Vec<u8>> {
        match self.comm_stream.rank().check() {
            Ok(()) => self.host.all_to_all_bytes(bytes),
            Err(error) => Pending::new(move || Err(Error::collective(error))),
        }
    }

    fn all_gather_bytes(&self, bytes: Vec<u8>) -> Pending<Vec<u8>> {
        match self.comm_stream.rank().check() {
            Ok(()) => self.host.all_gather_bytes(bytes),
            Err(error) => Pending::new(move || Err(Error::collective(error))),
        }
    }

    fn barrier(&self) -> Result<()> {
        self.comm_stream.rank().check().map_err(Error::collective)?;
        self.host.barrier()
    }

    fn traffic(&self) -> Traffic {
        use CollectiveKind::{AllGather, AllGatherScalars, AllToAll, Barrier};
        let mut traffic = lock(&self.traffic).clone();
        let host = self.host.traffic();
        // Codes and a few numbers go through the host.
        for operation in [AllGatherScalars, AllToAll, AllGather, Barrier] {
            let (calls, bytes) = host.get(&operation).copied().unwrap_or_default();
            let sum = traffic.entry(operation).or_default();
            *sum = (sum.0 + calls, sum.1 + bytes);
        }
        traffic
    }
}

impl Drop for NcclCollectives {
    /// After a failure, the communicators are aborted, so that dropping them waits for nothing.
    fn drop(&mut self) {
        if let Some(failure) = self.group.failure() {
            let reason = failure.to_string();
            self.comm_stream.rank().fail(reason.as_str());
            let PipelineLinks { to, from } = &self.links;
            let links = to.values().chain(from.values().map(|(comm_stream, _)| comm_stream.as_ref()));
            links.chain([&self.comm_stream]).for_each(|comm_stream| comm_stream.abort(&reason));
        }
    }
}

fn extent(tensor: &Tensor<1>) -> (usize, usize) {
    let elements = tensor.dims()[0];
    (elements, elements * tensor.dtype().size())
}
