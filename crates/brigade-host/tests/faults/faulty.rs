//! Collectives that are right but for one thing.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use brigade_core::{
    CollectiveKind, Collectives, Message, Pending, PendingTensor, PendingValues, ReshardedBuffer, Result,
    Traffic, UnshardedBuffer,
};
use brigade_host::HostCollectives;
use burn::tensor::{Bytes, Device, FloatDType, Tensor};
use burn_flex::{Flex, FlexTensor, Layout};

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    None,
    /// One element of long sums is off in its last bit.
    Sum,
    /// Sums have other bits on rank 1.
    SumOfOne,
    /// The last element of a sum is missing.
    Short,
    /// A view is taken for the beginning of the memory that it shows a part of.
    View,
    /// Rank r gets the share of rank r + 1.
    Share,
    /// Gathered tensors are in reverse order.
    Order,
    /// The root is always rank 0.
    Root,
    /// Sums are written to the memory of their input, whoever else has it.
    Alias,
    /// Results are tensors with autodiff.
    Place,
    /// A buffer is filled in new memory, which no view shows.
    Refill,
    /// The first wait gets the result of the first operation, whichever it is for.
    Turn,
    /// An operation begins when it is waited for.
    Lazy,
    /// Results have come only for the thread that called.
    Thread,
    /// Sums are of what stood in the input's memory before the last work.
    Early,
    /// Absent parts of messages are left out.
    Absent,
    /// The last of the receives that wait gets the first message.
    LastFirst,
    /// A send waits until the other side receives.
    Rendezvous,
    /// Numbers come as fp32.
    Numbers,
    /// Barriers do not wait.
    Barrier,
    /// An operation's failure is forgotten.
    Failure,
    /// Exchanges take no notice of a failure before them.
    AfterFailure,
    /// Sums are counted one way only.
    Traffic,
    /// Bytes of all ranks come in the order of the ranks from the second on.
    Bytes,
}

/// Counts of receives, by the two ranks: what all ranks' faulty collectives know of each other.
#[derive(Default)]
pub struct Receives {
    by: Mutex<Vec<(usize, usize)>>,
    more: Condvar,
}

impl Receives {
    fn announce(&self, from: usize, by: usize) {
        self.by.lock().unwrap().push((from, by));
        self.more.notify_all();
    }

    /// Waits until `to` has received from `rank` as often as it was sent to.
    fn await_one(&self, rank: usize, to: usize) {
        let by = self.by.lock().unwrap();
        let is_awaited = |by: &mut Vec<(usize, usize)>| !by.contains(&(rank, to));
        let (mut by, waited) = self.more.wait_timeout_while(by, Duration::from_secs(1), is_awaited).unwrap();
        assert!(!waited.timed_out(), "rank {rank} sends to rank {to}, which never receives");
        let place = by.iter().position(|pair| *pair == (rank, to)).unwrap();
        by.remove(place);
    }
}

/// Things on their way that a fault hands out in another order.
type Queue<T> = Arc<Mutex<VecDeque<T>>>;

pub struct Faulty {
    ranks: Arc<HostCollectives>,
    fault: Fault,
    sums: Queue<PendingTensor>,
    messages: Queue<Pending<Message>>,
    receives: Arc<Receives>,
    before: Mutex<Option<Tensor<1>>>,
}

impl Faulty {
    pub fn new(ranks: HostCollectives, fault: Fault, receives: Arc<Receives>) -> Self {
        let (sums, messages, before) = Default::default();
        Self { ranks: Arc::new(ranks), fault, sums, messages, receives, before }
    }
}

impl Collectives for Faulty {
    fn rank(&self) -> usize {
        self.ranks.rank()
    }

    fn size(&self) -> usize {
        self.ranks.size()
    }

