//! Several nodes, all of them on this machine: their launchers agree.

use std::{
    fs,
    net::TcpListener,
    process::Child,
    sync::atomic::{AtomicU16, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::{
    process::{PATIENCE, at_once, end, signal, wait_until},
    worlds::{log, node, pids, runs},
};

/// A port that nobody has, below those that the system hands out by itself.
pub fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 20_000 + u16::try_from(std::process::id() % 600).unwrap() * 20;
    loop {
        let port = first + NEXT.fetch_add(1, Ordering::Relaxed) % 20;
        if TcpListener::bind(("0.0.0.0", port)).is_ok() {
            return port;
        }
    }
}

/// The launchers of all nodes, with one rank each.
fn start(script: &str, nnodes: usize, port: u16, restarts: u32, dir: &TempDir) -> Vec<Child> {
    let one = |i| {
        let mut command = node(script, i, nnodes, port, dir.path());
        // Node 0's number counts.
        command.env("TEST_RESTARTS", if i == 0 { restarts } else { 0 }.to_string());
        command.env("TEST_INIT", "20").spawn().unwrap()
    };
    (0..nnodes).map(one).collect()
}

fn ends(children: Vec<Child>) -> Vec<(Option<i32>, String)> {
    children.into_iter().map(end).collect()
}

fn starts(dir: &TempDir) -> Vec<String> {
    let text = fs::read_to_string(dir.path().join("starts")).unwrap_or_default();
    let mut lines: Vec<String> = text.lines().map(Into::into).collect();
    lines.sort();
    lines
}

/// Notes each start as `rank round`, and the process.
const BEGIN: &str = r#"echo $RANK $BRIGADE_RESTART_COUNT >> "$DIR/starts"; echo $$ > "$DIR/pid.$RANK";"#;

#[test]
fn ranks_are_numbered_over_nodes_and_meet_at_a_port_of_their_own() {
    let (dir, port) = (TempDir::new().unwrap(), port());
    let script = "echo $RANK $LOCAL_RANK $WORLD_SIZE $GROUP_RANK $MASTER_ADDR; echo $MASTER_PORT ${BRIGADE_RDZV_FD:+bound}";
    for (code, said) in ends(start(script, 3, port, 0, &dir)) {
        assert_eq!(code, Some(0), "{said}");
    }
    let logs: Vec<String> = (0..3).map(|rank| log(dir.path(), rank)).collect();
    let ports: Vec<&str> = logs.iter().map(|log| log.lines().nth(1).unwrap()).collect();
    for rank in 0..3 {
        assert!(logs[rank].starts_with(&format!("{rank} 0 3 {rank} 127.0.0.1\n")), "{}", logs[rank]);
        assert_eq!(format!("{} bound", ports[rank].trim_end_matches(" bound")), ports[0]);
    }
    assert!(!ports[0].starts_with(&port.to_string()) && !ports[1].contains("bound"), "{ports:?}");
    assert!(TcpListener::bind(("0.0.0.0", port)).is_ok(), "the launchers' port is free again");
}

#[test]
fn a_failure_on_one_node_starts_all_again() {
    let (dir, port) = (TempDir::new().unwrap(), port());
    let script = format!(
        r#"{BEGIN} test $BRIGADE_RESTART_COUNT = 1 && exit 0
        if test $RANK = 1; then sleep 0.5; echo out of luck; exit 3; fi; exec sleep 1000"#
    );
    for (code, said) in ends(start(&script, 2, port, 3, &dir)) {
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("restart 1 of 3: rank 1 failed: exit code 3"), "{said}");
        assert!(said.contains("on node 1 (") && said.contains("out of luck"), "{said}");
        assert!(said.contains("rank 0: killed by SIGINT (2)"), "{said}");
    }
    assert_eq!(starts(&dir), ["0 0", "0 1", "1 0", "1 1"]);
}

#[test]
fn restarts_over_nodes_are_limited_by_node_zero() {
    let (dir, port) = (TempDir::new().unwrap(), port());
    let script = format!("{BEGIN} if test $RANK = 1; then exit 3; fi; exec sleep 1000");
    for (code, said) in ends(start(&script, 2, port, 1, &dir)) {
        assert_eq!(code, Some(1), "{said}");
        assert!(
            said.contains("outcome: rank 1 failed: exit code 3") && said.contains("(after 1 restart)"),
            "{said}"
        );
    }
    assert_eq!(starts(&dir), ["0 0", "0 1", "1 0", "1 1"]);
}

