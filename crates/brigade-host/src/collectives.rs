//! Collectives over tensors, staged through host memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use brigade_comm::{DType, Group, HostBuffer, ReduceOp};
use brigade_core::{
    Collectives, Error, Filled, Message, Operation, Pending, PendingTensor, PendingValues, Refillable,
    Result, Traffic,
};
use burn::tensor::{DType as TensorDType, Device, FloatDType, Tensor, TensorData};

use crate::message;
use crate::place::Placement;
use crate::region::Region;
use crate::staging::{Crossings, Staged, Staging};

/// The longest message between stages that a rank takes, in bytes.
const LONGEST_MESSAGE: usize = 16 << 30;

/// A group's collectives for tensors of any device. A tensor in host memory that is whole and solely
/// owned is moved in and out of the operation without a copy; others are read from their device first.
pub struct HostCollectives {
    group: Group,
    staging: Arc<Staging>,
    exchanges: AtomicU64,
    exchanged_bytes: AtomicU64,
}

impl HostCollectives {
    /// Collectives of a group, for tensors that are there.
    pub fn new(group: Group, placement: Placement) -> Self {
        let staging = Arc::new(Staging::new(placement));
        Self { group, staging, exchanges: AtomicU64::new(0), exchanged_bytes: AtomicU64::new(0) }
    }

    /// What these collectives have moved between the device and the host so far.
    pub fn crossings(&self) -> Crossings {
        self.staging.crossings()
    }

    /// Reads a tensor, starts an operation on it, and makes a tensor of what is `kept` of the result.
    fn run(
        &self,
        tensor: Tensor<1>,
        start: impl FnOnce(Staged, DType) -> brigade_comm::Work<Staged>,
        kept: impl FnOnce(Staged) -> Staged + Send + 'static,
    ) -> PendingTensor {
        match self.staging.read(tensor) {
            Ok(staged) => {
                let dtype = staged.dtype;
                let (pending, staging) = (start(staged, dtype), self.staging.clone());
                PendingTensor::new(
                    move || Ok(staging.write(kept(pending.wait().map_err(Error::collective)?))),
                )
            }
            Err(error) => PendingTensor::new(move || Err(error)),
        }
    }
}

/// A flat buffer that all ranks' shards are gathered into, in one place.
struct GatheredInPlace {
    group: Group,
    staging: Arc<Staging>,
    region: Region,
    bytes: usize,
    /// The buffer's first tensor: it lasts, so that no other one is ever alone with the memory.
    tensor: Tensor<1>,
}

impl Refillable for GatheredInPlace {
    fn tensor(&self) -> Tensor<1> {
        self.tensor.clone()
    }

    unsafe fn fill(self: Box<Self>, shard: Tensor<1>) -> Pending<Box<dyn Filled>> {
        let staged = match self.staging.read(shard) {
            Ok(staged) => staged,
            Err(error) => return Pending::new(move || Err(error)),
        };
        let slice = staged.bytes.len();
        if slice * self.group.size() != self.bytes {
            let text = format!("shards of {slice} bytes do not fill a buffer of {} bytes", self.bytes);
            return Pending::new(move || Err(Error::collective(text)));
        }
        // SAFETY: the caller vouches that nobody reads it, and nobody else writes it: this buffer comes back only with the result.
        let mut writer = unsafe { self.region.writer(self.bytes) };
        let start = self.group.rank() * slice;
        writer.as_bytes_mut()[start..start + slice].copy_from_slice(&staged.bytes);
        let gathered = self.group.all_gather(writer, staged.dtype);
        Pending::new(move || {
            gathered.wait().map(drop).map_err(Error::collective)?;
            Ok(self as Box<dyn Filled>)
        })
    }
}

impl Filled for GatheredInPlace {
    fn tensor(&self) -> Tensor<1> {
        self.tensor.clone()
    }

    unsafe fn release(self: Box<Self>) -> Box<dyn Refillable> {
        // SAFETY: the caller vouches that nobody reads it, and nobody writes it: it is filled.
        unsafe { self.region.release() };
        self
    }
}

impl Collectives for HostCollectives {
    fn rank(&self) -> usize {
        self.group.rank()
    }

    fn size(&self) -> usize {
        self.group.size()
    }

    fn all_reduce(&self, tensor: Tensor<1>) -> PendingTensor {
        let start = |staged, dtype| self.group.all_reduce(staged, dtype, ReduceOp::Sum);
        self.run(tensor, start, |staged| staged)
    }

