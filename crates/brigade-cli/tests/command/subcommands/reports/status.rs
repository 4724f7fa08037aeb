//! What a run says of itself to others: `brigade status`, Prometheus, and a command at its end.

use std::io::{Read, Write};
use std::net::TcpStream;

use rustix::process::Signal;

use crate::place::Place;
use crate::processes::{port, send};

#[test]
fn a_run_is_seen_while_it_goes_on_and_tells_how_it_ended() {
    let place = Place::new();
    let port = port();
    let line = format!("--out a --nproc-per-node 2 --steps 100000 --metrics-addr {port}");
    let mut command = place.train(&line);
    command.args(["--set", "output.notify=['sh', '-c', 'cat >told; exit 3']"]);
    let mut running = place.start(&mut command);
    let metrics = running.until("it has taken steps", |_| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.contains("\nbrigade_step ").then_some(answer)
    });
    assert!(metrics.contains("\nbrigade_total_steps 100000\n"), "{metrics}");
    let status = || place.run(&mut place.brigade("status a"));
    let done = status();
    assert!(done.code == Some(0) && done.out.starts_with("a: running\nstep "), "{}{}", done.out, done.err);
    assert!(done.out.contains(" of 100000, loss ") && done.out.contains("to go"), "{}", done.out);
    assert!(send(running.pid(), Signal::TERM));
    let ended = running.wait();
    assert_eq!(ended.code, Some(75), "{}", ended.err);
    assert!(ended.err.contains("warning: output.notify (sh): it ended with exit status: 3"), "{}", ended.err);
    let told: serde_json::Value = serde_json::from_str(&place.text("told")).unwrap();
    assert_eq!((told["event"].as_str(), told["exit_code"].as_u64()), (Some("preempted"), Some(75)));
    assert!(told["run"].as_str().unwrap().ends_with("a"), "{told}");
    let done = status();
    assert!(done.code == Some(75) && done.out.starts_with("a: preempted\n"), "{}{}", done.out, done.err);
    let done = place.run(&mut place.brigade("status a --json"));
    let json: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((json["state"].as_str(), json["ranks"].as_u64()), (Some("preempted"), Some(2)));
    assert_eq!(place.run(&mut place.brigade("status none")).code, Some(2));
    let wrong = place.run(&mut place.train("--out b --metrics-addr everywhere"));
    let said = "output.metrics_addr (--metrics-addr) = everywhere is not possible: it must be a port";
    assert!(wrong.code == Some(2) && wrong.err.contains(said), "{}", wrong.err);
}

#[test]
fn nodes_that_do_not_come_are_a_failure_that_is_told() {
    let place = Place::new();
    let line = format!(
        "--out a --nproc-per-node 1 --nnodes 2 --node-rank 0 --rdzv-endpoint 127.0.0.1:{} --rdzv-timeout 2",
        port()
    );
    let mut command = place.train(&line);
    command.args(["--set", "output.notify=['sh', '-c', 'cat >told']"]);
    let ended = place.run(command.env("BRIGADE_TOKEN", "a-secret-of-all-nodes"));
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    assert!(
        ended.err.contains("node 0 cannot join the launchers") && ended.err.contains("within 2s"),
        "{}",
        ended.err
    );
    let told: serde_json::Value = serde_json::from_str(&place.text("told")).unwrap();
    assert_eq!((told["event"].as_str(), told["exit_code"].as_u64()), (Some("failed"), Some(1)));
    assert!(told["reason"].as_str().unwrap().contains("did not connect"), "{told}");
}

#[test]
fn a_killed_run_is_seen_at_once() {
    let place = Place::new();
    let mut running = place.start(&mut place.train("--out a --nproc-per-node 1 --steps 100000"));
    running.until("a step", |_| {
        place.path("a/metrics.jsonl").metadata().is_ok_and(|file| file.len() > 0).then_some(())
    });
    let status = || place.run(&mut place.brigade("status a"));
    assert!(status().out.starts_with("a: running\n"));
    assert!(send(running.pid(), Signal::KILL));
    // Its ranks end a moment later, and are the last to hold the lock.
    let done =
        running.until("it is seen", |_| Some(status()).filter(|done| done.out.starts_with("a: killed\n")));
    assert_eq!(done.code, Some(1), "{}", done.err);
    // What was written by a host that this one knows nothing of counts as a sign of life, but not for long.
    std::fs::write(place.path("a/.brigade.lock"), "another start of another system").unwrap();
    assert!(status().out.starts_with("a: running\n"));
    let metrics = std::fs::File::options().append(true).open(place.path("a/metrics.jsonl")).unwrap();
    metrics.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(90)).unwrap();
    assert!(status().out.starts_with("a: killed\n"));
}
