//! `brigade doctor --network`

use std::process::ExitCode;
use std::time::Instant;

use brigade::comm::{Algorithm, Group, OpType, ProcessGroup, ReduceOp};
use brigade::report::HumanBytes;
use brigade::{Session, Settings};
use comfy_table::Row;

use crate::columns::columns;
use crate::output::print;
use crate::ranks::{RankFlags, RankProgram};

const OPERATIONS: [OpType; 4] =
    [OpType::AllReduce, OpType::ReduceScatter, OpType::AllGather, OpType::Broadcast];

/// Bytes of the buffers.
const SIZES: [usize; 5] = [1 << 10, 16 << 10, 256 << 10, 4 << 20, 64 << 20];

/// How long a measurement should take, in seconds, and the least and the most calls it makes.
const SECONDS: f64 = 0.2;
const CALLS: (f64, f64) = (3.0, 200.0);

/// Measures each algorithm of the collectives on the ranks that the flags or the environment describe, and prints the table.
pub fn run(flags: &RankFlags) -> anyhow::Result<ExitCode> {
    let mut settings = Settings::default();
    flags.apply(&mut settings);
    let ranks = flags.world_size(None, settings.compute.backend)?;
    settings.train.micro_batch_size = 1;
    settings.train.global_batch_size = ranks;
    let program = RankProgram {
        name: "doctor",
        flags,
        config: toml::to_string(&settings)?,
        settings,
        costs: vec![1.0],
        quiet: true,
    };
    program.run(|_| Ok(()), |session, ()| measure(session))
}

fn measure(session: &Session) -> anyhow::Result<()> {
    let group = session.group();
    let several_hosts = (0..group.size()).any(|rank| group.place(rank).host > 0);
    let algorithms = [Algorithm::Flat, Algorithm::Halving, Algorithm::Hierarchical];
    let algorithms = algorithms.into_iter().filter(|of| several_hosts || *of != Algorithm::Hierarchical);
    let groups = algorithms.map(|algorithm| Ok((algorithm, group.with_algorithm(algorithm)?)));
    let groups = groups.collect::<brigade::comm::Result<Vec<_>>>()?;
    let mut rows = vec![heading(&groups, group.algorithm())];
    for operation in OPERATIONS {
        for bytes in SIZES {
            let speeds = groups.iter().map(|(_, group)| gigabytes_per_second(group, operation, bytes));
            rows.push(row(operation, bytes, &speeds.collect::<brigade::comm::Result<Vec<_>>>()?));
        }
    }
    if session.rank() == 0 {
        print(&format!("{}\n{}{EXPLANATION}", places(group), columns(rows)))?;
    }
    Ok(())
}

const EXPLANATION: &str = "\
GB/s sent by each rank; * is the fastest. --collectives flat|halving|hierarchical chooses one; the bits are the same, unless
hierarchical warns that they are not.
";

fn heading(groups: &[(Algorithm, Group)], auto: Algorithm) -> Row {
    let name = |algorithm: &Algorithm| match *algorithm == auto {
        true => format!("{algorithm} (auto)"),
        false => algorithm.to_string(),
    };
    let names = groups.iter().map(|(algorithm, _)| name(algorithm));
    Row::from(["collective".to_owned(), "size".to_owned()].into_iter().chain(names).collect::<Vec<_>>())
}

fn row(operation: OpType, bytes: usize, speeds: &[f64]) -> Row {
    let fastest = speeds.iter().copied().fold(0.0, f64::max);
    let speed = |speed: &f64| format!("{speed:.3}{}", if *speed == fastest { " *" } else { "" });
    let cells = [operation.to_string(), HumanBytes(bytes as u64).to_string()].into_iter();
    Row::from(cells.chain(speeds.iter().map(speed)).collect::<Vec<_>>())
}

/// The hosts with their ranks, and the NUMA nodes that ranks are bound to, where there are several.
fn places(group: &Group) -> String {
    let mut hosts: Vec<Vec<String>> = Vec::new();
    let has_nodes = (1..group.size()).any(|rank| group.place(rank).numa != group.place(0).numa);
    for rank in 0..group.size() {
        let place = group.place(rank);
        hosts.resize(hosts.len().max(place.host + 1), Vec::new());
        let numa =
            place.numa.filter(|_| has_nodes).map(|node| format!(" (NUMA node {node})")).unwrap_or_default();
        hosts[place.host].push(format!("{rank}{numa}"));
    }
    let host =
        |(number, ranks): (usize, &Vec<String>)| format!("host {number}: ranks {}\n", ranks.join(", "));
    hosts.iter().enumerate().map(host).collect()
}

/// What each rank sends per second, in GB.
fn gigabytes_per_second(group: &Group, operation: OpType, bytes: usize) -> brigade::comm::Result<f64> {
    let ranks = group.size();
    let count = (bytes / 4).next_multiple_of(ranks);
    let mut slice = vec![0.0f32; count];
    let mut call = || match operation {
        OpType::AllReduce => group.all_reduce_in_place(&mut slice, ReduceOp::Sum),
        OpType::ReduceScatter => group.reduce_scatter_in_place(&mut slice, ReduceOp::Sum),
        OpType::AllGather => group.all_gather_in_place(&mut slice),
        _ => group.broadcast_in_place(&mut slice, 0),
    };
    call()?;
    group.barrier()?;
    let start = Instant::now();
    call()?;
    // All ranks make as many calls as rank 0 finds right.
    let mut calls = [(SECONDS / start.elapsed().as_secs_f64()).clamp(CALLS.0, CALLS.1).floor()];
    group.broadcast_in_place(&mut calls, 0)?;
    group.barrier()?;
    let start = Instant::now();
    for _ in 0..calls[0] as u64 {
        call()?;
    }
    group.barrier()?;
    let seconds = start.elapsed().as_secs_f64() / calls[0];
    let halves = if operation == OpType::AllReduce { 2.0 } else { 1.0 };
    Ok(halves * (4 * count) as f64 * (ranks - 1) as f64 / ranks as f64 / seconds / 1e9)
}
