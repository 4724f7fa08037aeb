//! `brigade coordinate`

use std::net::TcpListener;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use brigade::UsageError;
use brigade::launcher::workers::Coordinator;
use brigade::launcher::{DEFAULT_HOST_TIMEOUT, workers};
use brigade::report::counted;
use clap::Args;

pub const EXAMPLES: &str = "\
Examples:
  export BRIGADE_TOKEN=$(od -An -tx1 -N32 /dev/urandom | tr -d ' \\n')
  brigade coordinate --workers 4 --port 29600
  brigade train --strategy diloco --workers 4 --worker 0 --coordinator host:29600 --out runs/w0
  brigade train --strategy diloco --workers 4 --worker 1 --coordinator host:29600 --out runs/w1

Workers may leave, join late or rejoin while the others train. They and the coordinator need the same BRIGADE_TOKEN. \
The coordinator ends when the run does; a restarted one finds the workers again.";

/// How long after the last worker's last step others may still ask.
const LINGER: Duration = Duration::from_secs(3);

/// Between two looks.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
pub struct CoordinateArgs {
    /// Number of workers, the same as each worker's --workers.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    workers: u32,
    /// The port to listen on; 0 for any that is free.
    #[arg(long, default_value_t = 29600)]
    port: u16,
    /// The address to listen on.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0")]
    host: String,
    /// How long workers that are ready for an outer step wait for those that still train, and before the first one for those that have not
    /// come yet. Later ones take over the result.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    wait_seconds: f64,
    /// How long a worker may be silent before it is considered lost.
    #[arg(long, value_name = "SECONDS", default_value_t = DEFAULT_HOST_TIMEOUT.as_secs_f64())]
    host_timeout: f64,
}

pub fn run(args: &CoordinateArgs) -> anyhow::Result<ExitCode> {
    let seconds = |option: &str, given: f64, least: f64| match (least..=1e6).contains(&given) {
        true => Ok(Duration::from_secs_f64(given)),
        false => Err(usage(anyhow::anyhow!(
            "{option} {given} is not valid: it must be from {least} to 1000000 seconds"
        ))),
    };
    let wait = seconds("--wait-seconds", args.wait_seconds, 0.0)?;
    let silence = seconds("--host-timeout", args.host_timeout, 1.0)?;
    let token = workers::token(&|name| std::env::var(name).ok()).map_err(|error| usage(error.into()))?;
    let address = format!("{}:{}", args.host, args.port);
    let listener = TcpListener::bind(&address)
        .map_err(|error| usage(anyhow::anyhow!("cannot listen on {address} (--host, --port): {error}")))?;
    let number = args.workers as usize;
    let coordinator = Coordinator::start(listener, token, number, wait, silence)?;
    println!("coordinating {} at {}", counted(number, "worker"), coordinator.address());
    let mut over: Option<Instant> = None;
    loop {
        thread::sleep(LOOK);
        let is_over = coordinator.is_over();
        coordinator.drain_messages().iter().for_each(|message| println!("{message}"));
        over = over.filter(|_| is_over).or_else(|| is_over.then(Instant::now));
        if over.is_some_and(|since| since.elapsed() > LINGER) {
            println!("the run is over");
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn usage(error: anyhow::Error) -> anyhow::Error {
    UsageError(error).into()
}