#[test]
fn a_usage_error_on_one_node_is_final() {
    let (dir, port) = (TempDir::new().unwrap(), port());
    let script = format!("{BEGIN} if test $RANK = 1; then exit 2; fi; exec sleep 1000");
    for (code, said) in ends(start(&script, 2, port, 3, &dir)) {
        assert_eq!(code, Some(2), "{said}");
    }
    assert_eq!(starts(&dir), ["0 0", "1 0"]);
}

#[test]
fn signals_to_one_node_reach_all() {
    let script = format!(r#"trap 'exit 75' TERM; {BEGIN} while :; do sleep 0.05; done"#);
    at_once([(Signal::TERM, 75), (Signal::INT, 130)], |(kind, code)| {
        let (dir, port) = (TempDir::new().unwrap(), port());
        let children = start(&script, 2, port, 3, &dir);
        let pids = pids(dir.path(), 2);
        signal(&children[1], kind);
        for (found, said) in ends(children) {
            assert_eq!(found, Some(code), "{said}");
        }
        assert!(!pids.iter().any(|pid| runs(pid)));
        assert_eq!(starts(&dir), ["0 0", "1 0"]);
    });
}

#[test]
fn a_failure_while_saving_ends_the_saving_on_all_nodes() {
    let (dir, port) = (TempDir::new().unwrap(), port());
    let script = format!(
        r#"trap 'if test $RANK = 1; then exit 3; fi; touch "$DIR/saving"; sleep 1000' TERM
        {BEGIN} while :; do sleep 0.05; done"#
    );
    let children = start(&script, 2, port, 3, &dir);
    let pids = pids(dir.path(), 2);
    let started = Instant::now();
    signal(&children[0], Signal::TERM);
    for (code, said) in ends(children) {
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("outcome: rank 1 failed: exit code 3"), "{said}");
    }
    assert!(started.elapsed() < Duration::from_secs(20), "the grace is 30 s");
    assert!(!pids.iter().any(|pid| runs(pid)));
}

#[test]
fn a_node_that_is_lost_while_all_save_leaves_the_run_to_be_started_again() {
    let (dir, port) = (TempDir::new().unwrap(), port());
    let script = format!(
        r#"trap 'touch "$DIR/saving.$RANK"; sleep 1000' TERM
        {BEGIN} while :; do sleep 0.05; done"#
    );
    let mut children = start(&script, 2, port, 3, &dir);
    pids(dir.path(), 2);
    signal(&children[1], Signal::TERM);
    wait_until("all save", || (0..2).all(|rank| dir.path().join(format!("saving.{rank}")).exists()));
    signal(&children[1], Signal::KILL);
    drop(end(children.remove(1)));
    let (code, said) = end(children.remove(0));
    assert_eq!(code, Some(75), "{said}");
    assert!(
        said.contains("outcome: node 1 (") && said.contains("continues from what it has saved"),
        "{said}"
    );
    assert_eq!(starts(&dir), ["0 0", "1 0"]);
}

#[test]
fn a_killed_launcher_is_noticed_and_named() {
    at_once([0, 1], |victim| {
        let (dir, port) = (TempDir::new().unwrap(), port());
        let script = format!("{BEGIN} exec sleep 1000");
        let mut children = start(&script, 3, port, 0, &dir);
        let pids = pids(dir.path(), 3);
        signal(&children[victim], Signal::KILL);
        let started = Instant::now();
        drop(end(children.remove(victim)));
        wait_until("no rank runs", || !pids.iter().any(|pid| runs(pid)));
        assert!(started.elapsed() < PATIENCE / 2, "{:?}", started.elapsed());
        for (code, said) in ends(children) {
            assert_eq!(code, Some(1), "{said}");
            assert!(
                said.contains(&format!("outcome: node {victim} (")) && said.contains("is lost after"),
                "{said}"
            );
        }
    });
}

