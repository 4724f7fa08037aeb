//! What happens when ranks do different things, nothing, or die.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use brigade_comm::{DType, ProcessGroup, ReduceOp};
use brigade_mpi::Mpi;

use crate::ranks::{rank, start, start_preloaded};

/// The deadline of an operation, where it is what notices a failure.
const HASTY: Duration = Duration::from_secs(3);
const PATIENT: Duration = Duration::from_secs(60);

/// Prints a failure as `rank R: …`, and ends the process as one that failed.
fn fail_with(rank: usize, error: impl std::fmt::Display) -> ! {
    println!("rank {rank}: {error}");
    // Time for the others, which `mpirun` ends when this process has ended.
    std::thread::sleep(Duration::from_secs(2));
    std::process::exit(3);
}

/// The texts of the ranks that failed.
fn failures(output: &str, ranks: usize) -> Vec<String> {
    let text = |rank: usize| {
        let start = format!("rank {rank}: ");
        let line = output.lines().find_map(|line| line.split_once(&start));
        line.unwrap_or_else(|| panic!("rank {rank} said nothing: {output}")).1.to_owned()
    };
    (0..ranks).map(text).collect()
}

#[test]
fn a_call_that_differs_is_an_error_on_all_ranks() {
    if let Some(rank) = rank(PATIENT) {
        let group = &rank.tree;
        let length = if group.rank() == 2 { 5 } else { 4 };
        let error = group.all_reduce(vec![1.0f32; length], DType::F32, ReduceOp::Sum).wait().unwrap_err();
        let start = Instant::now();
        assert!(group.barrier().is_err() && start.elapsed() < Duration::from_secs(1), "the end of all");
        fail_with(group.rank(), error);
    }
    let ended = start("failures::a_call_that_differs_is_an_error_on_all_ranks", 3);
    assert!(!ended.status.success());
    for text in failures(&ended.output, 3) {
        assert!(text.contains("rank 2 called all_reduce #0 (sum, f32, 20 bytes)"), "{text}");
        assert!(text.contains("called all_reduce #0 (sum, f32, 16 bytes)"), "{text}");
    }
}

#[test]
fn another_operation_is_an_error_on_all_ranks() {
    if let Some(rank) = rank(PATIENT) {
        let group = &rank.tree;
        let result = match group.rank() {
            0 => group.barrier(),
            _ => group.broadcast(vec![1u8; 100], DType::U8, 1).wait().map(drop),
        };
        fail_with(group.rank(), result.unwrap_err());
    }
    let ended = start("failures::another_operation_is_an_error_on_all_ranks", 2);
    for text in failures(&ended.output, 2) {
        assert!(
            text.contains("barrier #0") && text.contains("broadcast #0 (root 1, u8, 100 bytes)"),
            "{text}"
        );
    }
}

#[test]
fn a_message_of_another_size_is_an_error_on_both_ranks() {
    if let Some(rank) = rank(PATIENT) {
        let group = &rank.tree;
        let result = match group.rank() {
            0 => group.send(vec![1u8; 3 << 20], DType::U8, 1).wait(),
            _ => group.recv_message(0, 1 << 20).wait(),
        };
        fail_with(group.rank(), result.unwrap_err());
    }
    let ended = start("failures::a_message_of_another_size_is_an_error_on_both_ranks", 2);
    for text in failures(&ended.output, 2) {
        assert!(text.contains("rank 1 called recv_message #0 (u8, at most 1048576 bytes)"), "{text}");
        assert!(text.contains("rank 0 called send #0 (u8, 3145728 bytes)"), "{text}");
    }
}

#[test]
fn a_rank_that_does_not_call_is_named_after_the_deadline() {
    if let Some(rank) = rank(HASTY) {
        let group = &rank.tree;
        group.barrier().unwrap();
        let start = Instant::now();
        if group.rank() == 1 {
            while group.failure().is_none() {
                assert!(start.elapsed() < Duration::from_secs(60), "nobody noticed");
                std::thread::sleep(Duration::from_millis(10));
            }
            fail_with(1, group.failure().unwrap());
        }
        let error = group.all_gather(vec![0u8; 30], DType::U8).wait().unwrap_err();
        let waited = start.elapsed();
        assert!(waited >= HASTY && waited < HASTY + Duration::from_secs(10), "{waited:?}");
        fail_with(group.rank(), error);
    }
    let ended = start("failures::a_rank_that_does_not_call_is_named_after_the_deadline", 3);
    for text in failures(&ended.output, 3) {
        assert!(text.contains("rank 1 never called its part of all_gather #1"), "{text}");
        assert!(text.contains("gave up all_gather #1 (u8, 30 bytes) after 3s"), "{text}");
    }
}

