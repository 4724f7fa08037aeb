//! Collectives over tensors, through host memory.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use brigade_comm::{DType, ProcessGroup, ReduceOp};
use brigade_core::{
    CollectiveKind, Collectives, Error, Message, Pending, PendingTensor, PendingValues, ReshardedBuffer,
    Result, Traffic,
};
use burn::tensor::{Device, FloatDType, Tensor};

use crate::copies::{Copier, DeviceCopies, HostTensor};
use crate::memory_space::MemorySpace;
use crate::message;
use crate::page_pool::PagePool;
use crate::unsharded_buffer::UnshardedHostBuffer;

/// The longest message between stages that a rank takes, in bytes.
const LONGEST_MESSAGE: usize = 16 << 30;

/// A process group's collectives for tensors of any device. A tensor in host memory that is whole and solely owned is moved
/// in and out of the operation without a copy; others are copied to the host first.
pub struct HostCollectives {
    group: Arc<dyn ProcessGroup>,
    copier: Arc<Copier>,
    pool: Arc<PagePool>,
    scalar_gathers: AtomicU64,
    scalar_bytes: AtomicU64,
    /// The groups of its levels, whose traffic is its own.
    levels: Mutex<Vec<Arc<dyn Collectives>>>,
}

impl HostCollectives {
    /// Collectives of a group of any engine, for tensors in the given place.
    pub fn new(group: impl ProcessGroup + 'static, memory_space: MemorySpace) -> Self {
        let copier = Arc::new(Copier::new(memory_space));
        Self {
            group: Arc::new(group),
            copier,
            pool: Arc::default(),
            scalar_gathers: AtomicU64::new(0),
            scalar_bytes: AtomicU64::new(0),
            levels: Mutex::default(),
        }
    }

    /// The copies between the device and the host so far.
    pub fn device_copies(&self) -> DeviceCopies {
        self.copier.device_copies()
    }

    /// Copies a tensor to the host, starts an operation on it, and makes a tensor of the part of the result that `kept` gives.
    fn run(
        &self,
        tensor: Tensor<1>,
        start: impl FnOnce(HostTensor, DType) -> brigade_comm::Work<HostTensor>,
        kept: impl FnOnce(HostTensor) -> HostTensor + Send + 'static,
    ) -> PendingTensor {
        match self.copier.tensor_to_host(tensor) {
            Ok(host_tensor) => {
                let dtype = host_tensor.dtype;
                let (pending, copier) = (start(host_tensor, dtype), self.copier.clone());
                PendingTensor::new(move || {
                    Ok(copier.tensor_to_device(kept(pending.wait().map_err(Error::collective)?)))
                })
            }
            Err(error) => PendingTensor::new(move || Err(error)),
        }
    }
}

impl Collectives for HostCollectives {
    fn rank(&self) -> usize {
        self.group.rank()
    }

    fn size(&self) -> usize {
        self.group.size()
    }

    fn spans_hosts(&self) -> bool {
        self.group.spans_hosts()
    }

    fn levels(&self) -> Result<Option<[Arc<dyn Collectives>; 2]>> {
        let Some(neighbours) = self.group.neighbours() else { return Ok(None) };
        let (row, place) = (self.rank() / neighbours, self.rank() % neighbours);
        let split = |what: String, color: usize, key: usize| -> Result<Arc<dyn Collectives>> {
            let name = format!("{} {what}", self.group.name());
            let group = self.group.split(&name, color as u32, key as u32).map_err(Error::collective)?;
            Ok(Arc::new(Self::new(group, self.copier.memory_space)))
        };
        let within = split(format!("neighbours {row}"), row, place)?;
        let between = split(format!("place {place} among neighbours"), place, row)?;
        let levels = [within, between];
        self.levels.lock().unwrap_or_else(PoisonError::into_inner).extend(levels.iter().cloned());
        Ok(Some(levels))
    }

    fn all_reduce(&self, tensor: Tensor<1>) -> PendingTensor {
        let start = |host_tensor, dtype| self.group.all_reduce(host_tensor, dtype, ReduceOp::Sum);
        self.run(tensor, start, |host_tensor| host_tensor)
    }

    fn reduce_scatter(&self, tensor: Tensor<1>) -> PendingTensor {
        let (rank, size, memory_space) = (self.rank(), self.size(), self.copier.memory_space);
        let start = |host_tensor, dtype| self.group.reduce_scatter(host_tensor, dtype, ReduceOp::Sum);
        self.run(tensor, start, move |mut host_tensor| {
            let share = host_tensor.bytes.len() / size;
            host_tensor.bytes = memory_space.part(host_tensor.bytes, rank * share..(rank + 1) * share);
            host_tensor
        })
    }

