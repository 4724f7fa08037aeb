//! Rows on ranks that `mpirun` starts, whose tensors MPI carries.

use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use brigade::comm::{AuthToken, Join, ProcessGroup, Timeouts, join};
use brigade::core::{Groups, Recompute, Zero};
use brigade_mpi::{Mpi, Order};
use brigade_testing::mpirun;

use crate::mesh::{equals, same_bits};
use crate::row::Row;

/// Set for ranks, to the endpoint of their world.
const ENDPOINT: &str = "BRIGADE_TEST_MPI_ENDPOINT";

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
        let endpoint = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut program = Command::new(std::env::current_exe().unwrap());
        let name = "mpi::ten_meshes_over_mpi_equal_one_process";
        program.args([name, "--exact", "--nocapture", "--test-threads", "1"]);
        let ended = mpirun(ranks, program.env(ENDPOINT, endpoint.to_string()), Duration::from_secs(300));
        let done = |rank: &usize| {
            let line = format!("rank {rank} of {ranks}: {} rows", rows(ranks).count());
            ended.output.contains(&line)
        };
        assert!(ended.status.success() && (0..ranks).all(|rank| done(&rank)), "{}", ended.output);
    }
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
