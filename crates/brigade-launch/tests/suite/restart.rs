//! What is started again, how often, and what is not.

use std::{
    io::{BufRead, BufReader},
    time::Instant,
};

use brigade_launch::{DEFAULT_RESTART_DELAY, Event, ExitReason, Outcome, restart_count};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::{
    process::{PATIENCE, at_once, end, exit_code, has_role, itself, signal, wait_until},
    worlds::{becomes, failure, launcher, log, run, shell},
};

fn restarts(events: &[Event]) -> Vec<u32> {
    let number = |event: &Event| match event {
        Event::Restarting { number, .. } => Some(*number),
        _ => None,
    };
    events.iter().filter_map(number).collect()
}

/// Not a test by itself: a rank that panics at the first start.
#[test]
fn panicking_process() {
    if has_role("restart::panicking_process") && restart_count().unwrap() == 0 {
        panic!("the loss is not finite");
    }
}

#[test]
fn a_failed_world_is_started_again_with_its_number() {
    let panics = format!("if test $RANK = 1; then {}; fi", becomes("restart::panicking_process"));
    let cases = [
        ("if test $RANK$BRIGADE_RESTART_COUNT = 10; then kill -9 $$; fi", "SIGKILL (9)"),
        ("if test $RANK$BRIGADE_RESTART_COUNT = 10; then exit 3; fi", "exit code 3"),
        (panics.as_str(), "panic, exit code 101"),
    ];
    at_once(cases, |(fails, said)| {
        let dir = TempDir::new().unwrap();
        let script = format!(
            r#"echo "start $BRIGADE_RESTART_COUNT $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS"
            test $RANK$BRIGADE_RESTART_COUNT = 00 && exec sleep 1000
            {fails}; exit 0"#
        );
        let mut what = shell(&script, 2, dir.path());
        what.max_restarts = 3;
        let started = Instant::now();
        let (outcome, events) = run(&what);
        assert_eq!((&outcome, restarts(&events)), (&Outcome::Done, vec![1]), "{outcome}");
        assert!(started.elapsed() >= DEFAULT_RESTART_DELAY);
        let report = events.iter().find_map(|event| match event {
            Event::Restarting { number: 1, of: 3, failure } => Some(failure.to_string()),
            _ => None,
        });
        let report = report.unwrap();
        assert!(report.starts_with("rank 1 failed: ") && report.contains(said), "{report}");
        assert_eq!(log(dir.path(), 0), "start 0 0 3\n--- restart 1 of 3 ---\nstart 1 1 3\n");
    });
}

#[test]
fn a_launch_that_goes_on_keeps_the_logs() {
    let dir = tempfile::tempdir().unwrap();
    for (keeps_logs, text) in [(true, "a\n"), (true, "a\n--- started again ---\na\n"), (false, "a\n")] {
        let mut what = shell("echo a", 1, dir.path());
        what.keeps_logs = keeps_logs;
        assert_eq!(run(&what).0, Outcome::Done);
        assert_eq!(log(dir.path(), 0), text);
    }
}

#[test]
fn restarts_are_counted_and_the_last_failure_is_reported() {
    let dir = TempDir::new().unwrap();
    let mut what = shell("echo again >> $DIR/starts; exit 3", 1, dir.path());
    what.max_restarts = 2;
    let (outcome, events) = run(&what);
    assert_eq!((restarts(&events), outcome.exit_code()), (vec![1, 2], 1));
    assert_eq!(std::fs::read_to_string(dir.path().join("starts")).unwrap(), "again\n".repeat(3));
    let failure = failure(outcome);
    assert_eq!((failure.restarts, failure.root_cause.reason), (2, ExitReason::Code(3)));
    assert!(failure.to_string().contains("(after 2 restarts)"), "{failure}");
}

#[test]
fn usage_errors_interruptions_and_preemptions_are_final() {
    for (code, launcher_code) in [(2, 2), (130, 130), (75, 75)] {
        let dir = TempDir::new().unwrap();
        let mut what = shell(&format!("exit {code}"), 1, dir.path());
        what.max_restarts = 3;
        let (outcome, events) = run(&what);
        assert_eq!((restarts(&events), outcome.exit_code()), (vec![], launcher_code), "{outcome}");
    }
}

