//! Makes and connects the communicators of a rank.

use std::sync::Arc;
use std::time::Duration;

use brigade_comm::{DType, Group, ReduceOp};
use brigade_core::Collectives;

use super::collectives::{NcclCollectives, PipelineLinks};
use super::flat_tensor::DeviceMemory;
use super::messages::{RECEIVER, SENDER};
use super::order::burn_order::{BurnOrder, MAX_CONNECTIONS, SyncMode};
use super::rank_gpu::RankGpu;
use crate::{
    CommStream, Communicator, Context, Error, RankState, ReceiveQueue, Stream, UniqueId, Watchdog, nccl,
    shared_gpu,
};

/// How NCCL is used.
#[derive(Debug, Clone, Copy)]
pub struct NcclOptions {
    /// Whether the host blocks in each operation, as with PyTorch's `TORCH_NCCL_BLOCKING_WAIT`: slow, with the same results.
    pub synchronous: bool,
    /// Whether even a group of one rank goes through NCCL, to measure what that costs.
    pub even_alone: bool,
}

/// A failure of a GPU, of NCCL, or of the ranks' agreement over the network.
pub(super) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The most thread blocks of a GPU that the kernels of one link use: operations of different communicators start in a different
/// order on each GPU, and must all fit at once.
const LINK_MAX_CTAS: u32 = 4;

/// Makes and connects the communicators of a rank.
pub(super) struct GroupBuilder {
    rank: Arc<RankState>,
    context: Arc<Context>,
    /// A little memory to connect ranks with.
    scratch: DeviceMemory,
    timeout: Duration,
}

impl GroupBuilder {
    pub(super) fn new(world: &Group, gpu: &RankGpu, options: NcclOptions) -> Result<Self> {
        check_max_connections();
        check_distinct_gpus(world, gpu)?;
        let mode = if options.synchronous { SyncMode::Host } else { SyncMode::Events };
        let order = BurnOrder::new(mode, gpu.context.clone(), gpu.gpu().index)?.probed()?;
        let scratch = order.scratch()?;
        let (abort, look) = (world.clone(), world.clone());
        let remote_failure = move || look.failure().map(|error| error.to_string());
        let watchdog = Watchdog::new(move |reason| abort.abort(reason), remote_failure)?;
        let rank = RankState::new(watchdog, Box::new(order), gpu.context.clone(), world.clone());
        Ok(Self { rank, context: gpu.context.clone(), scratch, timeout: world.op_timeout() })
    }

    /// The communicator of all ranks.
    pub(super) fn join(&self, world: &Group, gpu: &RankGpu) -> Result<Communicator> {
        let nccl = nccl()?;
        let mut id = if world.rank() == 0 { UniqueId::new(nccl)?.to_bytes() } else { [0; UniqueId::BYTES] };
        world.broadcast_in_place(&mut id, 0)?;
        gpu.context.make_current()?;
        let id = UniqueId::from_bytes(id);
        let all =
            Communicator::begin_init(nccl, &gpu.context, world.name(), &id, world.rank(), world.size())?;
        // So that the failure of another rank ends the wait.
        self.rank.watchdog.register(&all);
        let all = all.wait_ready(self.timeout)?;
        self.connect(&all)?;
        Ok(all)
    }

    /// The communicator of a group, by a split of that of all ranks. All ranks must call it.
    pub(super) fn split(
        &self,
        all: &Communicator,
        group: &Group,
        color: u32,
        key: u32,
    ) -> Result<Communicator> {
        let own = all.split(group.name(), Some(color), key as usize, self.timeout)?;
        let own = own.ok_or_else(|| format!("NCCL made no communicator for the group {}", group.name()))?;
        self.rank.watchdog.register(&own);
        self.connect(&own)?;
        Ok(own)
    }

    /// NCCL connects ranks in their first operation together, and blocks the host meanwhile.
    fn connect(&self, communicator: &Communicator) -> std::result::Result<(), Error> {
        let stream = Stream::new(&self.context)?;
        let place = self.scratch.address;
        communicator.enqueue("connecting", &stream, self.timeout, |call| {
            // SAFETY: the scratch memory has at least this many elements, and nothing else touches it until the stream is done.
            unsafe { call.all_reduce(place, place, 32, DType::F32, ReduceOp::Sum) }
        })?;
        stream.synchronize_within(self.timeout)
    }

