//! `cargo xtask network` makes hosts, and leaves nothing behind. Where namespaces are not allowed, these tests say so and pass.

#![allow(clippy::unwrap_used, reason = "all of this is tests")]

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// The command of a network, whose hosts run a script.
fn network(flags: &[&str], script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.arg("network").args(flags).args(["--", "sh", "-c", script]);
    command
}

/// What the hosts print, or none where this machine has no namespaces.
fn output(flags: &[&str], script: &str) -> Option<Output> {
    let done = network(flags, script).output().unwrap();
    let is_missing = String::from_utf8_lossy(&done.stderr).contains("cargo xtask network needs");
    if is_missing {
        println!("skipped: this machine allows no network namespaces");
    }
    (!is_missing).then_some(done)
}

#[test]
fn hosts_have_places_addresses_and_rates() {
    let script = "echo $PET_NODE_RANK of $PET_NNODES at $PET_MASTER_ADDR has $(ip -o -4 addr show net | grep -o '10[.0-9]*/24') \
                  and $(tc qdisc show dev net | grep -o 'tbf.*rate [^ ]*' | grep -o 'rate .*'); exit $((3 * PET_NODE_RANK))";
    let Some(done) = output(&["--hosts", "3", "--rate", "100mbit"], script) else { return };
    let said = String::from_utf8(done.stdout).unwrap();
    let mut lines: Vec<&str> = said.lines().collect();
    lines.sort_unstable();
    let line = |host: usize| format!("{host} of 3 at 10.77.0.1 has 10.77.0.{}/24 and rate 100Mbit", host + 1);
    assert_eq!(lines, [line(0), line(1), line(2)]);
    // The first failure's.
    assert_eq!(done.status.code(), Some(3));
}

/// What [`hosts_talk`] runs on each host: host 0 sends as many bytes as it is asked for, and host 1 says how long it waits for them.
#[test]
#[ignore = "it is a host of another test"]
fn plays_a_host() {
    let Ok(host) = std::env::var("PET_NODE_RANK") else { return };
    let place = "10.77.0.1:5000";
    if host == "0" {
        let server = TcpListener::bind(place).unwrap();
        for size in [1, 1, BYTES] {
            let (mut asked, mut byte) = (server.accept().unwrap().0, [0]);
            asked.read_exact(&mut byte).unwrap();
            asked.write_all(&vec![0; size]).unwrap();
        }
        return;
    }
    let start = Instant::now();
    let ask = || {
        let mut connection = TcpStream::connect(place)?;
        connection.write_all(&[1])?;
        connection.read_to_end(&mut Vec::new())
    };
    while ask().is_err() {
        assert!(start.elapsed() < Duration::from_secs(60), "host 0 does not answer");
        std::thread::sleep(Duration::from_millis(50));
    }
    for size in [1, BYTES] {
        let start = Instant::now();
        assert_eq!(ask().unwrap(), size);
        println!("\ntook {}", start.elapsed().as_secs_f64());
    }
}

const BYTES: usize = 20_000_000;

#[test]
fn hosts_talk() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("traffic.jsonl");
    let host =
        format!("{} --ignored --exact plays_a_host --nocapture", std::env::current_exe().unwrap().display());
    let flags = ["--rate", "1gbit", "--delay", "30ms", "--traffic", file.to_str().unwrap()];
    let Some(done) = output(&flags, &host) else { return };
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let said = String::from_utf8(done.stdout).unwrap();
    let seconds =
        said.lines().filter_map(|line| line.strip_prefix("took ")).map(|seconds| seconds.parse().unwrap());
    let seconds: Vec<f64> = seconds.collect();
    // There and back twice, to connect and to ask; 160 Mbit take 160 ms more.
    assert!(seconds[0] >= 0.12 && seconds[1] >= 0.28, "{seconds:?}");
    let lines = fs::read_to_string(&file).unwrap();
    let last: serde_json::Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    let [server, client] = [0, 1].map(|host| last["bytes"][host].as_u64().unwrap());
    assert!((BYTES as u64..22_000_000).contains(&server) && client < 2_000_000, "{last}");
}

#[test]
fn a_network_that_is_killed_leaves_nothing() {
    let mark = format!("mark-of-{}", std::process::id());
    let script = format!("sleep 1000; echo {mark}");
    if output(&[], "true").is_none() {
        return;
    }
    let running = || {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let lines = processes.filter_map(|process| fs::read_to_string(process.path().join("cmdline")).ok());
        lines.filter(|line| line.contains(&mark) && line.starts_with("sh\0")).count()
    };
    let mut child = network(&[], &script).spawn().unwrap();
    let until = |count: usize| {
        let start = Instant::now();
        while running() != count {
            assert!(start.elapsed() < Duration::from_secs(60), "{} run, not {count}", running());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    until(2);
    child.kill().unwrap();
    child.wait().unwrap();
    until(0);
}
