//! Ranks on several hosts: how many bytes of a step leave a host, with replicas and with codes.

use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use brigade::comm::{AuthToken, Driver, Error, Join, OpArgs, OpBuffer, ProcessGroup, Result, Stats, join};
use brigade::core::compress::{Compression, Method};
use brigade::core::{CHUNK, CollectiveKind, Groups, Mesh, NamedTensor, Traffic, Zero};

use crate::mesh::same_bits;
use crate::row::{RATE, Row};
use crate::strategies::compressed::compressed;

/// Ranks of a host.
const PER_HOST: usize = 2;

/// What a rank sent in a step, and has after it.
struct Stepped {
    /// Bytes to ranks of other hosts, of all groups and operations.
    between_hosts: u64,
    /// What the step counted of all bytes.
    traffic: Traffic,
    weights: Vec<NamedTensor>,
}

/// Runs a step on hosts of two ranks.
fn step(row: &Row) -> Vec<Stepped> {
    let (mesh, listener) = (&row.mesh(), &TcpListener::bind("127.0.0.1:0").unwrap());
    thread::scope(|scope| {
        let rank = |rank: usize| scope.spawn(move || step_of_rank(row, mesh, rank, listener));
        let ranks: Vec<_> = (0..mesh.world()).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn step_of_rank(row: &Row, mesh: &Mesh, rank: usize, listener: &TcpListener) -> Stepped {
    let endpoint = listener.local_addr().unwrap().to_string();
    let world = join(Join {
        listener: (rank == 0).then(|| listener.try_clone().unwrap()),
        host: Some(format!("host {}", rank / PER_HOST)),
        ..Join::new(rank, mesh.world(), endpoint, AuthToken::new("ranks of several hosts"))
    });
    let world = world.unwrap();
    let made: Made = Arc::default();
    let all = Recorded::new(Arc::new(world.group().clone()), &made);
    let groups = brigade_cpu::groups(&all, mesh.clone()).unwrap();
    let crossed = |made: &[Arc<dyn ProcessGroup>]| -> u64 {
        made.iter().map(|group| group.stats().between_hosts()).sum()
    };
    let mut engine = row.engine(groups.clone()).unwrap();
    let before = crossed(&made.lock().unwrap());
    let report = engine.step(row.batches(0, &groups), RATE).unwrap();
    let between_hosts = crossed(&made.lock().unwrap()) - before;
    let traffic = report.traffic;
    let mut weights = Vec::new();
    for root in 0..mesh.world() {
        let tensors = engine.tensors(root).unwrap();
        if root == rank {
            weights = tensors;
        }
    }
    drop((engine, groups));
    world.shutdown().unwrap();
    Stepped { between_hosts, traffic, weights }
}

/// Bytes to other hosts, and of sums over ranks that have the same elements.
type Sent = (u64, u64);

/// What more blocks add: numbers of the whole step, such as losses, are as many with any number of blocks.
fn added(row: &Row) -> Vec<Sent> {
    let [few, many] = [2, 4].map(|layers| step(&Row { layers, ..row.clone() }));
    let sums = |of: &Stepped| of.traffic.get(&CollectiveKind::AllReduce).map_or(0, |(_, bytes)| *bytes);
    let pairs = few.iter().zip(&many);
    pairs.map(|(few, many)| (many.between_hosts - few.between_hosts, sums(many) - sums(few))).collect()
}

/// A group that keeps all groups that are made of it.
#[derive(Clone)]
struct Recorded {
    group: Arc<dyn ProcessGroup>,
    made: Made,
}

type Made = Arc<Mutex<Vec<Arc<dyn ProcessGroup>>>>;

impl Recorded {
    fn new(group: Arc<dyn ProcessGroup>, made: &Made) -> Self {
        made.lock().unwrap().push(group.clone());
        Self { group, made: made.clone() }
    }
}

impl ProcessGroup for Recorded {
    fn rank(&self) -> usize {
        self.group.rank()
    }
    fn size(&self) -> usize {
        self.group.size()
    }
    fn name(&self) -> &str {
        self.group.name()
    }
    fn start(&self, args: OpArgs, buffer: Box<dyn OpBuffer>) {
        self.group.start(args, buffer);
    }
    fn driver(&self) -> Option<Arc<dyn Driver>> {
        self.group.driver()
    }
    fn barrier(&self) -> Result<()> {
        self.group.barrier()
    }
    fn split(&self, name: &str, color: u32, key: u32) -> Result<Arc<dyn ProcessGroup>> {
        Ok(Arc::new(Self::new(self.group.split(name, color, key)?, &self.made)))
    }
    fn spans_hosts(&self) -> bool {
        self.group.spans_hosts()
    }
    fn ranks_per_host(&self) -> Option<usize> {
        self.group.ranks_per_host()
    }
    fn stats(&self) -> Stats {
        self.group.stats()
    }
    fn op_timeout(&self) -> Duration {
        self.group.op_timeout()
    }
    fn failure(&self) -> Option<Error> {
        self.group.failure()
    }
    fn abort(&self, reason: &str) {
        self.group.abort(reason);
    }
}

/// Two replicas send each other their shard of the gradients, `2 (R - 1) / R` times its bytes, and nothing else.
#[test]
fn with_a_replica_on_each_host_only_sums_of_shards_leave_a_host() {
    for stage in 1..=3 {
        let zero = Zero { stage, ..Zero::default() };
        let row = Row { replicate: 2, dp: PER_HOST, micro_batches: 2, zero, ..Row::default() };
        // A block of width 12: two norms, four projections and a feed-forward of four times the width, in fp32, whose shards are whole chunks.
        let elements = (12 * 12 * 12 + 13 * 12usize).next_multiple_of(CHUNK * PER_HOST);
        let shard = (4 * elements / PER_HOST) as u64;
        let with_replicas = added(&row);
        for sent in &with_replicas {
            assert_eq!(*sent, (2 * shard, 2 * shard), "stage {stage}");
        }
        // Without replicas, both hosts have shards of all that each micro-batch gathers or reduces.
        if stage > 1 {
            let sharded = added(&Row { replicate: 1, dp: 4, ..row });
            let mut pairs = sharded.iter().zip(&with_replicas);
            assert!(pairs.all(|(sharded, replicated)| sharded.0 > replicated.0), "{stage}: {sharded:?}");
        }
    }
}

/// As bytes leave a host once in plain sums, so do codes of the sums of each host's ranks.
#[test]
fn codes_leave_a_host_once_and_all_ranks_have_the_same_sums() {
    let plain = Row { dp: 4, micro_batches: 2, ..Row::default() };
    let sums = added(&plain);
    for (method, fewer, off) in
        [(Method::Bf16, 1.8, 1e-3), (Method::Int8, 3.5, 0.02), (Method::Int4, 6.5, 1.0)]
    {
        let row = compressed(Compression { method, ..Compression::default() }, plain.clone());
        for (rank, (coded, exact)) in added(&row).iter().zip(&sums).enumerate() {
            let ratio = exact.0 as f64 / coded.0 as f64;
            assert!(ratio >= fewer, "{method}, rank {rank}: {coded:?} and {exact:?}");
        }
        let [once, again] = [step(&row), step(&row)];
        for rank in once.iter().chain(&again) {
            same_bits(&rank.weights, &once[0].weights, &method.to_string());
        }
        let weights = |stepped: &[Stepped]| -> Vec<f32> {
            let tensors = stepped[0].weights.iter();
            tensors.flat_map(|tensor| tensor.data.as_slice::<f32>().unwrap().to_vec()).collect()
        };
        // Only the rounding differs.
        let row = Row { optimizer: "sgd", ..row };
        let exact = Row { optimizer: "sgd", ..plain.clone() };
        let [coded, exact] = [step(&row), step(&exact)].map(|stepped| weights(&stepped));
        let square =
            |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>();
        let apart = square(&mut coded.iter().zip(&exact).map(|(a, b)| a - b));
        let start = weights_at_the_start(&plain);
        let moved = square(&mut exact.iter().zip(&start).map(|(a, b)| a - b));
        assert!(apart > 0.0 && apart < off * moved, "{method}: {apart} of {moved}");
    }
}

fn weights_at_the_start(row: &Row) -> Vec<f32> {
    let engine = row.reference().engine(Groups::single_rank()).unwrap();
    let tensors = engine.tensors(0).unwrap();
    tensors.iter().flat_map(|tensor| tensor.data.as_slice::<f32>().unwrap().to_vec()).collect()
}