    fn all_reduce(&self, tensor: Tensor<1>) -> PendingTensor {
        let (fault, ranks, rank, length) = (self.fault, &self.ranks, self.rank(), tensor.dims()[0]);
        let change = |change: fn(Tensor<1>) -> Tensor<1>| {
            let sum = ranks.all_reduce(tensor.clone());
            PendingTensor::new(move || Ok(change(sum.wait()?)))
        };
        match fault {
            Fault::Sum if length > 1000 => change(off),
            Fault::SumOfOne if length > 1000 && rank == 1 => change(off),
            Fault::Short if length > 1 => change(shorter),
            Fault::Place => change(Tensor::autodiff),
            Fault::View => ranks.all_reduce(from_the_beginning(tensor)),
            Fault::Alias => {
                let memory = flex(tensor.clone()).data_arc();
                let sum = ranks.all_reduce(tensor);
                PendingTensor::new(move || {
                    let sum = sum.wait()?;
                    overwrite(&memory, flex(sum.clone()).bytes());
                    Ok(sum)
                })
            }
            Fault::Turn => {
                self.sums.lock().unwrap().push_back(ranks.all_reduce(tensor));
                let sums = self.sums.clone();
                PendingTensor::new(move || {
                    let first = sums.lock().unwrap().pop_front();
                    first.unwrap().wait()
                })
            }
            Fault::Lazy => {
                let ranks = ranks.clone();
                PendingTensor::new(move || ranks.all_reduce(tensor).wait())
            }
            Fault::Thread => {
                let (caller, sum) = (thread::current().id(), ranks.all_reduce(tensor.clone()));
                PendingTensor::new(move || {
                    let sum = sum.wait()?;
                    Ok(if thread::current().id() == caller { sum } else { tensor })
                })
            }
            Fault::Early => {
                let before = self.before.lock().unwrap().replace(tensor.clone());
                let as_long = before.filter(|before| before.dims() == tensor.dims());
                ranks.all_reduce(as_long.unwrap_or_else(|| tensor.zeros_like()))
            }
            Fault::Failure => {
                let sum = ranks.all_reduce(tensor.clone());
                PendingTensor::new(move || Ok(sum.wait().unwrap_or(tensor)))
            }
            _ => ranks.all_reduce(tensor),
        }
    }

    fn reduce_scatter(&self, tensor: Tensor<1>) -> PendingTensor {
        if self.fault != Fault::Share {
            return self.ranks.reduce_scatter(tensor);
        }
        let share = tensor.dims()[0] / self.size();
        let start = (self.rank() + 1) % self.size() * share;
        let sum = self.ranks.all_reduce(tensor);
        PendingTensor::new(move || Ok(sum.wait()?.slice(start..start + share)))
    }

    fn all_gather(&self, tensor: Tensor<1>) -> PendingTensor {
        let (size, share) = (self.size(), tensor.dims()[0]);
        let all = self.ranks.all_gather(tensor);
        if self.fault != Fault::Order || share == 0 {
            return all;
        }
        PendingTensor::new(move || Ok(all.wait()?.reshape([size, share]).flip([0]).reshape([size * share])))
    }

    fn broadcast(&self, tensor: Tensor<1>, root: usize) -> PendingTensor {
        self.ranks.broadcast(tensor, if self.fault == Fault::Root { 0 } else { root })
    }

    fn send(&self, mut message: Message, to: usize) -> Pending<()> {
        if self.fault == Fault::Absent {
            message.retain(Option::is_some);
        }
        let sent = self.ranks.send(message, to);
        if self.fault == Fault::Rendezvous {
            self.receives.await_one(self.rank(), to);
        }
        sent
    }

    fn receive(&self, from: usize, device: &Device) -> Pending<Message> {
        self.receives.announce(from, self.rank());
        let message = self.ranks.receive(from, device);
        if self.fault != Fault::LastFirst {
            return message;
        }
        self.messages.lock().unwrap().push_back(message);
        let messages = self.messages.clone();
        Pending::new(move || {
            let last = messages.lock().unwrap().pop_back();
            last.unwrap().wait()
        })
    }

    fn all_gather_scalars(&self, mut values: Vec<f64>) -> PendingValues {
        if self.fault == Fault::Numbers {
            values.iter_mut().for_each(|value| *value = f64::from(*value as f32));
        }
        let all = self.ranks.all_gather_scalars(values.clone());
        if self.fault != Fault::AfterFailure {
            return all;
        }
        let size = self.size();
        PendingValues::new(move || Ok(all.wait().unwrap_or_else(|_| vec![values; size])))
    }

    fn all_to_all_bytes(&self, bytes: Vec<u8>) -> Pending<Vec<u8>> {
        let (fault, size) = (self.fault, self.size());
        let all = self.ranks.all_to_all_bytes(bytes);
        Pending::new(move || {
            let mut all = all.wait()?;
            if fault == Fault::Bytes && size > 1 && !all.is_empty() {
                let part = all.len() / size;
                all.rotate_left(part);
            }
            Ok(all)
        })
    }

