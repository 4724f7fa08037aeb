//! Times all-reduce over MPI beside a plain C program, in turns.
//!
//!     cargo bench -p brigade-mpi --features mpi --bench allreduce -- [--ranks 2] [--rounds 3]
//!
//! `MPICC` and `MPIRUN` choose the MPI, as for building. Of each size and program the fastest round is printed, one JSON line each:
//! `bus_gb_per_second` is the payload that each rank sends, and as much that it receives, over the time of one call.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use brigade_comm::{AuthToken, DType, Join, ProcessGroup, ReduceOp, Timeouts, join};
use brigade_mpi::{Mpi, Order};
use brigade_testing::mpirun;

/// Set for ranks, to the endpoint of their world.
const ENDPOINT: &str = "BRIGADE_BENCH_MPI_ENDPOINT";

fn main() {
    if let Ok(endpoint) = std::env::var(ENDPOINT) {
        return rank(endpoint);
    }
    let arguments: Vec<String> = std::env::args().collect();
    let number = |name: &str, default: usize| {
        let value = arguments.iter().position(|word| word == name).and_then(|at| arguments.get(at + 1));
        value.map_or(default, |value| {
            value.parse().unwrap_or_else(|_| panic!("{name} {value}: a number is needed"))
        })
    };
    let (ranks, rounds) = (number("--ranks", 2), number("--rounds", 3));
    let folder = tempfile_folder();
    let plain = folder.join("allreduce");
    let mpicc = std::env::var("MPICC").unwrap_or_else(|_| "mpicc".into());
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/side_by_side/allreduce.c");
    let compiled = Command::new(&mpicc).args(["-O3", source, "-o"]).arg(&plain).status();
    assert!(compiled.unwrap().success(), "{mpicc} cannot compile {source}");
    let mut fastest: BTreeMap<(u64, String), (f64, String)> = BTreeMap::new();
    for _ in 0..rounds {
        let endpoint = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut own = Command::new(std::env::current_exe().unwrap());
        own.env(ENDPOINT, endpoint.to_string());
        for program in [&Command::new(&plain), &own] {
            let ended = mpirun(ranks, program, Duration::from_secs(300));
            assert!(ended.status.success(), "{}", ended.output);
            for line in ended.output.lines().filter(|line| line.starts_with('{')) {
                let field = |name: &str| {
                    let rest = line.split_once(&format!("\"{name}\": ")).unwrap().1;
                    rest.split([',', '}']).next().unwrap().trim_matches('"').to_owned()
                };
                let micros: f64 = field("micros").parse().unwrap();
                let key = (field("bytes").parse().unwrap(), field("mode"));
                let best = fastest.entry(key).or_insert((f64::INFINITY, String::new()));
                if micros < best.0 {
                    *best = (micros, line.to_owned());
                }
            }
        }
    }
    fastest.values().for_each(|(_, line)| println!("{line}"));
    let _ = std::fs::remove_dir_all(folder);
}

fn tempfile_folder() -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("brigade-mpi-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn rank(endpoint: String) {
    let timeouts = Timeouts::default();
    let mpi = Mpi::init(timeouts.init).unwrap();
    let world = join(Join::new(mpi.rank(), mpi.size(), endpoint, AuthToken::new("all-reduce"))).unwrap();
    for (mode, order) in [("engine", Order::Engine), ("tree", Order::Tree)] {
        let group = mpi.group(world.group(), order).unwrap();
        // Their calls differ by order alone, which no rank can see: none begins before all have ended the last.
        world.group().barrier().unwrap();
        measure(&*group, mode);
    }
    world.shutdown().unwrap();
    mpi.finalize(timeouts.step).unwrap();
}

fn measure(group: &dyn ProcessGroup, mode: &str) {
    for exponent in (12..=26).step_by(2) {
        let bytes = 1usize << exponent;
        let mut buffer = vec![1.0f32; bytes / 4];
        let repetitions = if exponent < 22 { 200 } else { 20 };
        let mut start = Instant::now();
        for i in 0..repetitions + 2 {
            if i == 2 {
                group.barrier().unwrap();
                start = Instant::now();
            }
            buffer = group.all_reduce(buffer, DType::F32, ReduceOp::Sum).wait().unwrap();
        }
        let seconds = start.elapsed().as_secs_f64() / f64::from(repetitions);
        if group.rank() == 0 {
            let n = group.size();
            let bus = bytes as f64 * 2.0 * (n - 1) as f64 / n as f64 / seconds / 1e9;
            println!(
                "{{\"mode\": \"brigade {mode}\", \"world\": {n}, \"bytes\": {bytes}, \"micros\": {:.1}, \
                 \"bus_gb_per_second\": {bus:.3}}}",
                seconds * 1e6
            );
        }
    }
}
