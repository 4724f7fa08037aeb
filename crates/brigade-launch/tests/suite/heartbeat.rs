//! Ranks that fall silent, and ranks that somebody stops.

use std::{env, thread, time::Duration};

use brigade_launch::{Event, ExitReason, HeartbeatSender, Outcome, restart_count};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{
    process::{PATIENCE, end, has_role, wait_until},
    worlds::{becomes, failure, launcher, log, pids, run, runs, shell},
};

const ROLE: &str = "heartbeat::sending_process";

/// Not a test by itself: rank 1 hangs at the first start, the others go on sending heartbeats while they wait for it, as in a
/// collective that is tried again and again; at the second start all are done at once.
#[test]
fn sending_process() {
    if !has_role(ROLE) {
        return;
    }
    let heartbeat = HeartbeatSender::from_env();
    heartbeat.send("step 1: forward");
    if let Ok(dir) = env::var("DIR") {
        std::fs::write(
            format!("{dir}/pid.{}", env::var("RANK").unwrap()),
            format!("{}\n", std::process::id()),
        )
        .unwrap();
    }
    if restart_count().unwrap() > 0 {
        return;
    }
    if env::var("RANK").unwrap() == "1" {
        heartbeat.send("step 2: reading data");
        thread::sleep(PATIENCE * 2);
    }
    loop {
        thread::sleep(Duration::from_millis(50));
        heartbeat.send("step 2: all-reduce");
    }
}

#[test]
fn a_rank_that_sends_no_heartbeat_is_the_failure() {
    let dir = TempDir::new().unwrap();
    let mut what = shell(&becomes(ROLE), 2, dir.path());
    what.heartbeat_timeout = Some(Duration::from_millis(1500));
    let failure = failure(run(&what).0);
    assert!(
        matches!(failure.root_cause.reason, ExitReason::HeartbeatTimeout(silence) if silence >= Duration::from_millis(1500))
    );
    let report = failure.to_string();
    let first = report.lines().next().unwrap();
    assert!(first.starts_with("rank 1 has sent no heartbeat for "), "{report}");
    assert!(first.ends_with("the last one said `step 2: reading data`"), "{report}");
    assert!(
        report.lines().last().unwrap().contains("its last heartbeat said `step 2: all-reduce`"),
        "{report}"
    );
}

#[test]
fn a_world_without_heartbeats_is_restarted() {
    let dir = TempDir::new().unwrap();
    let mut what = shell(&becomes(ROLE), 3, dir.path());
    what.heartbeat_timeout = Some(Duration::from_millis(1000));
    what.max_restarts = 1;
    let (outcome, events) = run(&what);
    assert_eq!(outcome, Outcome::Done);
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Restarting { .. })).count(), 1);
    assert!(log(dir.path(), 1).contains("--- restart 1 of 1 ---"));
}

#[test]
fn a_rank_that_never_sent_a_heartbeat_may_be_silent() {
    let dir = TempDir::new().unwrap();
    let mut what = shell("sleep 1.2", 1, dir.path());
    what.heartbeat_timeout = Some(Duration::from_millis(300));
    assert_eq!(run(&what).0, Outcome::Done);
    // Neither does a process count that merely inherited the variable.
    let script = format!("sh -c 'exit 0'; ({}) & wait", becomes(ROLE));
    let what =
        shell(&format!("BRIGADE_RESTART_COUNT=1; export BRIGADE_RESTART_COUNT; {script}"), 2, dir.path());
    assert_eq!(run(&what).0, Outcome::Done);
}

/// Nobody waits for it, and the limit of silence is 600 s.
#[test]
fn a_rank_that_is_alone_and_stopped_is_the_failure() {
    let dir = TempDir::new().unwrap();
    let child = launcher(&becomes(ROLE), 1, dir.path()).env("TEST_STOPPED", "2.5").spawn().unwrap();
    let pids = pids(dir.path(), 1);
    kill_process(Pid::from_raw(pids[0].parse().unwrap()).unwrap(), Signal::STOP).unwrap();
    let (code, said) = end(child);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("rank 0 has sent no heartbeat for "), "{said}");
    assert!(said.contains("likely cause: rank 0 has been stopped by SIGSTOP (19) for "), "{said}");
}

#[test]
fn a_stopped_rank_is_named_as_the_likely_cause() {
    let dir = TempDir::new().unwrap();
    let script = r#"echo $$ > "$DIR/pid.$RANK"
        if test $RANK = 0; then until test -e "$DIR/give_up"; do sleep 0.05; done; echo rank 1 did not arrive; exit 1; fi
        while :; do sleep 0.05; done"#;
    let child = launcher(script, 2, dir.path()).spawn().unwrap();
    let pids = pids(dir.path(), 2);
    let stopped = Pid::from_raw(pids[1].parse().unwrap()).unwrap();
    kill_process(stopped, Signal::STOP).unwrap();
    thread::sleep(Duration::from_secs(5));
    std::fs::write(dir.path().join("give_up"), "").unwrap();
    let (code, said) = end(child);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("rank 0 failed: exit code 1"), "{said}");
    assert!(said.contains("likely cause: rank 1 has been stopped by SIGSTOP (19) for "), "{said}");
    wait_until("the stopped rank is gone", || !runs(&pids[1]));
}