#[test]
fn a_rank_that_is_killed_ends_all() {
    if let Some(rank) = rank(PATIENT) {
        let group = &rank.tree;
        group.barrier().unwrap();
        if group.rank() == 1 {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
        let error = group.all_reduce(vec![1.0f32; 1 << 20], DType::F32, ReduceOp::Sum).wait().unwrap_err();
        fail_with(group.rank(), error);
    }
    let ended = start("failures::a_rank_that_is_killed_ends_all", 3);
    assert!(!ended.status.success());
    assert!(ended.took < Duration::from_secs(40), "{:?}", ended.took);
    // Its end is named by mpirun, by the others, or by all of them.
    let said = ended.output.contains("rank 1 died") || ended.output.to_lowercase().contains("signal");
    assert!(said || ended.output.contains("KILLED BY SIGNAL"), "{}", ended.output);
}

#[test]
fn groups_that_are_named_differently_do_not_split() {
    if let Some(rank) = rank(PATIENT) {
        let group = &rank.tree;
        let error = group.split(["one", "other"][group.rank()], 0, 0).err().unwrap();
        fail_with(group.rank(), error);
    }
    let ended = start("failures::groups_that_are_named_differently_do_not_split", 2);
    let texts = failures(&ended.output, 2);
    assert!(texts.iter().all(|text| text.contains("split by color 0")), "{texts:?}");
}

/// Set for a process that no `mpirun` has started.
const ALONE: &str = "BRIGADE_TEST_MPI_ALONE";

#[test]
fn processes_that_another_program_started_are_told_so() {
    if std::env::var_os(ALONE).is_some() {
        let mpi = Mpi::init(PATIENT).unwrap();
        println!("{}", mpi.check_rank(3, 8).unwrap_err());
        println!("again: {}", Mpi::init(PATIENT).unwrap_err());
        mpi.check_rank(0, 1).unwrap();
        mpi.finalize(PATIENT).unwrap();
        println!("done");
        return;
    }
    let mut alone = Command::new(std::env::current_exe().unwrap());
    let name = "failures::processes_that_another_program_started_are_told_so";
    alone.args([name, "--exact", "--nocapture"]).env(ALONE, "1");
    let output = alone.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("this process is rank 3 of 8, but rank 0 of 1 for"), "{text}");
    assert!(text.contains("again: this program has already initialised MPI"), "{text}");
    assert!(text.contains("done") && output.status.success(), "{text}");
}

/// Compiles functions that take the place of MPI's: a library to load before it, in a folder of its own.
fn library(name: &str, code: &str) -> (PathBuf, PathBuf) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, library) = (folder.join(format!("{name}.c")), folder.join(format!("{name}.so")));
    std::fs::write(&source, code).unwrap();
    let mpicc = std::env::var("MPICC").unwrap_or_else(|_| "mpicc".into());
    let compiled = Command::new(mpicc).args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(compiled.unwrap().success());
    (folder, library)
}

/// The library's own function, which fails on rank 1 where each rank gives 13 bytes.
const FAILING: &str = "
#include <mpi.h>

int MPI_Iallgather(const void *from, int count, MPI_Datatype type, void *into, int each, MPI_Datatype into_type, MPI_Comm comm,
                   MPI_Request *request) {
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 1 && each == 13) {
        return MPI_ERR_OTHER;
    }
    return PMPI_Iallgather(from, count, type, into, each, into_type, comm, request);
}
";

#[test]
fn an_error_of_mpi_ends_all_with_its_rank_and_operation() {
    if let Some(rank) = rank(PATIENT) {
        let group = &rank.tree;
        group.barrier().unwrap();
        group.all_gather(vec![0u8; 6], DType::U8).wait().unwrap();
        let error = group.all_gather(vec![0u8; 3 * 13], DType::U8).wait().unwrap_err();
        let start = Instant::now();
        assert!(group.barrier().is_err() && start.elapsed() < Duration::from_secs(1), "the end of all");
        fail_with(group.rank(), error);
    }
    let (folder, library) = library("failing", FAILING);
    let ended =
        start_preloaded("failures::an_error_of_mpi_ends_all_with_its_rank_and_operation", 3, &library);
    assert!(!ended.status.success());
    let said = "rank 1: MPI failed in all_gather #2 (u8, 39 bytes): MPI_Iallgather: ";
    let ranks = ended.output.lines().filter(|line| line.contains(said)).count();
    assert_eq!(ranks, 3, "all of them say so: {}", ended.output);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Set for a process whose MPI cannot be called from a thread.
const UNTHREADED: &str = "BRIGADE_TEST_MPI_UNTHREADED";

/// The library's own function, with less to offer.
const SINGLE: &str = "
#include <mpi.h>

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    int code = PMPI_Init_thread(argc, argv, required, provided);
    *provided = MPI_THREAD_SINGLE;
    return code;
}
";

#[test]
fn an_mpi_without_support_for_threads_is_refused() {
    if std::env::var_os(UNTHREADED).is_some() {
        println!("{}", Mpi::init(PATIENT).unwrap_err());
        return;
    }
    let (folder, library) = library("single", SINGLE);
    let mut alone = Command::new(std::env::current_exe().unwrap());
    let name = "failures::an_mpi_without_support_for_threads_is_refused";
    alone.args([name, "--exact", "--nocapture"]).env(UNTHREADED, "1").env("LD_PRELOAD", &library);
    let output = alone.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("offers MPI_THREAD_SINGLE, but MPI_THREAD_FUNNELED is needed"), "{text}");
    assert!(text.contains("comm.collectives (--collectives) = host"), "{text}");
    std::fs::remove_dir_all(folder).unwrap();
}
