//! Times all-reduce between processes (or threads) of this host, or of several, each with a number of ranks.
//!
//!     cargo bench -p brigade-comm --bench allreduce -- --transport shm|tcp|encrypted|threads --ranks 2
//!     cargo xtask network --interfaces 2 -- cargo bench -p brigade-comm --bench allreduce -- --transport auto --ranks 2 --interfaces net,net1
//!
//! Rank 0 prints one JSON line per size. `bus_gb_per_second` is the payload that each rank sends, and as much that it
//! receives, over the time of one call: 2·(n−1)/n of the size.

mod ranks;

use std::process::ExitCode;
use std::time::Instant;

use brigade_comm::{Error, Group, ReduceOp, Result, Timeouts, threads};

use ranks::{Arguments, end};

fn main() -> ExitCode {
    let arguments = match Arguments::read("shm", &["shm", "tcp", "encrypted", "auto", "threads"], 2) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let Arguments { transport, ranks, .. } = &arguments;
    match transport.as_str() {
        "threads" => end(in_threads(*ranks)),
        _ => arguments.on_processes(|world, _| measure(world.group(), transport)),
    }
}

fn in_threads(ranks: usize) -> Result<()> {
    let groups = threads(ranks, Timeouts::default());
    std::thread::scope(|scope| {
        let work: Vec<_> =
            groups.into_iter().map(|group| scope.spawn(move || measure(&group, "threads"))).collect();
        work.into_iter().try_for_each(|rank| match rank.join() {
            Ok(outcome) => outcome,
            Err(_) => Err(Error::Aborted { rank: 0, reason: "a rank panicked".into() }),
        })
    })
}

fn measure(group: &Group, transport: &str) -> Result<()> {
    for exponent in (12..=26).step_by(2) {
        let bytes = 1usize << exponent;
        let mut slice = vec![1.0f32; bytes / 4];
        // As the peers' scripts: the mean of 20 calls, 5 for large sizes, after two to warm up.
        let repetitions = if exponent < 22 { 20 } else { 5 };
        let mut start = Instant::now();
        for i in 0..repetitions + 2 {
            if i == 2 {
                group.barrier()?;
                start = Instant::now();
            }
            group.all_reduce_in_place(&mut slice, ReduceOp::Sum)?;
        }
        let seconds = start.elapsed().as_secs_f64() / f64::from(repetitions);
        if group.rank() == 0 {
            let n = group.size();
            let bus = bytes as f64 * 2.0 * (n - 1) as f64 / n as f64 / seconds / 1e9;
            println!(
                "{{\"mode\": \"brigade {transport}\", \"world\": {n}, \"bytes\": {bytes}, \"micros\": {:.1}, \
                 \"bus_gb_per_second\": {bus:.3}}}",
                seconds * 1e6
            );
        }
    }
    Ok(())
}
