//! Ranks that `mpirun` starts: this program again, with one test.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use brigade_comm::{AuthToken, Join, Timeouts, World, join};
use brigade_mpi::{Mpi, MpiGroup, Order};
use brigade_testing::{MpiRun, mpiexec, mpirun};

/// Set for ranks, to the endpoint of their world.
const ENDPOINT: &str = "BRIGADE_TEST_MPI_ENDPOINT";

/// Longer than any test takes.
const DEADLINE: Duration = Duration::from_secs(120);

const TIMEOUTS: Timeouts =
    Timeouts { init: Duration::from_secs(60), step: Duration::from_secs(60), host: Duration::from_secs(30) };

/// A rank in its world.
pub struct Rank {
    pub mpi: Mpi,
    world: World,
    /// All ranks, with the crate's order of sums.
    pub tree: MpiGroup,
}

impl Rank {
    fn new(step: Duration) -> Self {
        let mpi = Mpi::init(TIMEOUTS.init).unwrap();
        let token = AuthToken::new("ranks of mpirun");
        let rank = Join::new(mpi.rank(), mpi.size(), std::env::var(ENDPOINT).unwrap(), token);
        let world = join(Join { timeouts: Timeouts { step, ..TIMEOUTS }, ..rank });
        let world = world.unwrap();
        let tree = mpi.group(world.group(), Order::Tree).unwrap();
        Self { mpi, world, tree }
    }

    /// All ranks, with MPI's order of sums.
    pub fn engine(&self) -> MpiGroup {
        self.mpi.group(self.world.group(), Order::Engine).unwrap()
    }

    fn end(self) {
        let Self { mpi, world, tree } = self;
        println!("rank {} of {} is done", tree.rank(), tree.size());
        drop(tree);
        world.shutdown().unwrap();
        mpi.finalize(TIMEOUTS.step).unwrap();
    }
}

/// Runs the test of this name on each of these numbers of ranks. All must end well.
pub fn run(name: &str, sizes: &[usize], body: impl FnOnce(&Rank)) {
    if let Some(rank) = rank(TIMEOUTS.step) {
        body(&rank);
        return rank.end();
    }
    for size in sizes {
        all_end_well(&start(name, *size), *size);
    }
}

/// The same by `mpiexec`.
pub fn run_by_mpiexec(name: &str, size: usize, body: impl FnOnce(&Rank)) {
    match rank(TIMEOUTS.step) {
        Some(rank) => {
            body(&rank);
            rank.end();
        }
        None => all_end_well(&mpiexec(size, &program(name), DEADLINE), size),
    }
}

fn all_end_well(ended: &MpiRun, size: usize) {
    let done = (0..size).filter(|rank| ended.output.contains(&format!("rank {rank} of {size} is done")));
    assert!(ended.status.success() && done.count() == size, "{size} ranks: {}", ended.output);
}

/// This process as a rank, if it is one, with a deadline for each operation.
pub fn rank(step: Duration) -> Option<Rank> {
    std::env::var_os(ENDPOINT).is_some().then(|| Rank::new(step))
}

/// Runs the test of this name on ranks.
pub fn start(name: &str, ranks: usize) -> MpiRun {
    mpirun(ranks, &program(name), DEADLINE)
}

/// The same with a library that ranks, and not their launcher, load before all others.
pub fn start_preloaded(name: &str, ranks: usize, library: &Path) -> MpiRun {
    let program = program(name);
    let mut preloaded = Command::new("env");
    preloaded.arg(format!("LD_PRELOAD={}", library.display()));
    preloaded.arg(program.get_program()).args(program.get_args());
    preloaded.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    mpirun(ranks, &preloaded, DEADLINE)
}

/// This program with the test of this name alone, as one of the ranks of a world.
fn program(name: &str) -> Command {
    let endpoint = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args([name, "--exact", "--nocapture", "--test-threads", "1"]).env(ENDPOINT, endpoint.to_string());
    program
}
