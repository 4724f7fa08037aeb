//! What both benchmarks have in common: their arguments, and ranks that are processes of this host, or of the hosts of
//! `cargo xtask network`.

use std::fmt::Display;
use std::net::TcpListener;
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use brigade_comm::{AuthToken, Error, Join, Transport, World, join, raise_open_files};

/// In the process of a rank: its number, the ranks of all hosts, its number on its host, where rank 0 is, and when the first process was
/// started.
const RANK: &str = "BRIGADE_BENCH_RANK";
/// The secret that all processes share.
const TOKEN: &str = "BRIGADE_BENCH_TOKEN";

/// How ranks are connected, and how many there are on a host.
pub struct Arguments {
    pub transport: String,
    pub ranks: usize,
    interfaces: String,
}

impl Arguments {
    /// Reads `--transport`, one of these, `--ranks` and `--interfaces`. What is not allowed is printed, and ends the process.
    pub fn read(transport: &str, transports: &[&str], ranks: usize) -> Result<Self, ExitCode> {
        let mut read = Self { transport: transport.to_owned(), ranks, interfaces: String::new() };
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
                ("--interfaces", Some(value)) => read.interfaces = value,
                (_, value) => {
                    let (value, allowed) = (value.unwrap_or_default(), transports.join("|"));
                    eprintln!(
                        "{argument} {value} is given; --transport {allowed}, --ranks N, at least 1, and --interfaces LIST are allowed"
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

    /// Whether all ranks of this host succeeded.
    fn start(&self) -> std::io::Result<bool> {
        let Self { transport, ranks, interfaces } = self;
        raise_open_files();
        let host = Host::of_environment()?;
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let mut children = Vec::new();
        for local_rank in 0..*ranks {
            let mut command = Command::new(std::env::current_exe()?);
            command.args([
                "--transport",
                transport,
                "--ranks",
                &ranks.to_string(),
                "--interfaces",
                interfaces,
            ]);
            let (rank, world_size) = (host.number * ranks + local_rank, host.count * ranks);
            let role = format!("{rank} {world_size} {local_rank} {} {started}", host.endpoint);
            command.env(RANK, role).env(TOKEN, &host.token);
            children.push(command.spawn()?);
        }
        let ends: Vec<_> = children.iter_mut().map(Child::wait).collect();
        Ok(ends.into_iter().all(|end| end.is_ok_and(|status| status.success())))
    }

    fn join(&self, role: &str) -> Result<(World, SystemTime), Error> {
        let words: Vec<&str> = role.split(' ').collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse().ok()).unwrap_or(u64::MAX);
        let [rank, world_size, local_rank] = [0, 1, 2].map(|at| number(at) as usize);
        let endpoint = words.get(3).copied().unwrap_or_default();
        let token = AuthToken::new(std::env::var(TOKEN).unwrap_or_default());
        let interfaces = self.interfaces.split(',').filter(|interface| !interface.is_empty());
        let world = join(Join {
            transport: match self.transport.as_str() {
                "shm" => Transport::SharedMemory,
                "auto" => Transport::Auto,
                _ => Transport::Tcp,
            },
            interfaces: interfaces.map(str::to_owned).collect(),
            local_rank,
            // As if each rank were on a host of its own.
            host: (self.transport == "encrypted").then(|| format!("host {rank}")),
            ..Join::new(rank, world_size, endpoint, token)
        })?;
        Ok((world, UNIX_EPOCH + Duration::from_micros(number(4))))
    }
}

/// This host among those of `cargo xtask network`, or alone.
struct Host {
    number: usize,
    count: usize,
    endpoint: String,
    token: String,
}

impl Host {
    fn of_environment() -> std::io::Result<Self> {
        let variable = |name: &str| std::env::var(name).map_err(std::io::Error::other);
        let number = |name: &str| variable(name)?.parse().map_err(std::io::Error::other);
        if std::env::var_os("PET_NNODES").is_some() {
            let endpoint = format!("{}:{}", variable("PET_MASTER_ADDR")?, variable("PET_MASTER_PORT")?);
            let (count, token) = (number("PET_NNODES")?, variable("BRIGADE_TOKEN")?);
            return Ok(Self { number: number("PET_NODE_RANK")?, count, endpoint, token });
        }
        let endpoint = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let token = AuthToken::random().map_err(std::io::Error::other)?;
        Ok(Self { number: 0, count: 1, endpoint, token: token.expose().to_owned() })
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
