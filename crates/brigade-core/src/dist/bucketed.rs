//! Collectives that run together.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::tensor::{Device, FloatDType, Tensor};

use super::collectives::{CollectiveKind, Collectives, Message, Traffic};
use super::{Pending, PendingTensor, PendingValues, ReshardedBuffer};
use crate::error::{Error, Result};

/// Which collectives are sent together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Buckets {
    /// Up to this many bytes; 0 sends each operation by itself.
    pub bytes: usize,
    /// Also between ranks of one host, where a collective costs little delay, and buckets mainly keep it from overlapping with the backward pass.
    pub within_hosts: bool,
}

/// The collectives of a group, of which several small ones of a kind run as one: each costs a delay of the network, however little it moves (PyTorch DDP's
/// buckets; "PyTorch Distributed", Li et al., VLDB 2020, section 3.2.3).
///
/// An operation waits in a bucket until the bucket has `capacity` bytes, another kind of operation or [`flush`](Collectives::flush) follows, or somebody waits for
/// one of its results. All of that happens on all ranks alike, as they make the same calls in the same order. Where sums are taken per element in the order of
/// the ranks, the bits are those without buckets.
pub(crate) struct BucketedCollectives {
    group: Arc<dyn Collectives>,
    capacity: usize,
    /// The buckets that take further operations, one of them at most.
    tensors: Open<Tensor<1>>,
    bytes: Open<Vec<u8>>,
}

type Open<T> = Mutex<Option<Arc<Bucket<T>>>>;

/// Operations of a kind that begin together.
struct Bucket<T> {
    kind: CollectiveKind,
    group: Arc<dyn Collectives>,
    state: Mutex<State<T>>,
}

enum State<T> {
    Open(Vec<T>),
    Started(Pending<Vec<T>>),
    /// The results that nobody has taken yet.
    Done(Vec<Option<T>>),
    Failed(String),
}

/// What travels in a bucket.
trait Item: Sized + Send + 'static {
    fn bytes(&self) -> usize;
    /// Whether both can travel together.
    fn goes_with(&self, other: &Self) -> bool;
    /// Starts the operation on all items together.
    fn start(kind: CollectiveKind, items: Vec<Self>, group: &Arc<dyn Collectives>) -> Pending<Vec<Self>>;
}

impl BucketedCollectives {
    /// A group whose operations travel together, or the group itself where none do.
    pub(crate) fn over(group: Arc<dyn Collectives>, buckets: Buckets) -> Arc<dyn Collectives> {
        let Buckets { bytes: capacity, within_hosts } = buckets;
        match capacity > 0 && group.size() > 1 && (within_hosts || group.spans_hosts()) {
            true => Arc::new(Self { group, capacity, tensors: Mutex::default(), bytes: Mutex::default() }),
            false => group,
        }
    }

    fn put<T: Item>(&self, open: &Open<T>, kind: CollectiveKind, item: T) -> Pending<T> {
        let mut open = lock(open);
        let fitting = open.take_if(|bucket| bucket.takes(kind, &item));
        close(&mut open);
        let bucket = fitting.unwrap_or_else(|| {
            Arc::new(Bucket { kind, group: self.group.clone(), state: Mutex::new(State::Open(Vec::new())) })
        });
        let (place, bytes) = bucket.put(item);
        match bytes >= self.capacity {
            true => bucket.start(),
            false => *open = Some(bucket.clone()),
        }
        Pending::new(move || bucket.take(place))
    }

    fn put_tensor(&self, kind: CollectiveKind, tensor: Tensor<1>) -> PendingTensor {
        close(&mut lock(&self.bytes));
        self.put(&self.tensors, kind, tensor)
    }

    fn put_bytes(&self, kind: CollectiveKind, bytes: Vec<u8>) -> Pending<Vec<u8>> {
        close(&mut lock(&self.tensors));
        self.put(&self.bytes, kind, bytes)
    }

    /// The group, for an operation that follows those in the buckets.
    fn after(&self) -> &dyn Collectives {
        close(&mut lock(&self.tensors));
        close(&mut lock(&self.bytes));
        &*self.group
    }
}

