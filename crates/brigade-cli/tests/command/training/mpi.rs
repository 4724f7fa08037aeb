//! Runs whose ranks `mpirun` starts, and whose tensors MPI carries.

use std::fs;
use std::time::Duration;

use brigade_testing::{MpiRun, mpirun};
use rustix::process::Signal;

use crate::place::Place;
use crate::processes::{SOON, none_left_in, send, working_in};
use crate::runs::{dead_after, same_end, trained};

const DEADLINE: Duration = Duration::from_secs(120);

fn start(place: &Place, ranks: usize, line: &str) -> MpiRun {
    mpirun(ranks, &place.train(&format!("--collectives mpi {line}")), DEADLINE)
}

fn trained_by_mpirun(place: &Place, ranks: usize, line: &str) {
    let ended = start(place, ranks, &format!("{line} --checkpoint-every 4 --keep 0"));
    assert!(ended.status.success(), "{ranks} ranks, {line}: {}", ended.output);
}

/// The bytes that ranks sent in each step.
fn sent(place: &Place, run: &str) -> Vec<serde_json::Value> {
    place.metrics(run).iter().map(|record| record["comm_bytes"].clone()).collect()
}

#[test]
fn ranks_of_mpirun_train_to_the_same_bytes_and_send_as_many() {
    let place = Place::new();
    trained(&place, "alone", "--nproc-per-node 1");
    for (ranks, mesh) in [(1, ""), (2, "--dp 2 --zero 3"), (4, "--pp 2 --zero 2"), (4, "--dp 4")] {
        let (run, host) = (format!("mpi-{ranks}-{}", mesh.len()), format!("host-{ranks}-{}", mesh.len()));
        trained_by_mpirun(&place, ranks, &format!("{mesh} --out {run}"));
        same_end(&place, &run, "alone");
        trained(&place, &host, &format!("--nproc-per-node {ranks} {mesh}"));
        assert_eq!(sent(&place, &run), sent(&place, &host), "{mesh}");
    }
}

#[test]
fn in_the_order_of_mpi_two_runs_are_equal() {
    let place = Place::new();
    for run in ["a", "b"] {
        trained_by_mpirun(&place, 4, &format!("--dp 4 --set comm.order=engine --out {run}"));
    }
    same_end(&place, "a", "b");
}

#[test]
fn checkpoints_go_on_with_and_without_mpi() {
    let place = Place::new();
    trained(&place, "alone", "--nproc-per-node 1");
    trained_by_mpirun(&place, 2, "--dp 2 --zero 2 --out mpi");
    dead_after(&place, "mpi", 4, "a");
    place.succeed(&mut place.train("--resume a --nproc-per-node 4 --pp 2 --collectives host"));
    same_end(&place, "a", "alone");
    dead_after(&place, "alone", 8, "b");
    let ended = start(&place, 4, "--resume b --pp 2 --zero 3");
    assert!(ended.status.success(), "{}", ended.output);
    same_end(&place, "b", "alone");
}

#[test]
fn a_rank_that_is_killed_ends_the_run() {
    let place = Place::new();
    let ended = std::thread::scope(|scope| {
        let run = scope.spawn(|| start(&place, 3, "--dp 3 --global-batch-size 6 --steps 1000000 --out a"));
        let metrics = place.path("a/metrics.jsonl");
        let begin = std::time::Instant::now();
        while fs::read_to_string(&metrics).map_or(0, |text| text.lines().count()) < 3 {
            assert!(!run.is_finished() && begin.elapsed() < DEADLINE, "no steps");
            std::thread::sleep(Duration::from_millis(20));
        }
        let is_rank_1 = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment
                .split(|byte| *byte == 0)
                .any(|it| it == b"OMPI_COMM_WORLD_RANK=1" || it == b"PMI_RANK=1")
        };
        let rank = working_in(&place.path("")).into_iter().find(is_rank_1).expect("rank 1");
        let begin = std::time::Instant::now();
        assert!(send(rank, Signal::KILL));
        let ended = run.join().unwrap();
        assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
        ended
    });
    assert!(!ended.status.success(), "{}", ended.output);
    let said = ended.output.to_lowercase();
    assert!(
        said.contains("rank 1 died") || said.contains("signal 9") || said.contains("signal: 9"),
        "{}",
        ended.output
    );
    none_left_in(&place.path(""));
}

#[test]
fn the_ranks_of_another_launcher_are_refused() {
    let place = Place::new();
    let mut rank = place.train("--collectives mpi --out a");
    let done = place.run(rank.envs([("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")]));
    assert_eq!(done.code, Some(2), "{}", done.err);
    let said = "brigade: this process is rank 1 of 2, but rank 0 of 1 for";
    assert!(done.err.contains(said) && done.err.contains("--collectives"), "{}", done.err);
    let done = place.run(&mut place.train("--collectives mpi --nproc-per-node 2 --out a"));
    assert_eq!(done.code, Some(2), "{}", done.err);
    assert!(done.err.contains("--collectives) = mpi") && done.err.contains("mpirun -n 2"), "{}", done.err);
    assert!(!place.path("a/metrics.jsonl").exists());
}
