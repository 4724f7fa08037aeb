//! The groups of a mesh, over NCCL.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use brigade_comm::{Group, ReduceOp};
use brigade_core::{Collectives, Groups, Mesh, Solo};
use brigade_host::{Axes, Placement, axes};
use burn::tensor::{Bytes, DType, Device, TensorData};

use super::burn_order::{BurnOrder, Mode, QUEUES};
use super::collectives::{Inboxes, NcclCollectives};
use super::flat_tensor::Pinned;
use super::messages::{RECEIVER, SENDER};
use super::rank_gpu::RankGpu;
use crate::{Communicator, Context, ElementType, Error, Id, Inbox, Lane, Rank, Stream, Watch, nccl, shared};

/// How NCCL is used.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Whether the host waits for each operation: slow, with the same numbers.
    pub synchronous: bool,
    /// Whether a group of one rank goes through NCCL, too, to see what that costs.
    pub even_alone: bool,
}

/// This rank's groups along the axes of a mesh over all ranks of `world`, which all call it together, each with a GPU of its
/// own. Each wait has the [deadline](Group::limit) that `world` gives it.
///
/// # Errors
/// If two ranks have the same GPU, a communicator cannot be made, or a rank failed.
pub fn groups(
    world: &Group,
    mesh: Mesh,
    gpu: &RankGpu,
    options: Options,
) -> Result<Groups, Box<dyn std::error::Error + Send + Sync>> {
    if world.size() == 1 && !options.even_alone {
        return Ok(host_groups(world, mesh)?);
    }
    let opening = Opening::new(world, gpu, options)?;
    let all = opening.join(world, gpu)?;
    let Axes { dp, pp } = axes(world, mesh)?;
    let (stage, replica) = (mesh.pp_rank(world.rank()), mesh.dp_rank(world.rank()));
    let dp_own = opening.axis(&all, world, dp.as_ref(), stage, replica)?;
    let pp_own = opening.axis(&all, world, pp.as_ref(), replica, stage)?;
    let directions = match &pp {
        Some(group) => opening.directions(pp_own.as_ref().unwrap_or(&all), group)?,
        None => Directions::default(),
    };
    // The axis that holds all ranks shares the world's lane, and its directions.
    let (for_world, for_pp) = match &pp {
        Some(group) if group.size() == world.size() => (directions, Directions::default()),
        _ => (Directions::default(), directions),
    };
    let everyone = opening.collectives(all, world.clone(), for_world)?;
    let along = |group: Option<Group>, own: Option<Communicator>, directions: Directions| match (group, own) {
        (Some(group), Some(own)) => opening.collectives(own, group, directions),
        (Some(_), None) => Ok(everyone.clone()),
        (None, _) => Ok(Arc::new(Solo) as Arc<dyn Collectives>),
    };
    let dp = if world.size() == 1 { everyone.clone() } else { along(dp, dp_own, Directions::default())? };
    let pp = along(pp, pp_own, for_pp)?;
    Ok(Groups { dp, pp, world: everyone })
}

/// The groups of a mesh through host memory: ranks may then share a GPU.
///
/// # Errors
/// If a group cannot be connected, or a rank failed.
pub fn host_groups(world: &Group, mesh: Mesh) -> brigade_comm::Result<Groups> {
    brigade_host::groups(world, mesh, Placement::Device { buffer: pinned })
}

/// Host memory that the GPU copies from at full speed.
fn pinned(device: &Device, bytes: usize) -> Bytes {
    let mut data = TensorData::from_bytes(Bytes::from_elems(vec![0u8; bytes]), [bytes], DType::U8);
    device.staging(std::iter::once(&mut data));
    data.into_parts().0
}

/// This rank's ends of the directions between neighbours of a pipeline, the last and the first among them.
#[derive(Default)]
struct Directions {
    out: BTreeMap<usize, Lane>,
    inboxes: Inboxes,
}

/// Makes this rank's communicators, and connects them.
struct Opening {
    rank: Arc<Rank>,
    context: Arc<Context>,
    /// A little memory to connect with.
    scratch: Pinned,
    limit: Duration,
}

impl Opening {
    fn new(world: &Group, gpu: &RankGpu, options: Options) -> Result<Self, Box<dyn StdError + Send + Sync>> {
        check_queues();
        apart(world, gpu)?;
        let mode = if options.synchronous { Mode::Host } else { Mode::Events };
        let order = BurnOrder::new(mode, gpu.context.clone(), gpu.gpu().index)?.probed()?;
        let scratch = order.scratch()?;
        let (told, heard) = (world.clone(), world.clone());
        let elsewhere = move || heard.failure().map(|error| error.to_string());
        let watch = Watch::new(move |reason| told.abort(reason), elsewhere)?;
        let rank = Rank::new(watch, Box::new(order), gpu.context.clone(), world.clone());
        Ok(Self { rank, context: gpu.context.clone(), scratch, limit: world.limit() })
    }

    /// The communicator of all ranks.
    fn join(&self, world: &Group, gpu: &RankGpu) -> Result<Communicator, Box<dyn StdError + Send + Sync>> {
        let nccl = nccl()?;
        let mut id = if world.rank() == 0 { Id::new(nccl)?.to_bytes() } else { [0; Id::BYTES] };
        world.broadcast_in_place(&mut id, 0)?;
        gpu.context.make_current()?;
        let id = Id::from_bytes(id);
        let all = Communicator::begin(nccl, &gpu.context, world.name(), &id, world.rank(), world.size())?;
        // A rank that fails now is heard of, and ends the wait.
        self.rank.watch.register(&all);
        let all = all.joined(self.limit)?;
        self.connect(&all)?;
        Ok(all)
    }

