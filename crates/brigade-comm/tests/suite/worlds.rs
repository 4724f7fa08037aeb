//! Worlds of every kind, with one thread per rank in this process. The links between ranks that [`join`] are the real
//! ones: memory from an anonymous file, sockets.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use brigade_comm::{Algorithm, AuthToken, Group, Join, Result, Timeouts, Transport, join, threads};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Threads,
    SharedMemory,
    Tcp,
    /// Pairs of ranks share memory, and talk to the other pairs over TCP. Collectives of whole pairs are in two levels.
    Mixed,
    /// Shared memory, by recursive halving and doubling.
    Halving,
}

pub const KINDS: [Kind; 5] = [Kind::Threads, Kind::SharedMemory, Kind::Tcp, Kind::Mixed, Kind::Halving];

/// Deadlines that a loaded machine keeps.
pub const PATIENT: Timeouts = Timeouts { init: PATIENCE, step: PATIENCE, host: PATIENCE };

const PATIENCE: Duration = Duration::from_secs(60);

/// Deadlines to wait for. Only what must pass them has them.
pub const HASTY: Timeouts = Timeouts { step: Duration::from_millis(1500), ..PATIENT };

/// What rank `rank` joins with; rank 0 gets the listener.
pub fn joining(
    kind: Kind,
    rank: usize,
    world_size: usize,
    listener: &TcpListener,
    timeouts: Timeouts,
) -> Join {
    let endpoint = listener.local_addr().unwrap().to_string();
    Join {
        listener: (rank == 0).then(|| listener.try_clone().unwrap()),
        transport: match kind {
            Kind::Tcp => Transport::Tcp,
            Kind::SharedMemory | Kind::Halving => Transport::SharedMemory,
            Kind::Threads | Kind::Mixed => Transport::Auto,
        },
        algorithm: if kind == Kind::Halving { Algorithm::Halving } else { Algorithm::Auto },
        timeouts,
        host: (kind == Kind::Mixed).then(|| format!("host {}", rank / 2)),
        ..Join::new(rank, world_size, endpoint, AuthToken::new("a token for tests"))
    }
}

pub fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

/// Far below the deadlines of [`PATIENT`], and far above what anything takes that is not waited out.
pub const SOON: Duration = Duration::from_secs(30);

/// Keeps a rank busy elsewhere until the others have given up.
pub fn others_give_up(group: &Group) {
    let start = Instant::now();
    while group.failure().is_none() {
        assert!(start.elapsed() < PATIENCE, "nobody gave up");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs `work` on every rank of a world and gives what each returned. A rank that returns an error drops its world
/// without shutting it down; the others shut theirs down.
pub fn run<T: Send>(
    kind: Kind,
    n: usize,
    timeouts: Timeouts,
    work: impl Fn(&Group) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let work = &work;
    if kind == Kind::Threads {
        let groups = threads(n, timeouts);
        return std::thread::scope(|scope| {
            let ranks: Vec<_> = groups.into_iter().map(|group| scope.spawn(move || work(&group))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
    }
    let listener = &listener();
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..n)
            .map(|rank| {
                scope.spawn(move || {
                    let world = join(joining(kind, rank, n, listener, timeouts))?;
                    let outcome = work(world.group())?;
                    world.shutdown()?;
                    Ok(outcome)
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// As [`run`], where nothing fails.
pub fn run_well<T: Send>(kind: Kind, n: usize, work: impl Fn(&Group) -> Result<T> + Sync) -> Vec<T> {
    run(kind, n, PATIENT, work).into_iter().map(|outcome| outcome.unwrap()).collect()
}

/// One test per kind of world.
macro_rules! on_every_world {
    ($($test:ident),* $(,)?) => {
        mod threads {
            $(#[test] fn $test() { super::$test(crate::worlds::Kind::Threads) })*
        }
        mod shared_memory {
            $(#[test] fn $test() { super::$test(crate::worlds::Kind::SharedMemory) })*
        }
        mod tcp {
            $(#[test] fn $test() { super::$test(crate::worlds::Kind::Tcp) })*
        }
        mod mixed {
            $(#[test] fn $test() { super::$test(crate::worlds::Kind::Mixed) })*
        }
        mod halving {
            $(#[test] fn $test() { super::$test(crate::worlds::Kind::Halving) })*
        }
    };
}
pub(crate) use on_every_world;