#[test]
fn a_launcher_that_comes_back_goes_on_in_the_next_round() {
    at_once([0, 1], |victim| {
        let (dir, port) = (TempDir::new().unwrap(), port());
        let script = format!("{BEGIN} test $BRIGADE_RESTART_COUNT = 1 && exit 0; exec sleep 1000");
        let mut children = start(&script, 3, port, 2, &dir);
        let pids = pids(dir.path(), 3);
        signal(&children[victim], Signal::KILL);
        drop(end(children.remove(victim)));
        wait_until("no rank runs", || !pids.iter().any(|pid| runs(pid)));
        // The cluster takes a moment.
        thread::sleep(Duration::from_millis(300));
        let mut again = node(&script, victim, 3, port, dir.path());
        children.push(again.env("TEST_RESTARTS", "2").env("TEST_INIT", "20").spawn().unwrap());
        for (code, said) in ends(children) {
            assert_eq!(code, Some(0), "{said}");
        }
        assert_eq!(starts(&dir), ["0 0", "0 1", "1 0", "1 1", "2 0", "2 1"]);
    });
}

#[test]
fn a_launcher_that_does_not_come_back_is_waited_for_and_named() {
    let (dir, port) = (TempDir::new().unwrap(), port());
    let one = |i| {
        let mut command = node(&format!("{BEGIN} exec sleep 1000"), i, 2, port, dir.path());
        command.env("TEST_RESTARTS", "1").env("TEST_INIT", "2").spawn().unwrap()
    };
    let mut children: Vec<Child> = (0..2).map(one).collect();
    pids(dir.path(), 2);
    signal(&children[1], Signal::KILL);
    drop(end(children.remove(1)));
    let (code, said) = end(children.remove(0));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("outcome: node 1 (") && said.contains("no launcher replaced it"), "{said}");
}

#[test]
fn a_launcher_that_is_stopped_counts_as_lost() {
    let (dir, port) = (TempDir::new().unwrap(), port());
    let one = |i| {
        let mut command = node(&format!("{BEGIN} exec sleep 1000"), i, 3, port, dir.path());
        command.env("TEST_INIT", "20").env("TEST_HOST", "6").spawn().unwrap()
    };
    let mut children: Vec<Child> = (0..3).map(one).collect();
    let pids = pids(dir.path(), 3);
    signal(&children[1], Signal::STOP);
    let stopped = children.remove(1);
    for (code, said) in ends(children) {
        assert_eq!(code, Some(1), "{said}");
        let named = said.contains("node 1 (") || said.contains("ranks [1] did not arrive");
        assert!(named && (said.contains("for 6 s") || said.contains("after 6s")), "{said}");
    }
    signal(&stopped, Signal::CONT);
    let (code, said) = end(stopped);
    assert_eq!(code, Some(1), "{said}");
    assert!(!pids.iter().any(|pid| runs(pid)));
}

#[test]
fn a_node_that_cannot_start_says_why_to_the_others() {
    let (dir, port) = (TempDir::new().unwrap(), port());
    let one = |i: usize| {
        let mut command = node(&format!("{BEGIN} exec sleep 1000"), i, 2, port, dir.path());
        if i == 1 {
            command.env("TEST_PROGRAM", "/nowhere/program");
        }
        command.env("TEST_INIT", "20").spawn().unwrap()
    };
    for (code, said) in ends((0..2).map(one).collect()) {
        assert!(code == Some(1) && said.contains("cannot start rank 1: /nowhere/program"), "{said}");
    }
}

#[test]
fn nodes_with_different_numbers_of_ranks_do_not_start() {
    let (dir, port) = (TempDir::new().unwrap(), port());
    let one = |i: usize| {
        let mut command = node("exit 0", i, 2, port, dir.path());
        command.env("TEST_NPROC", (i + 1).to_string()).env("TEST_INIT", "20").spawn().unwrap()
    };
    for (code, said) in ends((0..2).map(one).collect()) {
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("nproc is 1 on node 0 and 2 on node 1"), "{said}");
    }
}

#[test]
fn a_wrong_token_is_refused_at_once_and_missing_nodes_are_named() {
    let (dir, port) = (TempDir::new().unwrap(), port());
    let one = |i: usize, token: &str| {
        let mut command = node("exit 0", i, 2, port, dir.path());
        command.env("BRIGADE_TOKEN", token).env("TEST_INIT", "2").spawn().unwrap()
    };
    let started = Instant::now();
    let children = vec![one(0, "the-token-of-node-0"), one(1, "the-token-of-node-1")];
    let said: Vec<(Option<i32>, String)> = children.into_iter().rev().map(end).collect();
    assert!(said[0].0 == Some(1) && said[0].1.contains("token"), "{}", said[0].1);
    assert!(said[1].0 == Some(1) && said[1].1.contains("[1]"), "{}", said[1].1);
    assert!(started.elapsed() < Duration::from_secs(20));
}
