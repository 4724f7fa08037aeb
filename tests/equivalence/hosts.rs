//! Ranks on several hosts: how many bytes of a step leave a host, with replicas and with codes.

use std::net::TcpListener;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use brigade::comm::{AuthToken, Driver, Error, Join, OpArgs, OpBuffer, ProcessGroup, Result, Stats, join};
use brigade::core::compress::{Compression, Method};
use brigade::core::{CHUNK, CollectiveKind, Groups, NamedTensor, Traffic, Zero};

use crate::mesh::same_bits;
use crate::resume::{Saved, snapshot};
use crate::row::{Gpt, RATE, Row};
use crate::strategies::compressed::{compressed, methods};

/// Ranks of each host of [`EVEN`].
const PER_HOST: usize = 2;

/// The host of each rank.
const EVEN: [usize; 4] = [0, 0, 1, 1];

/// Hosts of two and four ranks, of which each two add up first.
const UNEVEN: [usize; 6] = [0, 0, 1, 1, 1, 1];

/// What a rank sent in a step, and has after it.
struct Stepped {
    /// Bytes to ranks of other hosts, of all groups and operations.
    between_hosts: u64,
    /// What the step counted of all bytes.
    traffic: Traffic,
    weights: Vec<NamedTensor>,
}

/// Runs `work` on the ranks of a row, of which rank r is on host `hosts[r]`, with their groups and all that are made of the world.
fn on_hosts<T: Send>(hosts: &[usize], row: &Row, work: impl Fn(Groups, &Made) -> T + Sync) -> Vec<T> {
    let (mesh, listener, work) = (&row.mesh(), &TcpListener::bind("127.0.0.1:0").unwrap(), &work);
    assert_eq!(mesh.world(), hosts.len());
    thread::scope(|scope| {
        let rank = |(rank, host): (usize, &usize)| {
            let host = format!("host {host}");
            scope.spawn(move || {
                let endpoint = listener.local_addr().unwrap().to_string();
                let world = join(Join {
                    listener: (rank == 0).then(|| listener.try_clone().unwrap()),
                    host: Some(host),
                    ..Join::new(rank, mesh.world(), endpoint, AuthToken::new("ranks of several hosts"))
                });
                let world = world.unwrap();
                let made: Made = Arc::default();
                let all = Recorded::new(Arc::new(world.group().clone()), &made);
                let outcome = work(brigade_cpu::groups(&all, mesh.clone()).unwrap(), &made);
                world.shutdown().unwrap();
                outcome
            })
        };
        let ranks: Vec<_> = hosts.iter().enumerate().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Runs a step.
fn step(hosts: &[usize], row: &Row) -> Vec<Stepped> {
    on_hosts(hosts, row, |groups, made| {
        let crossed =
            || -> u64 { made.lock().unwrap().iter().map(|group| group.stats().between_hosts()).sum() };
        let mut engine = row.engine(groups.clone()).unwrap();
        let before = crossed();
        let report = engine.step(row.batches(0, &groups), RATE).unwrap();
        let between_hosts = crossed() - before;
        Stepped { between_hosts, traffic: report.traffic, weights: weights(&engine, &groups) }
    })
}

/// This rank's weights.
fn weights(engine: &Gpt, groups: &Groups) -> Vec<NamedTensor> {
    let (rank, ranks) = (groups.world().rank(), groups.world().size());
    let mut of_roots: Vec<_> = (0..ranks).map(|root| engine.tensors(root).unwrap()).collect();
    of_roots.swap_remove(rank)
}

/// Trains for these steps, from a saved state or from the start; gives the weights of each rank and the state of all.
fn train(
    hosts: &[usize],
    row: &Row,
    from: Option<&Saved>,
    steps: Range<u64>,
) -> (Vec<Vec<NamedTensor>>, Saved) {
    let ranks = on_hosts(hosts, row, |groups, _| {
        let mut engine = row.engine(groups.clone()).unwrap();
        if let Some(mut saved) = from {
            engine.restore(steps.start, &mut saved).unwrap();
        }
        for step in steps.clone() {
            row.step(&mut engine, step, &groups).unwrap();
        }
        (weights(&engine, &groups), snapshot(&engine))
    });
    let (weights, saved): (Vec<_>, Vec<_>) = ranks.into_iter().unzip();
    (weights, Saved::of(saved))
}

/// Bytes to other hosts, and of sums over ranks that have the same elements.
type Sent = (u64, u64);

/// What more blocks add: numbers of the whole step, such as losses, are as many with any number of blocks.
fn added(hosts: &[usize], row: &Row) -> Vec<Sent> {
    let [few, many] = [2, 4].map(|layers| step(hosts, &Row { layers, ..row.clone() }));
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
    fn neighbours(&self) -> Option<usize> {
        self.group.neighbours()
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
        let with_replicas = added(&EVEN, &row);
        for sent in &with_replicas {
            assert_eq!(*sent, (2 * shard, 2 * shard), "stage {stage}");
        }
        // Without replicas, both hosts have shards of all that each micro-batch gathers or reduces.
        if stage > 1 {
            let sharded = added(&EVEN, &Row { replicate: 1, dp: 4, ..row });
            let mut pairs = sharded.iter().zip(&with_replicas);
            assert!(pairs.all(|(sharded, replicated)| sharded.0 > replicated.0), "{stage}: {sharded:?}");
        }
    }
}

/// As bytes leave a host once for each of its neighbours that add up first in plain sums, so do codes of these sums.
#[test]
fn codes_leave_a_host_once_and_all_ranks_have_the_same_sums() {
    let of = |method| Compression { method, ..Compression::default() };
    for hosts in [&EVEN[..], &UNEVEN] {
        let plain = Row { dp: hosts.len(), micro_batches: 2, ..Row::default() };
        let sums = added(hosts, &plain);
        // How many times fewer bytes leave a host, and how far off the step is at most, where only rounding differs.
        for (method, fewer, off) in [
            (Method::Bf16, 1.8, Some(1e-3)),
            (Method::Fp16, 1.8, Some(1e-3)),
            (Method::Int8, 3.5, Some(0.02)),
            (Method::Int4, 6.5, Some(1.0)),
            (Method::TopK, 20.0, None),
            (Method::RandomK, 40.0, None),
            (Method::OneBit, 15.0, None),
        ] {
            if hosts.len() > EVEN.len() && !matches!(method, Method::Bf16 | Method::Int8 | Method::TopK) {
                continue;
            }
            let row = compressed(of(method), plain.clone());
            for (rank, (coded, exact)) in added(hosts, &row).iter().zip(&sums).enumerate() {
                let ratio = exact.0 as f64 / coded.0 as f64;
                assert!(ratio >= fewer, "{method}, {hosts:?}, rank {rank}: {coded:?} and {exact:?}");
            }
            let [once, again] = [step(hosts, &row), step(hosts, &row)];
            for rank in once.iter().chain(&again) {
                same_bits(&rank.weights, &once[0].weights, &method.to_string());
            }
            let Some(off) = off else { continue };
            let weights = |stepped: &[Stepped]| -> Vec<f32> {
                let tensors = stepped[0].weights.iter();
                tensors.flat_map(|tensor| tensor.data.as_slice::<f32>().unwrap().to_vec()).collect()
            };
            let row = Row { optimizer: "sgd", ..row };
            let exact = Row { optimizer: "sgd", ..plain.clone() };
            let [coded, exact] = [step(hosts, &row), step(hosts, &exact)].map(|stepped| weights(&stepped));
            let square =
                |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>();
            let apart = square(&mut coded.iter().zip(&exact).map(|(a, b)| a - b));
            let start = weights_at_the_start(&plain);
            let moved = square(&mut exact.iter().zip(&start).map(|(a, b)| a - b));
            assert!(apart > 0.0 && apart < off * moved, "{method}: {apart} of {moved}");
        }
    }
}

/// What codes leave out of sums of neighbours is added to later ones, and saved: half of the steps from a saved state have the bits of all.
#[test]
fn codes_of_hosts_go_on_from_what_was_saved() {
    for hosts in [&EVEN[..], &UNEVEN] {
        let some = |compression: &Compression| {
            hosts.len() == EVEN.len() || matches!(compression.method, Method::Int8 | Method::OneBit)
        };
        for compression in methods().into_iter().filter(some) {
            let base = Row { dp: hosts.len(), micro_batches: 1, ..Row::default() };
            let row = compressed(compression, base);
            let what = format!("{hosts:?}, {row:?}");
            let (whole, last) = train(hosts, &row, None, 0..4);
            for of_rank in &whole {
                same_bits(of_rank, &whole[0], &what);
            }
            let (_, saved) = train(hosts, &row, None, 0..2);
            let keeps = saved.arrays().any(|(_, slot, _)| slot.starts_with("reduction.error."));
            assert_eq!(keeps, compression.needs_error_feedback(), "{what}");
            let (resumed, state) = train(hosts, &row, Some(&saved), 2..4);
            same_bits(&resumed[0], &whole[0], &what);
            state.same(&last, &what);
        }
    }
}

fn weights_at_the_start(row: &Row) -> Vec<f32> {
    let engine = row.reference().engine(Groups::single_rank()).unwrap();
    let tensors = engine.tensors(0).unwrap();
    tensors.iter().flat_map(|tensor| tensor.data.as_slice::<f32>().unwrap().to_vec()).collect()
}
