//! Times all-reduce between processes (or threads) of this host.
//!
//!     cargo bench -p brigade-comm --bench allreduce -- --transport shm|tcp|threads --ranks 2
//!
//! Rank 0 prints one JSON line per size. `bus_gb_per_second` is the payload that each rank sends, and as much that it
//! receives, over the time of one call: 2·(n−1)/n of the size.

use std::net::TcpListener;
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

use brigade_comm::{AuthToken, Error, Group, Join, ReduceOp, Result, Timeouts, Transport, join, threads};

const RANK: &str = "BRIGADE_BENCH_RANK";
const TOKEN: &str = "BRIGADE_BENCH_TOKEN";

fn main() -> ExitCode {
    let (mut transport, mut ranks) = ("shm".to_owned(), 2);
    // Cargo adds an argument of its own.
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    while let Some(argument) = arguments.next() {
        match (argument.as_str(), arguments.next()) {
            ("--transport", Some(value)) => transport = value,
            ("--ranks", Some(value)) => ranks = value.parse().unwrap_or(0),
            (other, _) => {
                eprintln!("unknown argument {other}; --transport shm|tcp|threads and --ranks N are allowed");
                return ExitCode::from(2);
            }
        }
    }
    if !["shm", "tcp", "threads"].contains(&transport.as_str()) || ranks == 0 {
        eprintln!("--transport must be shm, tcp or threads, and --ranks at least 1");
        return ExitCode::from(2);
    }
    let outcome = match std::env::var(RANK) {
        Ok(role) => child(&role, &transport, ranks),
        Err(_) if transport == "threads" => in_threads(ranks),
        Err(_) => return parent(&transport, ranks),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts one process per rank and waits for them.
fn parent(transport: &str, ranks: usize) -> ExitCode {
    let start = || -> std::io::Result<bool> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let token = AuthToken::random().map_err(std::io::Error::other)?;
        let mut children = Vec::new();
        for rank in 0..ranks {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["--transport", transport, "--ranks", &ranks.to_string()]);
            command.env(RANK, format!("{rank} {port}")).env(TOKEN, token.expose());
            children.push(command.spawn()?);
        }
        let ends: Vec<_> = children.iter_mut().map(Child::wait).collect();
        Ok(ends.into_iter().all(|end| end.is_ok_and(|status| status.success())))
    };
    match start() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cannot start the ranks: {error}");
            ExitCode::FAILURE
        }
    }
}

fn child(role: &str, transport: &str, world_size: usize) -> Result<()> {
    let (rank, port) = role.split_once(' ').unwrap_or((role, ""));
    let world = join(Join {
        rank: rank.parse().unwrap_or(usize::MAX),
        world_size,
        endpoint: format!("127.0.0.1:{port}"),
        listener: None,
        token: AuthToken::new(std::env::var(TOKEN).unwrap_or_default()),
        transport: if transport == "tcp" { Transport::Tcp } else { Transport::SharedMemory },
        timeouts: Timeouts {
            init: Duration::from_secs(30),
            step: Duration::from_secs(60),
            ..Timeouts::default()
        },
        restart: 0,
        host: None,
    })?;
    measure(world.group(), transport)?;
    world.shutdown()
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
