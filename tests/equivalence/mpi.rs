//! Rows, and what collectives do on every backend, on ranks that `mpirun` starts, whose tensors MPI carries.

use std::net::TcpListener;
use std::process::Command;
use std::thread;
use std::time::Duration;

use brigade::comm::{AuthToken, Join, ProcessGroup, Timeouts, join};
use brigade::core::{Groups, Mesh, Recompute, Zero};
use brigade_conformance::{ALL, Suite};
use brigade_mpi::{Mpi, Order};
use brigade_testing::mpirun;

use crate::mesh::{equals, same_bits};
use crate::row::Row;

/// Set for ranks, to the endpoint of their world.
const ENDPOINT: &str = "BRIGADE_TEST_MPI_ENDPOINT";

/// Set for ranks that run one check of the conformance suite, to its name.
const CHECK: &str = "BRIGADE_TEST_MPI_CHECK";

/// Longer than any test takes.
const DEADLINE: Duration = Duration::from_secs(300);

/// The checks that fail the world.
const FATAL: [&str; 2] = ["a_failure_is_the_end", "another_length_is_an_error_on_every_rank"];

/// Ten meshes: pipeline stages, data-parallel ranks, and the stage of ZeRO.
const MESHES: [(usize, usize, u8); 10] = [
    (1, 2, 0),
    (1, 2, 3),
    (2, 1, 0),
    (1, 4, 1),
    (1, 4, 2),
    (1, 4, 3),
    (2, 2, 0),
    (2, 2, 1),
    (2, 2, 3),
    (4, 1, 0),
];

fn rows(ranks: usize) -> impl Iterator<Item = Row> {
    MESHES.into_iter().filter(move |(pp, dp, _)| pp * dp == ranks).map(|(pp, dp, stage)| {
        let zero = Zero { stage, ..Zero::default() };
        let recompute = if stage == 3 { Recompute::Every(1) } else { Recompute::None };
        Row { pp, dp, zero, recompute, masked: true, ..Row::default() }
    })
}

#[test]
fn ten_meshes_over_mpi_equal_one_process() {
    if let Ok(endpoint) = std::env::var(ENDPOINT) {
        return rank(endpoint);
    }
    for ranks in [2, 4] {
        let ended = mpirun(ranks, &program("mpi::ten_meshes_over_mpi_equal_one_process"), DEADLINE);
        let done = |rank: &usize| {
            let line = format!("rank {rank} of {ranks}: {} rows", rows(ranks).count());
            ended.output.contains(&line)
        };
        assert!(ended.status.success() && (0..ranks).all(|rank| done(&rank)), "{}", ended.output);
    }
}

/// This program with the test of this name alone, as one of the ranks of a world.
fn program(name: &str) -> Command {
    let endpoint = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args([name, "--exact", "--nocapture", "--test-threads", "1"]).env(ENDPOINT, endpoint.to_string());
    program
}

fn rank(endpoint: String) {
    let timeouts = Timeouts::default();
    let mpi = Mpi::init(timeouts.init).unwrap();
    let world = join(Join::new(mpi.rank(), mpi.size(), endpoint, AuthToken::new("rows"))).unwrap();
    let (rank, ranks) = (world.group().rank(), world.group().size());
    let run = |row: &Row, order| {
        let group = mpi.group(world.group(), order).unwrap();
        row.run(brigade_cpu::groups(&group, row.mesh()).unwrap())
    };
    let mut count = 0;
    for row in rows(ranks) {
        let outcome = run(&row, Order::Tree);
        let reference = row.reference().run(Groups::single_rank());
        equals(&row, rank, &outcome, &reference);
        if rank == 0 {
            same_bits(&outcome.gradients, &reference.gradients, &format!("gradients of {row:?}"));
        }
        // In MPI's own order sums have other bits, but the same twice.
        let [first, second] = [run(&row, Order::Engine), run(&row, Order::Engine)];
        same_bits(&first.weights, &second.weights, &format!("the weights of a second run of {row:?}"));
        let loss = |outcome: &crate::row::Outcome| outcome.reports.last().unwrap().loss;
        assert!((loss(&first) - loss(&reference)).abs() < 1e-3 * loss(&reference), "{row:?}");
        count += 1;
    }
    println!("rank {rank} of {ranks}: {count} rows");
    world.shutdown().unwrap();
    mpi.finalize(timeouts.step).unwrap();
}

#[test]
fn collectives_over_mpi_do_what_they_do_on_every_backend() {
    if let Ok(endpoint) = std::env::var(ENDPOINT) {
        return rank_of_checks(endpoint, std::env::var(CHECK).ok());
    }
    let ranks = 3;
    let program = || program("mpi::collectives_over_mpi_do_what_they_do_on_every_backend");
    let all_have_done = |output: &str, checks: usize| {
        (0..ranks).all(|rank| output.contains(&format!("rank {rank} of {ranks}: {checks} checks")))
    };
    let ended = mpirun(ranks, &program(), DEADLINE);
    let checks = ALL.len() - FATAL.len();
    assert!(ended.status.success() && all_have_done(&ended.output, checks), "{}", ended.output);
    for check in FATAL {
        // How processes end after a failure is up to `mpirun`.
        let ended = mpirun(ranks, program().env(CHECK, check), DEADLINE);
        assert!(all_have_done(&ended.output, 1), "{check}: {}", ended.output);
    }
}

/// Runs all checks that leave the world as it is, each in a group of its own, or one of the others.
fn rank_of_checks(endpoint: String, fatal: Option<String>) {
    let timeouts = Timeouts::default();
    let mpi = Mpi::init(timeouts.init).unwrap();
    let world = join(Join::new(mpi.rank(), mpi.size(), endpoint, AuthToken::new("checks"))).unwrap();
    let (rank, ranks) = (world.group().rank(), world.group().size());
    let suite = Suite::new(brigade_cpu::device());
    let is_chosen = |name: &str| match &fatal {
        Some(fatal) => fatal == name,
        None => !FATAL.contains(&name),
    };
    let mut count = 0;
    for (name, check) in ALL.iter().copied().filter(|(name, _)| is_chosen(name)) {
        println!("rank {rank} checks that {name}");
        let group = mpi.group(world.group(), Order::Tree).unwrap();
        let groups = brigade_cpu::groups(&group, Mesh::data_parallel(ranks)).unwrap();
        check(&suite, &**groups.world());
        count += 1;
    }
    println!("rank {rank} of {ranks}: {count} checks");
    if fatal.is_some() {
        // Time for the others, which `mpirun` ends when this process has ended.
        thread::sleep(Duration::from_secs(2));
        std::process::exit(0);
    }
    world.shutdown().unwrap();
    mpi.finalize(timeouts.step).unwrap();
}