#[test]
fn a_signal_in_the_pause_ends_the_run() {
    for (kind, code) in [(Signal::INT, 130), (Signal::TERM, 75)] {
        let dir = TempDir::new().unwrap();
        let mut command = launcher("exit 3", 1, dir.path());
        let mut child = command.env("TEST_RESTARTS", "3").env("TEST_PAUSE", "1000").spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().starts_with("restart 1 of 3")));
        signal(&child, kind);
        assert_eq!(exit_code(&mut child), Some(code));
    }
}

#[test]
fn a_signal_after_the_failure_forbids_the_restart() {
    let dir = TempDir::new().unwrap();
    let script = r#"if test $RANK = 1; then until test -e "$DIR/ready"; do sleep 0.02; done; exit 3; fi
        trap 'touch "$DIR/told"' INT; touch "$DIR/ready"; while :; do sleep 0.05; done"#;
    let mut command = launcher(script, 2, dir.path());
    let child = command.env("TEST_RESTARTS", "3").env("TEST_GRACE", "1000").spawn().unwrap();
    wait_until("the other rank is told to end", || dir.path().join("told").exists());
    signal(&child, Signal::INT);
    let (code, said) = end(child);
    assert!(code == Some(1) && said.contains("outcome: rank 1 failed: exit code 3"), "{said}");
    assert!(!said.contains("restart 1"), "{said}");
}

#[test]
fn nothing_is_left_open_by_restarts() {
    let dir = TempDir::new().unwrap();
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    // Other tests of this process open and close, too: a process of its own counts.
    if !has_role("restart::nothing_is_left_open_by_restarts") {
        let output = itself("restart::nothing_is_left_open_by_restarts").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    run(&shell("exit 0", 2, dir.path()));
    let before = open();
    let mut what = shell("exit 3", 2, dir.path());
    what.max_restarts = 1;
    run(&what);
    wait_until("the threads of the streams are gone", || open() <= before);
}

#[test]
fn a_launcher_told_to_ignore_sigint_still_ends_its_ranks_in_order() {
    let dir = TempDir::new().unwrap();
    let script = r#"if test $RANK = 1; then until test -e "$DIR/ready"; do sleep 0.02; done; exit 3; fi
        trap 'echo in order; exit 0' INT; touch "$DIR/ready"; while :; do sleep 0.05; done"#;
    let inner = launcher(script, 2, dir.path());
    // A shell's background command ignores SIGINT, and so does what it starts.
    let started = Instant::now();
    let (code, said) = end(ignoring("INT", &inner).spawn().unwrap());
    assert!(code == Some(1) && started.elapsed() < PATIENCE, "{said}");
    assert_eq!(log(dir.path(), 0), "in order\n", "{said}");
}

#[test]
fn a_launcher_told_to_ignore_the_ends_of_its_processes_learns_how_its_ranks_ended() {
    for (script, ending) in [("sh -c 'exit 0' && exit 0", 0), ("exit 3", 1)] {
        let dir = TempDir::new().unwrap();
        let (code, said) = end(ignoring("CHLD", &launcher(script, 2, dir.path())).spawn().unwrap());
        assert_eq!(code, Some(ending), "{said}");
        assert_eq!(said.contains("failed: exit code 3"), ending == 1, "{said}");
    }
}

/// The same, started by a shell that ignores a signal, as then what it starts does.
fn ignoring(signal: &str, inner: &std::process::Command) -> std::process::Command {
    let mut outer = std::process::Command::new("sh");
    let script = format!(r#"trap '' {signal}; exec "$0" "$@""#);
    outer.args(["-c", &script]).arg(inner.get_program()).args(inner.get_args());
    outer.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    outer.stderr(std::process::Stdio::piped()).stdout(std::process::Stdio::null());
    outer
}
