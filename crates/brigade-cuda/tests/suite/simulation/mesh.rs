//! The ranks of a mesh, with groups and communication streams made as `tensors::groups` makes them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use brigade_comm::{Group, Timeouts};
use brigade_cuda::{
    CommStream, Communicator, Context, NcclWork, RankState, ReceiveQueue, UniqueId, Watchdog, nccl,
};

use super::compute_stream::ComputeStream;
use super::memory_pool::{Buffer, Pool};
use super::order::{OrderKind, SimOrder};
use crate::harness::SOON;

/// Ranks along each axis. Rank `replica * pp + stage` of the world is stage `stage` of replica `replica`.
#[derive(Debug, Clone, Copy)]
pub struct Mesh {
    pub pp: usize,
    pub dp: usize,
}

/// The parameters of a world.
#[derive(Debug, Clone, Copy)]
pub struct Sim {
    pub mesh: Mesh,
    pub order: OrderKind,
    /// The deadline of an operation.
    pub timeout: Duration,
}

/// A message that was received or is being received.
pub type Incoming = Result<(Vec<Buffer>, NcclWork), String>;

/// The ranks of a link's communicator.
pub const SENDER: usize = 0;
pub const RECEIVER: usize = 1;

/// One rank. Its fields are dropped in order: communication streams before what they need.
pub struct SimRank {
    pub stage: usize,
    pub replica: usize,
    pub out: BTreeMap<usize, CommStream>,
    pub receive_queues: BTreeMap<usize, (Arc<CommStream>, Arc<ReceiveQueue<Incoming>>)>,
    pub dp: Option<CommStream>,
    pub pp_group: Group,
    pub world: Group,
    pub pool: Pool,
    pub compute: Arc<ComputeStream>,
}

impl Sim {
    /// Runs `body` as each rank of the mesh, on a thread each.
    pub fn run<R: Send>(self, body: impl Fn(SimRank) -> R + Sync) -> Vec<R> {
        let id = UniqueId::new(nccl().unwrap()).unwrap().to_bytes();
        let timeouts = Timeouts { init: SOON, step: self.timeout, ..Timeouts::default() };
        let groups = brigade_comm::threads(self.mesh.pp * self.mesh.dp, timeouts);
        std::thread::scope(|scope| {
            let body = &body;
            let ranks: Vec<_> = groups
                .into_iter()
                .map(|world| scope.spawn(move || body(self.rank(world, UniqueId::from_bytes(id)))))
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    fn rank(self, world: Group, id: UniqueId) -> SimRank {
        let Mesh { pp, dp } = self.mesh;
        let (me, size) = (world.rank(), world.size());
        let (replica, stage) = (me / pp, me % pp);
        let context = Context::new(me).unwrap();
        let compute = Arc::new(ComputeStream::new(&context));
        let all = Communicator::init(nccl().unwrap(), &context, "world", &id, me, size, SOON).unwrap();
        let order = SimOrder::new(self.order, context.clone(), compute.clone(), me);
        let (abort, look) = (world.clone(), world.clone());
        let remote_failure = move || look.failure().map(|error| error.to_string());
        let watchdog = Watchdog::new(move |reason| abort.abort(reason), remote_failure).unwrap();
        let rank = RankState::new(watchdog, Box::new(order), context, world.clone());

        let pp_group = world.split("pp", replica as u32, stage as u32).unwrap();
        let dp_group = world.split("dp", stage as u32, replica as u32).unwrap();
        let pp_own = all.split("pp", Some(replica as u32), stage, SOON).unwrap().unwrap();
        let dp_own = all.split("dp", Some(stage as u32), replica, SOON).unwrap().unwrap();
        let notes = dp_group.external_recorder("dp (NCCL)", 0, &(0..dp).collect::<Vec<_>>());
        let dp_lane = (dp > 1).then(|| CommStream::new(&rank, dp_own, notes).unwrap());
        let (mut out, mut receive_queues) = (BTreeMap::new(), BTreeMap::new());
        for (color, (from, to)) in links(pp).into_iter().enumerate() {
            let name = format!("pp {from} to {to}");
            let takes_part = [from, to].contains(&stage).then_some(0);
            let key = if stage == from { SENDER } else { RECEIVER };
            let Some(pair) = pp_own.split(&name, takes_part, key, SOON).unwrap() else { continue };
            let notes = pp_group.external_recorder(&name, color as u64 + 1, &[from, to]);
            let comm_stream = CommStream::new(&rank, pair, notes).unwrap();
            if stage == from {
                out.insert(to, comm_stream);
            } else {
                receive_queues
                    .insert(from, (Arc::new(comm_stream), ReceiveQueue::new(&rank, pp_group.clone(), from)));
            }
        }
        SimRank {
            stage,
            replica,
            out,
            receive_queues,
            dp: dp_lane,
            pp_group,
            world,
            pool: Pool::default(),
            compute,
        }
    }
}

/// The links between neighbours on a ring, in both directions.
fn links(size: usize) -> Vec<(usize, usize)> {
    let mut all: Vec<_> =
        (0..size).flat_map(|rank| [(rank, (rank + 1) % size), ((rank + 1) % size, rank)]).collect();
    all.retain(|(from, to)| from != to);
    all.sort_unstable();
    all.dedup();
    all
}
