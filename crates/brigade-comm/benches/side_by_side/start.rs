//! Times the start of a world: processes of this host, from the first one's start until all have reduced something together.
//!
//!     cargo bench -p brigade-comm --bench start -- --transport shm|tcp --ranks 256
//!
//! Rank 0 prints one JSON line: seconds from the start of the first process until rank 0's world was complete, until its first
//! barrier was over, and until its first all-reduce was; and the files that rank 0 had open then.

use std::net::TcpListener;
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use brigade_comm::{AuthToken, Join, ReduceOp, Result, Timeouts, Transport, join, raise_open_files};

const ROLE: &str = "BRIGADE_BENCH_ROLE";
const TOKEN: &str = "BRIGADE_BENCH_TOKEN";

fn main() -> ExitCode {
    let (mut transport, mut ranks) = ("tcp".to_owned(), 256);
    // Cargo adds an argument of its own.
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    while let Some(argument) = arguments.next() {
        match (argument.as_str(), arguments.next()) {
            ("--transport", Some(value)) => transport = value,
            ("--ranks", Some(value)) => ranks = value.parse().unwrap_or(0),
            (other, _) => {
                eprintln!("unknown argument {other}; --transport shm|tcp and --ranks N are allowed");
                return ExitCode::from(2);
            }
        }
    }
    if !["shm", "tcp"].contains(&transport.as_str()) || ranks == 0 {
        eprintln!("--transport must be shm or tcp, and --ranks at least 1");
        return ExitCode::from(2);
    }
    match std::env::var(ROLE) {
        Ok(role) => match child(&role, &transport, ranks) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        },
        Err(_) => match parent(&transport, ranks) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("cannot start the ranks: {error}");
                ExitCode::FAILURE
            }
        },
    }
}

/// Starts one process per rank and waits for them.
fn parent(transport: &str, ranks: usize) -> std::io::Result<bool> {
    raise_open_files();
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let token = AuthToken::random().map_err(std::io::Error::other)?;
    let start = since_1970().as_micros();
    let mut children = Vec::new();
    for rank in 0..ranks {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--transport", transport, "--ranks", &ranks.to_string()]);
        command.env(ROLE, format!("{rank} {port} {start}")).env(TOKEN, token.expose());
        children.push(command.spawn()?);
    }
    let ends: Vec<_> = children.iter_mut().map(Child::wait).collect();
    Ok(ends.into_iter().all(|end| end.is_ok_and(|status| status.success())))
}

fn child(role: &str, transport: &str, world_size: usize) -> Result<()> {
    let mut role = role.split(' ').map(|number| number.parse::<u64>().unwrap_or(u64::MAX));
    let mut number = || role.next().unwrap_or(u64::MAX);
    let (rank, port, start) = (number() as usize, number(), Duration::from_micros(number()));
    let since_start = || since_1970().saturating_sub(start).as_secs_f64();
    let world = join(Join {
        rank,
        world_size,
        endpoint: format!("127.0.0.1:{port}"),
        listener: None,
        token: AuthToken::new(std::env::var(TOKEN).unwrap_or_default()),
        transport: if transport == "tcp" { Transport::Tcp } else { Transport::SharedMemory },
        timeouts: Timeouts::default(),
        restart: 0,
        host: None,
    })?;
    let joined = since_start();
    world.group().barrier()?;
    let barrier = since_start();
    world.group().all_reduce_in_place(&mut [1.0f32; 1 << 14], ReduceOp::Sum)?;
    let reduced = since_start();
    if rank == 0 {
        let files = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        println!(
            r#"{{"transport": "{transport}", "ranks": {world_size}, "joined_s": {joined:.2}, "barrier_s": {barrier:.2}, "all_reduce_s": {reduced:.2}, "open_files": {files}}}"#
        );
    }
    world.shutdown()
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
