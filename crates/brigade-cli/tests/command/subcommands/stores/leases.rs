//! Two launchers and one bucket, which a server on the loopback device stands for.

use std::process::Command;
use std::time::{Duration, Instant};

use brigade_testing::{Fault, ObjectServer};
use rustix::process::Signal;

use crate::place::Place;
use crate::processes::send;

const ENDLESS: &str = "--steps 10000000 --set schedule.name=constant";

/// A run with its checkpoints in the bucket.
fn train(place: &Place, server: &ObjectServer, line: &str) -> Command {
    let bucket = "--nproc-per-node 1 --set checkpoint.every=4 --set checkpoint.dir=s3://bucket/run";
    let mut command = place.train(&format!("{bucket} --set checkpoint.lease_seconds=3 {line}"));
    command.envs(server.s3_environment());
    command
}

fn status(place: &Place, server: &ObjectServer) -> Command {
    let mut command = place.brigade("status s3://bucket/run");
    command.envs(server.s3_environment());
    command
}

/// Clocks that differ by hours make no difference.
#[test]
fn a_bucket_has_one_run_at_a_time_and_a_killed_one_is_followed_when_its_lease_is_over() {
    let (place, server) = (Place::new(), ObjectServer::start().unwrap());
    server.set_clock_ahead(-7000);
    let mut running = place.start(&mut train(&place, &server, &format!("{ENDLESS} --out a")));
    running.until("a checkpoint", |_| {
        server.names().iter().any(|name| name.ends_with("/manifest.json")).then_some(())
    });
    let done = place.run(&mut status(&place, &server));
    assert!(
        done.code == Some(0) && done.out.starts_with("s3://bucket/run: running"),
        "{}{}",
        done.out,
        done.err
    );
    let refused = place.run(&mut train(&place, &server, "--overwrite --out b"));
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    let who = format!("another run is using it: process {} on host ", running.pid());
    assert!(refused.err.contains(&who) && refused.err.contains(" since 2"), "{}", refused.err);
    assert_eq!(
        refused.err.lines().filter(|line| line.starts_with("brigade: ")).count(),
        1,
        "{}",
        refused.err
    );

    // Killed, it is silent: another folder waits, and says so.
    assert!(send(running.pid(), Signal::KILL));
    drop(running);
    let begin = Instant::now();
    let done = place.succeed(&mut train(&place, &server, "--overwrite --out b"));
    assert!(
        done.err.contains("waiting up to") && done.err.contains("checkpoint.lease_seconds"),
        "{}",
        done.err
    );
    assert!(begin.elapsed() > Duration::from_secs(1), "it did not wait");
    let done = place.run(&mut status(&place, &server));
    assert!(done.code == Some(0) && done.out.contains("finished"), "{}{}", done.out, done.err);
    assert!(done.out.contains("step 10 of 10, loss "), "{}", done.out);
}

#[test]
fn a_killed_run_that_is_resumed_in_its_folder_does_not_wait() {
    let (place, server) = (Place::new(), ObjectServer::start().unwrap());
    let mut running = place.start(&mut train(
        &place,
        &server,
        &format!("{ENDLESS} --set checkpoint.lease_seconds=600 --out a"),
    ));
    running.until("a checkpoint", |_| {
        server.names().iter().any(|name| name.ends_with("/manifest.json")).then_some(())
    });
    assert!(send(running.pid(), Signal::KILL));
    drop(running);
    let mut resume = place.brigade("train --resume a --steps 1");
    let done = place.run(resume.envs(server.s3_environment()));
    assert!(done.err.contains("train.steps (--steps) = 1 is not possible"), "{}", done.err);
    assert!(!done.err.contains("waiting"), "{}", done.err);
}

#[test]
fn a_run_that_was_silent_for_too_long_ends_when_another_has_taken_its_place() {
    let (place, server) = (Place::new(), ObjectServer::start().unwrap());
    let mut command = train(&place, &server, &format!("{ENDLESS} --set checkpoint.every=0 --out a"));
    command.args(["--max-restarts", "3", "--set", "output.notify=['sh', '-c', 'cat >told']"]);
    let mut running = place.start(&mut command);
    running.until("a step", |_| place.path("a/metrics.jsonl").exists().then_some(()));
    assert!(send(running.pid(), Signal::STOP));
    let mut other = place.start(&mut train(
        &place,
        &server,
        &format!("{ENDLESS} --set checkpoint.every=0 --overwrite --out b"),
    ));
    other.until("a step", |_| place.path("b/metrics.jsonl").exists().then_some(()));
    assert!(send(running.pid(), Signal::CONT));
    let done = running.wait();
    assert!(
        done.code == Some(1) && done.err.contains("was taken over by process"),
        "{:?} {}",
        done.code,
        done.err
    );
    assert!(!other.is_over());
    let told: serde_json::Value = serde_json::from_str(&place.text("told")).unwrap();
    assert_eq!((told["event"].as_str(), told["exit_code"].as_u64()), (Some("failed"), Some(1)));
    assert!(told["reason"].as_str().unwrap().contains("was taken over by process"), "{told}");
    let history = place.text("a/history.jsonl");
    let last = history.lines().last().unwrap();
    assert!(last.contains("failed") && last.contains("was taken over by process"), "{history}");
}

#[test]
fn a_store_that_is_faulty_for_a_while_does_not_end_a_run() {
    let (place, server) = (Place::new(), ObjectServer::start().unwrap());
    server.plan(|request| if request.number % 3 == 0 { Fault::Status(503) } else { Fault::None });
    place.succeed(&mut train(&place, &server, "--out a"));
    assert!(server.names().iter().any(|name| name.contains("step-00000010")), "{:?}", server.names());
}