/// Starts what is in a bucket.
fn close<T: Item>(open: &mut Option<Arc<Bucket<T>>>) {
    if let Some(bucket) = open.take() {
        bucket.start();
    }
}

impl<T: Item> Bucket<T> {
    /// Whether an operation can still begin with the others.
    fn takes(&self, kind: CollectiveKind, item: &T) -> bool {
        match &*lock(&self.state) {
            State::Open(items) => {
                self.kind == kind && items.first().is_none_or(|first| first.goes_with(item))
            }
            _ => false,
        }
    }

    /// Gives the item's place, and the bytes of all.
    fn put(&self, item: T) -> (usize, usize) {
        let mut state = lock(&self.state);
        let State::Open(items) = &mut *state else { return (usize::MAX, usize::MAX) };
        items.push(item);
        (items.len() - 1, items.iter().map(T::bytes).sum())
    }

    fn start(&self) {
        let mut state = lock(&self.state);
        if let State::Open(items) = &mut *state {
            let items = std::mem::take(items);
            *state = State::Started(T::start(self.kind, items, &self.group));
        }
    }

    /// Waits for all, and takes one of the results.
    fn take(&self, place: usize) -> Result<T> {
        self.start();
        let mut state = lock(&self.state);
        let mut results = match std::mem::replace(&mut *state, State::Done(Vec::new())) {
            State::Started(pending) => match pending.wait() {
                Ok(results) => results.into_iter().map(Some).collect(),
                Err(error) => {
                    *state = State::Failed(error.to_string());
                    return Err(error);
                }
            },
            State::Done(results) => results,
            State::Failed(text) => {
                *state = State::Failed(text.clone());
                return Err(Error::Collective(text.into()));
            }
            State::Open(_) => Vec::new(),
        };
        let result = results.get_mut(place).and_then(Option::take);
        *state = State::Done(results);
        result.ok_or_else(|| Error::Collective("a bucket did not take this operation".into()))
    }
}

/// Rows of a fused operation: those of what each rank puts in, and of what it gets. Each item is a part of every row.
fn rows(kind: CollectiveKind, ranks: usize) -> (usize, usize) {
    match kind {
        CollectiveKind::ReduceScatter => (ranks, 1),
        CollectiveKind::AllGather => (1, ranks),
        CollectiveKind::AllToAll => (ranks, ranks),
        _ => (1, 1),
    }
}

impl Item for Tensor<1> {
    fn bytes(&self) -> usize {
        self.dims()[0] * self.dtype().size()
    }

    fn goes_with(&self, other: &Self) -> bool {
        self.dtype() == other.dtype()
    }

    fn start(kind: CollectiveKind, items: Vec<Self>, group: &Arc<dyn Collectives>) -> Pending<Vec<Self>> {
        let run = |tensor| match kind {
            CollectiveKind::ReduceScatter => group.reduce_scatter(tensor),
            CollectiveKind::AllGather => group.all_gather(tensor),
            _ => group.all_reduce(tensor),
        };
        let items = match <[Self; 1]>::try_from(items) {
            Ok([only]) => {
                let pending = run(only);
                return Pending::new(move || Ok(vec![pending.wait()?]));
            }
            Err(items) => items,
        };
        let (given, got) = rows(kind, group.size());
        let lengths: Vec<usize> = items.iter().map(|item| item.dims()[0] / given).collect();
        let row: usize = lengths.iter().sum();
        let parts = items.into_iter().zip(&lengths).map(|(item, length)| item.reshape([given, *length]));
        let pending = run(Tensor::cat(parts.collect(), 1).reshape([given * row]));
        Pending::new(move || {
            let all = pending.wait()?.reshape([got, row]);
            let part = |(end, length): (usize, &usize)| {
                all.clone().slice([0..got, end - length..end]).reshape([got * length])
            };
            Ok(ends(&lengths).zip(&lengths).map(part).collect())
        })
    }
}

impl Item for Vec<u8> {
    fn bytes(&self) -> usize {
        self.len()
    }