    fn all_gather(&self, tensor: Tensor<1>) -> PendingTensor {
        let (rank, size) = (self.rank(), self.size());
        let start = |host_tensor: HostTensor, dtype| {
            let share = host_tensor.bytes.len();
            let mut whole = self.copier.memory_space.buffer(&host_tensor.device, share * size);
            whole[rank * share..(rank + 1) * share].copy_from_slice(&host_tensor.bytes);
            self.group.all_gather(host_tensor.with_bytes(whole), dtype)
        };
        self.run(tensor, start, |host_tensor| host_tensor)
    }

    fn broadcast(&self, tensor: Tensor<1>, root: usize) -> PendingTensor {
        self.run(
            tensor,
            |host_tensor, dtype| self.group.broadcast(host_tensor, dtype, root),
            |host_tensor| host_tensor,
        )
    }

    fn send(&self, message: Message, to: usize) -> Pending<()> {
        match message::encode(message, &self.copier) {
            Ok(bytes) => {
                let sent = self.group.send(bytes, DType::U8, to);
                Pending::new(move || sent.wait().map(drop).map_err(Error::collective))
            }
            Err(error) => Pending::new(move || Err(error)),
        }
    }

    fn receive(&self, from: usize, device: &Device) -> Pending<Message> {
        let received = self.group.recv_message(from, LONGEST_MESSAGE);
        let (copier, device) = (self.copier.clone(), device.clone());
        Pending::new(move || message::decode(received.wait().map_err(Error::collective)?, &device, &copier))
    }

    fn unsharded_buffer(
        &self,
        shard: usize,
        dtype: FloatDType,
        device: &Device,
    ) -> Option<Box<dyn ReshardedBuffer>> {
        let MemorySpace::Host = self.copier.memory_space else { return None };
        let buffer = UnshardedHostBuffer::new(
            self.group.clone(),
            self.copier.clone(),
            self.pool.clone(),
            shard,
            (dtype, device),
        )?;
        Some(Box::new(buffer))
    }

    fn all_gather_scalars(&self, values: Vec<f64>) -> PendingValues {
        let (size, each) = (self.size(), values.len());
        self.scalar_gathers.fetch_add(1, Relaxed);
        self.scalar_bytes.fetch_add((each * size_of::<f64>() * (size - 1)) as u64, Relaxed);
        let pending = self.group.all_gather_scalars(&values);
        PendingValues::new(move || {
            let all = pending.wait().map_err(Error::collective)?;
            Ok((0..size).map(|rank| all[rank * each..(rank + 1) * each].to_vec()).collect())
        })
    }

    fn all_to_all_bytes(&self, bytes: Vec<u8>) -> Pending<Vec<u8>> {
        let pending = self.group.all_to_all(bytes, DType::U8);
        Pending::new(move || pending.wait().map_err(Error::collective))
    }

    fn all_gather_bytes(&self, bytes: Vec<u8>) -> Pending<Vec<u8>> {
        let (rank, size, each) = (self.rank(), self.size(), bytes.len());
        let mut all = vec![0; each * size];
        all[rank * each..(rank + 1) * each].copy_from_slice(&bytes);
        let pending = self.group.all_gather(all, DType::U8);
        Pending::new(move || pending.wait().map_err(Error::collective))
    }

    fn barrier(&self) -> Result<()> {
        self.group.barrier().map_err(Error::collective)
    }

    /// Gathers of scalars are all-gathers of the group, and are counted separately from those of tensors.
    fn traffic(&self) -> Traffic {
        use brigade_comm::OpType as Op;
        let scalars = (self.scalar_gathers.load(Relaxed), self.scalar_bytes.load(Relaxed));
        let mut traffic = Traffic::from([(CollectiveKind::AllGatherScalars, scalars)]);
        for (operation, count) in self.group.stats().iter() {
            let (operation, apart) = match operation {
                Op::AllReduce => (CollectiveKind::AllReduce, (0, 0)),
                Op::ReduceScatter => (CollectiveKind::ReduceScatter, (0, 0)),
                Op::AllGather => (CollectiveKind::AllGather, scalars),
                Op::AllToAll => (CollectiveKind::AllToAll, (0, 0)),
                Op::Broadcast => (CollectiveKind::Broadcast, (0, 0)),
                Op::Send => (CollectiveKind::Send, (0, 0)),
                Op::Barrier => (CollectiveKind::Barrier, (0, 0)),
                _ => continue,
            };
            let counted = (count.calls.saturating_sub(apart.0), count.bytes.saturating_sub(apart.1));
            traffic.insert(operation, counted);
        }
        for level in self.levels.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            for (operation, (calls, bytes)) in level.traffic() {
                let counted = traffic.entry(operation).or_default();
                *counted = (counted.0 + calls, counted.1 + bytes);
            }
        }
        traffic
    }
}