    fn reduce_scatter(&self, tensor: Tensor<1>) -> PendingTensor {
        let (rank, size, placement) = (self.rank(), self.size(), self.staging.placement);
        let start = |staged, dtype| self.group.reduce_scatter(staged, dtype, ReduceOp::Sum);
        self.run(tensor, start, move |mut staged| {
            let share = staged.bytes.len() / size;
            staged.bytes = placement.part(staged.bytes, rank * share..(rank + 1) * share);
            staged
        })
    }

    fn all_gather(&self, tensor: Tensor<1>) -> PendingTensor {
        let (rank, size) = (self.rank(), self.size());
        let start = |staged: Staged, dtype| {
            let share = staged.bytes.len();
            let mut whole = self.staging.placement.buffer(&staged.device, share * size);
            whole[rank * share..(rank + 1) * share].copy_from_slice(&staged.bytes);
            self.group.all_gather(staged.with_bytes(whole), dtype)
        };
        self.run(tensor, start, |staged| staged)
    }

    fn broadcast(&self, tensor: Tensor<1>, root: usize) -> PendingTensor {
        self.run(tensor, |staged, dtype| self.group.broadcast(staged, dtype, root), |staged| staged)
    }

    fn send(&self, message: Message, to: usize) -> Pending<()> {
        match message::encode(message, &self.staging) {
            Ok(bytes) => {
                let sent = self.group.send(bytes, DType::U8, to);
                Pending::new(move || sent.wait().map(drop).map_err(Error::collective))
            }
            Err(error) => Pending::new(move || Err(error)),
        }
    }

    fn receive(&self, from: usize, device: &Device) -> Pending<Message> {
        let received = self.group.recv_message(from, LONGEST_MESSAGE);
        let (staging, device) = (self.staging.clone(), device.clone());
        Pending::new(move || message::decode(received.wait().map_err(Error::collective)?, &device, &staging))
    }

    fn refillable(&self, shard: usize, dtype: FloatDType, device: &Device) -> Option<Box<dyn Refillable>> {
        let Placement::Host = self.staging.placement else { return None };
        let dtype = TensorDType::from(dtype);
        let (length, bytes) = (shard * self.size(), shard * self.size() * dtype.size());
        let region = Region::new(bytes).ok()?;
        let data = TensorData::from_bytes(region.bytes(bytes), [length], dtype);
        let tensor = Tensor::from_data(data, (device, dtype));
        let (group, staging) = (self.group.clone(), self.staging.clone());
        Some(Box::new(GatheredInPlace { group, staging, region, bytes, tensor }))
    }

    fn all_gather_scalars(&self, values: Vec<f64>) -> PendingValues {
        let (rank, size, each) = (self.rank(), self.size(), values.len());
        let mut all = vec![0.0f64; each * size];
        all[rank * each..(rank + 1) * each].copy_from_slice(&values);
        self.exchanges.fetch_add(1, Relaxed);
        self.exchanged_bytes.fetch_add((each * size_of::<f64>() * (size - 1)) as u64, Relaxed);
        let pending = self.group.all_gather(all, DType::F64);
        PendingValues::new(move || {
            let all = pending.wait().map_err(Error::collective)?;
            Ok((0..size).map(|rank| all[rank * each..(rank + 1) * each].to_vec()).collect())
        })
    }

    fn barrier(&self) -> Result<()> {
        self.group.barrier().map_err(Error::collective)
    }

    /// Exchanges are all-gathers of the group, and are counted apart from those of tensors.
    fn traffic(&self) -> Traffic {
        use brigade_comm::OpType as Op;
        let exchanged = (self.exchanges.load(Relaxed), self.exchanged_bytes.load(Relaxed));
        let mut traffic = Traffic::from([(Operation::AllGatherScalars, exchanged)]);
        for (operation, count) in self.group.stats().iter() {
            let (operation, apart) = match operation {
                Op::AllReduce => (Operation::AllReduce, (0, 0)),
                Op::ReduceScatter => (Operation::ReduceScatter, (0, 0)),
                Op::AllGather => (Operation::AllGather, exchanged),
                Op::Broadcast => (Operation::Broadcast, (0, 0)),
                Op::Send => (Operation::Send, (0, 0)),
                Op::Barrier => (Operation::Barrier, (0, 0)),
                _ => continue,
            };
            let counted = (count.calls.saturating_sub(apart.0), count.bytes.saturating_sub(apart.1));
            traffic.insert(operation, counted);
        }
        traffic
    }
}
