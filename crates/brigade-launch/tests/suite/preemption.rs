//! SIGTERM and SIGUSR1 to a launcher: its ranks save and leave.

use std::{
    fs,
    io::{BufRead, BufReader},
    thread,
    time::{Duration, Instant},
};

use brigade_launch::{exit, interrupt};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::{
    process::{PATIENCE, at_once, end, exit_code, has_role, signal, wait_until},
    worlds::{becomes, launcher, pids, runs},
};

const ROLE: &str = "preemption::saving_process";

/// Not a test by itself: a rank that takes its time to save when it is preempted.
#[test]
fn saving_process() {
    if !has_role(ROLE) {
        return;
    }
    let set = |name: &str| std::env::var(name).unwrap();
    let (dir, rank) = (set("DIR"), set("RANK"));
    if std::env::var("TEST_HOLDS").is_ok() {
        fs::write(format!("{dir}/first.{rank}"), format!("{}\n", std::process::id())).unwrap();
        wait_until("the test goes on", || fs::exists(format!("{dir}/go")).unwrap());
    }
    let interrupt = interrupt::install().unwrap();
    fs::write(format!("{dir}/pid.{rank}"), format!("{}\n", std::process::id())).unwrap();
    while !interrupt.is_set() {
        thread::sleep(Duration::from_millis(5));
    }
    if interrupt.kind() == Some(interrupt::InterruptKind::Preempt)
        && std::env::var("TEST_STUCK").as_deref() != Ok(&rank)
    {
        // Longer than an interrupted rank may take.
        thread::sleep(Duration::from_millis(1300));
        fs::write(format!("{dir}/saved.{rank}"), "").unwrap();
        std::process::exit(exit::PREEMPTED.into());
    }
    thread::sleep(PATIENCE * 2);
}

#[test]
fn a_preempted_world_saves_and_exits_with_75() {
    at_once([Signal::TERM, Signal::USR1], |kind| {
        let dir = TempDir::new().unwrap();
        let mut command = launcher(&becomes(ROLE), 2, dir.path());
        let child = command.env("TEST_RESTARTS", "3").spawn().unwrap();
        let pids = pids(dir.path(), 2);
        signal(&child, kind);
        let (code, said) = end(child);
        assert_eq!(code, Some(75), "{said}");
        assert!(said.contains("preempted by SIG") && !said.contains("restart 1"), "{said}");
        assert!((0..2).all(|rank| dir.path().join(format!("saved.{rank}")).exists()));
        assert!(!pids.iter().any(|pid| runs(pid)));
    });
}

/// Each rank takes its time to become a program that saves; signals wait for it, those to a rank as those to the launcher.
#[test]
fn a_preemption_in_the_first_moments_of_ranks_is_held_back() {
    at_once([true, false], |to_launcher| {
        let dir = TempDir::new().unwrap();
        let mut command = launcher(&becomes(ROLE), 2, dir.path());
        let child = command.env("TEST_HOLDS", "1").spawn().unwrap();
        let first = |rank: usize| {
            let text = fs::read_to_string(dir.path().join(format!("first.{rank}"))).ok();
            text.filter(|text| text.ends_with('\n'))
        };
        wait_until("the ranks run", || first(0).is_some() && first(1).is_some());
        match to_launcher {
            true => signal(&child, Signal::TERM),
            false => {
                let rank = first(1).unwrap().trim().parse().unwrap();
                let rank = rustix::process::Pid::from_raw(rank).unwrap();
                rustix::process::kill_process(rank, Signal::TERM).unwrap();
            }
        }
        fs::write(dir.path().join("go"), "").unwrap();
        let (code, said) = end(child);
        assert_eq!(code, Some(75), "{said}");
        assert!((0..2).all(|rank| dir.path().join(format!("saved.{rank}")).exists()), "{said}");
    });
}

#[test]
fn a_signal_that_reaches_ranks_and_launcher_is_one_preemption() {
    let dir = TempDir::new().unwrap();
    let child = launcher(&becomes(ROLE), 2, dir.path()).spawn().unwrap();
    for pid in pids(dir.path(), 2) {
        let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
        rustix::process::kill_process(pid, Signal::TERM).unwrap();
    }
    signal(&child, Signal::TERM);
    let (code, said) = end(child);
    assert_eq!(code, Some(75), "{said}");
}

#[test]
fn a_rank_that_leaves_preempted_takes_the_others_along() {
    let dir = TempDir::new().unwrap();
    let script = format!("if test $RANK = 1; then exit 75; fi; {}", becomes(ROLE));
    let (code, said) = end(launcher(&script, 2, dir.path()).spawn().unwrap());
    // A rank that cannot save yet, or has saved already, is ended by the signal itself.
    assert_eq!(code, Some(75), "{said}");
    assert!(said.contains("rank 1, which exited with code 75"), "{said}");
}

#[test]
fn a_rank_that_the_signal_ends_after_another_one_saved_is_no_interruption() {
    let dir = TempDir::new().unwrap();
    let script = "if test $RANK = 1; then exit 75; fi; exec sleep 60";
    let (code, said) = end(launcher(script, 2, dir.path()).spawn().unwrap());
    assert_eq!(code, Some(75), "{said}");
    assert!(said.contains("preempted by rank 1, which exited with code 75; the launcher ended"), "{said}");
}

#[test]
fn a_second_signal_to_the_launcher_ends_the_saving() {
    let dir = TempDir::new().unwrap();
    let mut child = launcher(&becomes(ROLE), 2, dir.path()).env("TEST_STUCK", "0").spawn().unwrap();
    let pids = pids(dir.path(), 2);
    let started = Instant::now();
    signal(&child, Signal::TERM);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "got SIGTERM (15)"));
    signal(&child, Signal::TERM);
    assert_eq!(exit_code(&mut child), Some(130));
    assert!(started.elapsed() < Duration::from_secs(20), "it did not wait for the grace");
    assert!(!pids.iter().any(|pid| runs(pid)));
}

#[test]
fn a_rank_that_does_not_save_in_time_fails_and_is_not_started_again() {
    let dir = TempDir::new().unwrap();
    let mut command = launcher(&becomes(ROLE), 2, dir.path());
    command.env("TEST_STUCK", "1").env("TEST_PREEMPTION_GRACE", "8").env("TEST_RESTARTS", "3");
    let child = command.spawn().unwrap();
    pids(dir.path(), 2);
    signal(&child, Signal::TERM);
    wait_until("the other rank saves", || dir.path().join("saved.0").exists());
    let (code, said) = end(child);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("rank 1 failed: exit code 1") && said.contains("within the grace period of 8 s"),
        "{said}"
    );
    assert!(!said.contains("restart 1"), "{said}");
}