    /// The links to and from the neighbours in a pipeline. Each is a communicator of two ranks with a stream of its own, so that
    /// a transfer never waits for one in another direction.
    pub(super) fn links(
        &self,
        all: &Communicator,
        group: &Group,
    ) -> std::result::Result<PipelineLinks, Error> {
        let mut links = PipelineLinks::default();
        for round in link_rounds(all.size()) {
            let own = round.iter().enumerate().find(|(_, (from, to))| [*from, *to].contains(&all.rank()));
            let (color, name, key) = match own {
                Some((index, (from, to))) => {
                    let key = if *from == all.rank() { SENDER } else { RECEIVER };
                    (Some(index as u32), format!("{} {from} to {to}", group.name()), key)
                }
                None => (None, String::new(), 0),
            };
            let split = all.split_with_max_ctas(&name, color, key, self.timeout, LINK_MAX_CTAS)?;
            let (Some(communicator), Some((index, (from, to)))) = (split, own) else { continue };
            self.rank.watchdog.register(&communicator);
            self.connect_link(&communicator)?;
            let flight = group.external_recorder(&name, index as u64 + 1, &[*from, *to]);
            let comm_stream = CommStream::new(&self.rank, communicator, flight)?;
            if key == SENDER {
                links.to.insert(*to, comm_stream);
            } else {
                let queue = ReceiveQueue::new(&self.rank, group.clone(), *from);
                links.from.insert(*from, (Arc::new(comm_stream), queue));
            }
        }
        Ok(links)
    }

    fn connect_link(&self, communicator: &Communicator) -> std::result::Result<(), Error> {
        let stream = Stream::new(&self.context)?;
        let place = self.scratch.address;
        // SAFETY: as in `connect`.
        communicator.enqueue("connecting", &stream, self.timeout, |call| match communicator.rank() {
            SENDER => unsafe { call.send(place, 64, DType::U8, RECEIVER) },
            _ => unsafe { call.recv(place, 64, DType::U8, SENDER) },
        })?;
        stream.synchronize_within(self.timeout)
    }

    /// The collectives of a group that `communicator` connects.
    pub(super) fn collectives(
        &self,
        communicator: Communicator,
        group: Group,
        links: PipelineLinks,
    ) -> std::result::Result<Arc<dyn Collectives>, Error> {
        let members: Vec<usize> = (0..group.size()).collect();
        let flight = group.external_recorder(&format!("{} (NCCL)", group.name()), 0, &members);
        let comm_stream = CommStream::new(&self.rank, communicator, flight)?;
        Ok(Arc::new(NcclCollectives::new(comm_stream, group, links)))
    }
}

/// Warns if streams would wait for each other.
fn check_max_connections() {
    let (name, wanted) = MAX_CONNECTIONS;
    let connections = std::env::var(name).ok().and_then(|value| value.parse::<usize>().ok());
    if connections.is_none_or(|connections| connections < wanted) {
        tracing::warn!(
            "{name} should be {wanted}, so that streams do not share hardware queues; Brigade's launcher sets it"
        );
    }
}

/// The links between neighbours on a ring of `size` ranks, in rounds in which each rank has at most one.
fn link_rounds(size: usize) -> Vec<Vec<(usize, usize)>> {
    let edges = if size < 3 { size - 1 } else { size };
    let mut rounds = vec![Vec::new(); 6];
    for edge in 0..edges {
        let (left, right) = (edge, (edge + 1) % size);
        let color = if edge + 1 == size && size % 2 == 1 { 2 } else { edge % 2 };
        rounds[2 * color].push((left, right));
        rounds[2 * color + 1].push((right, left));
    }
    rounds.retain(|round| !round.is_empty());
    rounds
}

/// Checks that each rank has a GPU of its own.
fn check_distinct_gpus(world: &Group, gpu: &RankGpu) -> Result<()> {
    const MAX_UUID: usize = 64;
    let own = gpu.gpu().uuid.as_bytes();
    let own = &own[..own.len().min(MAX_UUID)];
    let mut all = vec![0u8; MAX_UUID * world.size()];
    all[MAX_UUID * world.rank()..][..own.len()].copy_from_slice(own);
    world.all_gather_in_place(&mut all)?;
    let uuid = |bytes| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
    let uuids: Vec<String> = all.chunks(MAX_UUID).map(uuid).collect();
    match shared_gpu(&uuids) {
        Some((first, second, uuid)) => Err(Error::SharedGpu { first, second, uuid }.into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_linked_both_ways_and_no_rank_has_two_links_in_a_round() {
        for size in 1..10 {
            let rounds = link_rounds(size);
            let mut links: Vec<_> = rounds.iter().flatten().copied().collect();
            links.sort_unstable();
            let mut wanted: Vec<_> = (0..size)
                .flat_map(|rank| [(rank, (rank + 1) % size), ((rank + 1) % size, rank)])
                .filter(|(from, to)| from != to)
                .collect();
            wanted.sort_unstable();
            wanted.dedup();
            assert_eq!(links, wanted, "{size}");
            for round in &rounds {
                let mut ends: Vec<_> = round.iter().flat_map(|(from, to)| [from, to]).collect();
                ends.sort_unstable();
                let count = ends.len();
                ends.dedup();
                assert_eq!(ends.len(), count, "{size}: {round:?}");
            }
        }
    }
}