    fn all_gather_bytes(&self, bytes: Vec<u8>) -> Pending<Vec<u8>> {
        self.ranks.all_gather_bytes(bytes)
    }

    fn barrier(&self) -> Result<()> {
        if self.fault == Fault::Barrier { Ok(()) } else { self.ranks.barrier() }
    }

    fn traffic(&self) -> Traffic {
        let mut traffic = self.ranks.traffic();
        if let (Fault::Traffic, Some(count)) = (self.fault, traffic.get_mut(&CollectiveKind::AllReduce)) {
            count.1 /= 2;
        }
        traffic
    }

    fn unsharded_buffer(
        &self,
        shard: usize,
        dtype: FloatDType,
        device: &Device,
    ) -> Option<Box<dyn ReshardedBuffer>> {
        let buffer = self.ranks.unsharded_buffer(shard, dtype, device)?;
        if self.fault != Fault::Refill {
            return Some(buffer);
        }
        let tensor = moved(buffer.tensor());
        Some(Box::new(Elsewhere { buffer, tensor }))
    }
}

/// A buffer that is filled in new memory each time.
struct Elsewhere<B: ?Sized> {
    buffer: Box<B>,
    tensor: Tensor<1>,
}

impl ReshardedBuffer for Elsewhere<dyn ReshardedBuffer> {
    fn tensor(&self) -> Tensor<1> {
        self.tensor.clone()
    }

    unsafe fn all_gather(self: Box<Self>, shard: Tensor<1>) -> Pending<Box<dyn UnshardedBuffer>> {
        // SAFETY: the caller's.
        elsewhere(unsafe { self.buffer.all_gather(shard) }.wait())
    }

    unsafe fn fill(self: Box<Self>, whole: PendingTensor) -> Pending<Box<dyn UnshardedBuffer>> {
        // SAFETY: the caller's.
        elsewhere(unsafe { self.buffer.fill(whole) }.wait())
    }
}

fn elsewhere(filled: Result<Box<dyn UnshardedBuffer>>) -> Pending<Box<dyn UnshardedBuffer>> {
    Pending::new(|| {
        filled.map(|buffer| {
            let tensor = moved(buffer.tensor());
            Box::new(Elsewhere { buffer, tensor }) as Box<dyn UnshardedBuffer>
        })
    })
}

impl UnshardedBuffer for Elsewhere<dyn UnshardedBuffer> {
    fn tensor(&self) -> Tensor<1> {
        self.tensor.clone()
    }

    unsafe fn reshard(self: Box<Self>) -> Box<dyn ReshardedBuffer> {
        // SAFETY: the caller's.
        let buffer = unsafe { self.buffer.reshard() };
        Box::new(Elsewhere { buffer, tensor: self.tensor })
    }
}

/// In other memory.
fn moved(tensor: Tensor<1>) -> Tensor<1> {
    let device = tensor.device();
    Tensor::from_data(tensor.into_data(), &device)
}

/// Off in the last bit.
fn off(sum: Tensor<1>) -> Tensor<1> {
    sum * (1.0 + 2f32.powi(-23))
}

/// Without its last element.
fn shorter(sum: Tensor<1>) -> Tensor<1> {
    let [length] = sum.dims();
    sum.slice(0..length - 1)
}

fn flex(tensor: Tensor<1>) -> FlexTensor {
    tensor.try_into_primitive::<Flex>().unwrap()
}

/// As many elements as a view has, from the beginning of its memory.
fn from_the_beginning(view: Tensor<1>) -> Tensor<1> {
    let view = flex(view);
    let layout = Layout::contiguous(view.layout().shape().clone());
    Tensor::from_primitive::<Flex>(view.with_layout(layout))
}

/// Writes memory that others may have, too, if it is as long.
fn overwrite(memory: &Arc<Bytes>, with: &[u8]) {
    if memory.len() == with.len() {
        // SAFETY: nobody looks at it now: each test's rank is one thread, which is here.
        let memory = unsafe { &mut *Arc::as_ptr(memory).cast_mut() };
        memory.copy_from_slice(with);
    }
}
