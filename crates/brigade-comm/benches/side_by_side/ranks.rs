//! What both benchmarks have in common: their arguments, and ranks that are processes of this host.

use std::fmt::Display;
use std::net::TcpListener;
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use brigade_comm::{AuthToken, Error, Join, Transport, World, join, raise_open_files};

/// In the process of a rank: its number, the port of rank 0, and when the first process was started.
const RANK: &str = "BRIGADE_BENCH_RANK";
const TOKEN: &str = "BRIGADE_BENCH_TOKEN";

/// How ranks are connected, and how many there are.
pub struct Arguments {
    pub transport: String,
    pub ranks: usize,
}

impl Arguments {
    /// Reads `--transport`, one of these, and `--ranks`. What is not allowed is printed, and ends the process.
    pub fn read(transport: &str, transports: &[&str], ranks: usize) -> Result<Self, ExitCode> {
        let mut read = Self { transport: transport.to_owned(), ranks };
        // Cargo adds an argument of its own.
        let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
        while let Some(argument) = arguments.next() {
            match (argument.as_str(), arguments.next()) {
                ("--transport", Some(value)) if transports.contains(&value.as_str()) => {
                    read.transport = value;
                }
                ("--ranks", Some(value)) if value.parse().is_ok_and(|ranks: usize| ranks > 0) => {
                    read.ranks = value.parse().unwrap_or(ranks);
                }
                (_, value) => {
                    let (value, allowed) = (value.unwrap_or_default(), transports.join("|"));
                    eprintln!(
                        "{argument} {value} is given; --transport {allowed} and --ranks N, at least 1, are allowed"
                    );
                    return Err(ExitCode::from(2));
                }
            }
        }
        Ok(read)
    }

    /// Starts one process per rank and waits for them. In the process of a rank, joins the world and runs `rank` in it, with the
    /// time at which the first process was started.
    pub fn on_processes(&self, rank: impl FnOnce(&World, SystemTime) -> Result<(), Error>) -> ExitCode {
        let Ok(role) = std::env::var(RANK) else {
            return match self.start() {
                Ok(true) => ExitCode::SUCCESS,
                Ok(false) => ExitCode::FAILURE,
                Err(error) => end(Err(format!("cannot start the ranks: {error}"))),
            };
        };
        end(self.join(&role).and_then(|(world, started)| {
            rank(&world, started)?;
            world.shutdown()
        }))
    }

    /// Whether all ranks succeeded.
    fn start(&self) -> std::io::Result<bool> {
        let Self { transport, ranks } = self;
        raise_open_files();
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let token = AuthToken::random().map_err(std::io::Error::other)?;
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let mut children = Vec::new();
        for rank in 0..*ranks {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["--transport", transport, "--ranks", &ranks.to_string()]);
            command.env(RANK, format!("{rank} {port} {started}")).env(TOKEN, token.expose());
            children.push(command.spawn()?);
        }
        let ends: Vec<_> = children.iter_mut().map(Child::wait).collect();
        Ok(ends.into_iter().all(|end| end.is_ok_and(|status| status.success())))
    }

    fn join(&self, role: &str) -> Result<(World, SystemTime), Error> {
        let mut role = role.split(' ').map(|number| number.parse::<u64>().unwrap_or(u64::MAX));
        let mut number = || role.next().unwrap_or(u64::MAX);
        let (rank, port, started) = (number() as usize, number(), Duration::from_micros(number()));
        let token = AuthToken::new(std::env::var(TOKEN).unwrap_or_default());
        let world = join(Join {
            transport: if self.transport == "shm" { Transport::SharedMemory } else { Transport::Tcp },
            // As if each rank were on a host of its own.
            host: (self.transport == "encrypted").then(|| format!("host {rank}")),
            ..Join::new(rank, self.ranks, format!("127.0.0.1:{port}"), token)
        })?;
        Ok((world, UNIX_EPOCH + started))
    }
}

/// How a process ends; prints an error.
pub fn end<E: Display>(outcome: Result<(), E>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