    fn goes_with(&self, _: &Self) -> bool {
        true
    }

    fn start(kind: CollectiveKind, mut items: Vec<Self>, group: &Arc<dyn Collectives>) -> Pending<Vec<Self>> {
        let run = |bytes| match kind {
            CollectiveKind::AllToAll => group.all_to_all_bytes(bytes),
            _ => group.all_gather_bytes(bytes),
        };
        if items.len() == 1 {
            let pending = run(items.remove(0));
            return Pending::new(move || Ok(vec![pending.wait()?]));
        }
        let (given, got) = rows(kind, group.size());
        let lengths: Vec<usize> = items.iter().map(|item| item.len() / given).collect();
        let row: usize = lengths.iter().sum();
        let mut together = Self::with_capacity(given * row);
        for index in 0..given {
            for (item, length) in items.iter().zip(&lengths) {
                together.extend_from_slice(&item[index * length..(index + 1) * length]);
            }
        }
        let pending = run(together);
        Pending::new(move || {
            let all = pending.wait()?;
            let part = |(end, length): (usize, &usize)| {
                (0..got)
                    .flat_map(|index| &all[index * row + end - length..index * row + end])
                    .copied()
                    .collect()
            };
            Ok(ends(&lengths).zip(&lengths).map(part).collect())
        })
    }
}

/// Where each of several pieces ends that lie one after the other.
fn ends(lengths: &[usize]) -> impl Iterator<Item = usize> + '_ {
    lengths.iter().scan(0, |end, length| {
        *end += length;
        Some(*end)
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Collectives for BucketedCollectives {
    fn rank(&self) -> usize {
        self.group.rank()
    }

    fn size(&self) -> usize {
        self.group.size()
    }

    fn spans_hosts(&self) -> bool {
        self.group.spans_hosts()
    }

    /// What travels between hosts travels together there too.
    fn levels(&self) -> Result<Option<[Arc<dyn Collectives>; 2]>> {
        let buckets = Buckets { bytes: self.capacity, within_hosts: true };
        let levels = self.group.levels()?;
        Ok(levels.map(|[within, between]| [within, Self::over(between, buckets)]))
    }

    fn all_reduce(&self, tensor: Tensor<1>) -> PendingTensor {
        self.put_tensor(CollectiveKind::AllReduce, tensor)
    }

    fn reduce_scatter(&self, tensor: Tensor<1>) -> PendingTensor {
        self.put_tensor(CollectiveKind::ReduceScatter, tensor)
    }

    fn all_gather(&self, tensor: Tensor<1>) -> PendingTensor {
        self.put_tensor(CollectiveKind::AllGather, tensor)
    }

    fn broadcast(&self, tensor: Tensor<1>, root: usize) -> PendingTensor {
        self.after().broadcast(tensor, root)
    }

    fn send(&self, message: Message, to: usize) -> Pending<()> {
        self.after().send(message, to)
    }

    fn receive(&self, from: usize, device: &Device) -> Pending<Message> {
        self.after().receive(from, device)
    }

    fn all_gather_scalars(&self, values: Vec<f64>) -> PendingValues {
        self.after().all_gather_scalars(values)
    }

    fn all_to_all_bytes(&self, bytes: Vec<u8>) -> Pending<Vec<u8>> {
        self.put_bytes(CollectiveKind::AllToAll, bytes)
    }

    fn all_gather_bytes(&self, bytes: Vec<u8>) -> Pending<Vec<u8>> {
        self.put_bytes(CollectiveKind::AllGather, bytes)
    }

    fn barrier(&self) -> Result<()> {
        self.after().barrier()
    }

    fn flush(&self) {
        self.after();
    }

    fn traffic(&self) -> Traffic {
        self.group.traffic()
    }

    fn unsharded_buffer(
        &self,
        shard: usize,
        dtype: FloatDType,
        device: &Device,
    ) -> Option<Box<dyn ReshardedBuffer>> {
        self.group.unsharded_buffer(shard, dtype, device)
    }
}