    /// The communicator of an axis that does not hold all ranks. Splitting is a call of all ranks.
    fn axis(
        &self,
        all: &Communicator,
        world: &Group,
        axis: Option<&Group>,
        color: usize,
        key: usize,
    ) -> Result<Option<Communicator>, Error> {
        let Some(group) = axis.filter(|group| group.size() < world.size()) else { return Ok(None) };
        let own = all.split(group.name(), Some(color as u32), key, self.limit)?;
        if let Some(own) = &own {
            self.rank.watch.register(own);
            self.connect(own)?;
        }
        Ok(own)
    }

    /// NCCL connects ranks when they first do something together, and waits on the host for that.
    fn connect(&self, communicator: &Communicator) -> Result<(), Error> {
        let stream = Stream::new(&self.context)?;
        let place = self.scratch.address;
        communicator.enqueue("connecting", &stream, self.limit, |queue| {
            // SAFETY: the scratch memory is pinned, of more than these elements, and nothing else touches it until the stream
            // is done.
            unsafe { queue.all_reduce(place, place, 32, ElementType::F32, ReduceOp::Sum) }
        })?;
        stream.synchronize_within(self.limit)
    }

    /// Each direction is a communicator of two with a stream of its own, so that what goes one way never waits for what
    /// goes another.
    fn directions(&self, all: &Communicator, group: &Group) -> Result<Directions, Error> {
        let mut directions = Directions::default();
        for round in rounds(all.size()) {
            let own = round.iter().enumerate().find(|(_, (from, to))| [*from, *to].contains(&all.rank()));
            let (color, name, key) = match own {
                Some((index, (from, to))) => {
                    let key = if *from == all.rank() { SENDER } else { RECEIVER };
                    (Some(index as u32), format!("{} {from} to {to}", group.name()), key)
                }
                None => (None, String::new(), 0),
            };
            let split = all.split_narrow(&name, color, key, self.limit, BLOCKS)?;
            let (Some(communicator), Some((index, (from, to)))) = (split, own) else { continue };
            self.rank.watch.register(&communicator);
            self.connect_direction(&communicator)?;
            let notes = group.outside(&name, index as u64 + 1, &[*from, *to]);
            let lane = Lane::new(&self.rank, communicator, notes)?;
            if key == SENDER {
                directions.out.insert(*to, lane);
            } else {
                let inbox = Inbox::new(&self.rank, group.clone(), *from);
                directions.inboxes.insert(*from, (Arc::new(lane), inbox));
            }
        }
        Ok(directions)
    }

    fn connect_direction(&self, communicator: &Communicator) -> Result<(), Error> {
        let stream = Stream::new(&self.context)?;
        let place = self.scratch.address;
        // SAFETY: as in `connect`.
        communicator.enqueue("connecting", &stream, self.limit, |queue| match communicator.rank() {
            SENDER => unsafe { queue.send(place, 64, ElementType::U8, RECEIVER) },
            _ => unsafe { queue.recv(place, 64, ElementType::U8, SENDER) },
        })?;
        stream.synchronize_within(self.limit)
    }

    fn collectives(
        &self,
        communicator: Communicator,
        group: Group,
        Directions { out, inboxes }: Directions,
    ) -> Result<Arc<dyn Collectives>, Error> {
        let members: Vec<usize> = (0..group.size()).collect();
        let notes = group.outside(&format!("{} (NCCL)", group.name()), 0, &members);
        let lane = Lane::new(&self.rank, communicator, notes)?;
        Ok(Arc::new(NcclCollectives::new(lane, group, out, inboxes)))
    }
}

/// The most blocks of a GPU that the kernels of one direction take: operations of different communicators meet in another order
/// on each GPU, and must all find room at once.
const BLOCKS: u32 = 4;

/// Warns where streams would wait for each other.
fn check_queues() {
    let (name, wanted) = QUEUES;
    let queues = std::env::var(name).ok().and_then(|value| value.parse::<usize>().ok());
    if queues.is_none_or(|queues| queues < wanted) {
        tracing::warn!(
            "{name} should be {wanted}, so that streams do not share hardware queues; Brigade's launcher sets it"
        );
    }
}

/// The directions between neighbours on a ring of `size` ranks, in rounds in which each rank has one at most.
fn rounds(size: usize) -> Vec<Vec<(usize, usize)>> {
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
fn apart(world: &Group, gpu: &RankGpu) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    const LONGEST: usize = 64;
    let own = gpu.gpu().uuid.as_bytes();
    let own = &own[..own.len().min(LONGEST)];
    let mut all = vec![0u8; LONGEST * world.size()];
    all[LONGEST * world.rank()..][..own.len()].copy_from_slice(own);
    world.all_gather_in_place(&mut all)?;
    let uuid = |bytes| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
    let uuids: Vec<String> = all.chunks(LONGEST).map(uuid).collect();
    match shared(&uuids) {
        Some((first, second, uuid)) => Err(Error::SharedGpu { first, second, uuid }.into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_neighbour_gets_both_directions_and_no_rank_two_at_once() {
        for size in 1..10 {
            let rounds = rounds(size);
            let mut directions: Vec<_> = rounds.iter().flatten().copied().collect();
            directions.sort_unstable();
            let mut wanted: Vec<_> = (0..size)
                .flat_map(|rank| [(rank, (rank + 1) % size), ((rank + 1) % size, rank)])
                .filter(|(from, to)| from != to)
                .collect();
            wanted.sort_unstable();
            wanted.dedup();
            assert_eq!(directions, wanted, "{size}");
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
