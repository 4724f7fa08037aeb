//! Collectives over each transport, between ranks that are threads of this process, and the start of a world.
//!
//!     cargo bench -p brigade-comm --bench collectives
//!     cargo bench -p brigade-comm --bench collectives -- all_reduce/shm
//!
//! The throughput is that of the buffer. `side_by_side/allreduce.rs` measures processes, as the peers' scripts do.

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use brigade_comm::{AuthToken, Group, Join, ReduceOp, Result, Timeouts, Transport, World, join, threads};
use criterion::{BenchmarkId, Criterion, Throughput};

const RANKS: usize = 2;
const SIZES: [usize; 3] = [4 << 10, 1 << 20, 16 << 20];

/// What is measured, on a buffer.
type Collective = fn(&Group, &mut [f32]) -> Result<()>;

const COLLECTIVES: [(&str, Collective); 4] = [
    ("all_reduce", |group, buffer| group.all_reduce_in_place(buffer, ReduceOp::Sum)),
    ("reduce_scatter", |group, buffer| group.reduce_scatter_in_place(buffer, ReduceOp::Sum)),
    ("all_gather", |group, buffer| group.all_gather_in_place(buffer)),
    ("broadcast", |group, buffer| group.broadcast_in_place(buffer, 0)),
];

/// One call of `run` for each rank of a world, each on a thread.
fn each_rank<T: Send>(
    transport: Option<Transport>,
    ranks: usize,
    run: impl Fn(&Group) -> T + Sync,
) -> Vec<T> {
    let run = &run;
    thread::scope(|scope| {
        let started: Vec<_> = match transport {
            None => threads(ranks, Timeouts::default())
                .into_iter()
                .map(|group| scope.spawn(move || run(&group)))
                .collect(),
            Some(transport) => {
                let port = free_port();
                let token = AuthToken::random().expect("random numbers");
                let start = |rank| {
                    let token = AuthToken::new(token.expose());
                    scope.spawn(move || {
                        let world =
                            world(transport, rank, ranks, port, token).expect("the world is complete");
                        let result = run(world.group());
                        world.shutdown().expect("all ranks end");
                        result
                    })
                };
                (0..ranks).map(start).collect()
            }
        };
        started.into_iter().map(|rank| rank.join().expect("a rank")).collect()
    })
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback device");
    listener.local_addr().expect("an address").port()
}

fn world(transport: Transport, rank: usize, world_size: usize, port: u16, token: AuthToken) -> Result<World> {
    join(Join { transport, ..Join::new(rank, world_size, format!("127.0.0.1:{port}"), token) })
}

fn collectives(criterion: &mut Criterion) {
    let transports =
        [("threads", None), ("shm", Some(Transport::SharedMemory)), ("tcp", Some(Transport::Tcp))];
    for (operation, collective) in COLLECTIVES {
        let mut benchmarks = criterion.benchmark_group(operation);
        benchmarks.sample_size(20);
        for (name, transport) in transports {
            for bytes in SIZES {
                benchmarks.throughput(Throughput::Bytes(bytes as u64));
                benchmarks.bench_function(BenchmarkId::new(name, bytes), |bencher| {
                    bencher.iter_custom(|calls| slowest(transport, bytes, collective, calls));
                });
            }
        }
        benchmarks.finish();
    }
}

/// The time of a number of calls on the rank that takes longest, after two to warm up.
fn slowest(transport: Option<Transport>, bytes: usize, collective: Collective, calls: u64) -> Duration {
    let times = each_rank(transport, RANKS, |group| -> Result<Duration> {
        let mut buffer = vec![1.0f32; bytes / 4];
        for _ in 0..2 {
            collective(group, &mut buffer)?;
        }
        group.barrier()?;
        let started = Instant::now();
        for _ in 0..calls {
            // Sums stay finite.
            buffer.fill(1.0);
            collective(group, &mut buffer)?;
        }
        Ok(started.elapsed())
    });
    times.into_iter().map(|time| time.expect("the collective works")).max().unwrap_or_default()
}

/// From nothing to the first barrier of a world.
fn start(criterion: &mut Criterion) {
    let mut benchmarks = criterion.benchmark_group("start");
    benchmarks.sample_size(10);
    for (name, transport) in [("shm", Transport::SharedMemory), ("tcp", Transport::Tcp)] {
        for ranks in [2, 8] {
            benchmarks.bench_function(BenchmarkId::new(name, ranks), |bencher| {
                bencher
                    .iter(|| each_rank(Some(transport), ranks, |group| group.barrier().expect("a barrier")));
            });
        }
    }
    benchmarks.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    collectives(&mut criterion);
    start(&mut criterion);
    criterion.final_summary();
}
