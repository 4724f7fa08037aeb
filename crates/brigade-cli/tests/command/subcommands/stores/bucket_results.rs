//! Results in a bucket: here the client's own store of local files. Each machine has a cache of its own.

use std::process::Command;

use rustix::process::Signal;

use crate::place::Place;
use crate::processes::{port, send};
use crate::runs::same_end;

const CONSTANT: &str = "--set schedule.name=constant --set train.validate_every=2";

/// A command on a machine of this name.
fn on(place: &Place, machine: &str, mut command: Command) -> Command {
    command.env("BRIGADE_CACHE_DIR", place.path(machine));
    command
}

/// The URL of `bucket/<name>` in the place's folder.
fn url(place: &Place, name: &str) -> String {
    format!("file://{}", place.path(&format!("bucket/{name}")).display())
}

#[test]
fn a_run_goes_on_on_another_machine_with_its_results() {
    let place = Place::new();
    let url = url(&place, "a");
    place.succeed(&mut place.train(&format!("{CONSTANT} --nproc-per-node 1 --out whole")));
    let train = |line: &str| place.train(&format!("{CONSTANT} --checkpoint-every 2 --out {url} {line}"));
    let begun = place.succeed(&mut on(&place, "one", train("--nproc-per-node 2 --pp 2 --steps 6")));
    assert!(begun.err.contains(&format!("are copied to {url}")), "{}", begun.err);
    for name in ["config.toml", "config.json", "history.jsonl", "model.safetensors", "logs/rank-0.log"] {
        assert!(place.path(&format!("bucket/a/{name}")).is_file(), "{name}");
    }
    assert!(!place.path("bucket/a/.brigade.lock").exists() && !place.path("file:").exists());
    assert!(place.path("bucket/a/checkpoints").is_dir());

    let line = format!("train --resume {url} --steps 10 --nproc-per-node 2 --dp 2 --pp 1 --zero 3");
    let resumed = place.succeed(&mut on(&place, "two", place.brigade(&line)));
    assert!(resumed.err.contains("resuming from the checkpoint of step 6"), "{}", resumed.err);
    same_end(&place, "bucket/a", "whole");

    // What looks at runs takes the URL.
    let status = place.succeed(&mut on(&place, "three", place.brigade(&format!("status {url}"))));
    assert!(status.out.contains("finished") && status.out.contains("step 10"), "{}", status.out);
    let status = place.succeed(&mut on(&place, "three", place.brigade(&format!("status {url} --json"))));
    let status: serde_json::Value = serde_json::from_str(&status.out).unwrap();
    assert_eq!((status["ranks"].as_u64(), status["unit"].as_str()), (Some(2), Some("tokens")), "{status}");
    assert!(status["mesh"].as_array().unwrap().contains(&serde_json::json!(["dp", 2])), "{status}");
    let listed = place.succeed(&mut place.brigade(&format!("checkpoint list {url}")));
    assert!(listed.out.starts_with("step 10 "), "{}", listed.out);
    let report = place.succeed(&mut place.brigade(&format!("report {url}")));
    assert_eq!(report.out, "a-report.html\n");
    assert!(place.text("a-report.html").contains("<!doctype html>"));

    // A new run does not replace what is there, unless it is told to.
    let refused = place.run(&mut on(&place, "three", train("--nproc-per-node 1 --steps 4")));
    let said = format!("--out {url} holds results of an earlier run (model.safetensors)");
    assert!(refused.code == Some(2) && refused.err.contains(&said), "{}", refused.err);
    place.succeed(&mut on(&place, "three", train("--nproc-per-node 1 --steps 4 --overwrite")));
    assert_eq!(place.metrics("bucket/a").len(), 4);
    // Nor does one that finds no checkpoint.
    std::fs::remove_dir_all(place.path("bucket/a/checkpoints")).unwrap();
    let refused = place.run(&mut on(&place, "four", train("--nproc-per-node 1 --resume auto")));
    let said = format!("--out {url} holds a finished run (model.safetensors) and no checkpoint");
    assert!(refused.code == Some(2) && refused.err.contains(&said), "{}", refused.err);
}

#[test]
fn checkpoints_may_be_at_the_same_url() {
    let place = Place::new();
    let url = url(&place, "a");
    let line = format!("--nproc-per-node 1 --out {url} --set checkpoint.lease_seconds=1");
    // Long enough for leases to be renewed.
    let done = place.run(&mut place.train(&format!("{line} --set checkpoint.dir={url} --steps 1500")));
    assert_eq!(done.code, Some(0), "{}", done.err);
    // Elsewhere, the URL of the results is still one run's.
    let other = self::url(&place, "c");
    let mut running = place.start(&mut on(
        &place,
        "one",
        place.train(&format!("{line} --overwrite --set checkpoint.dir={other} --steps 10000000")),
    ));
    running.until("metrics in the bucket", |_| {
        let status = place.run(&mut place.brigade(&format!("status {url}")));
        let is_new = !place.path("bucket/a/model.safetensors").exists();
        (status.out.contains("running") && is_new).then_some(())
    });
    place.succeed(&mut place.brigade(&format!("report {url}")));
    let page = place.text("a-report.html");
    assert!(page.contains("class=\"state running\""), "not as a run that goes on");
    let refused = place.run(&mut on(&place, "two", place.train(&format!("{line} --overwrite"))));
    assert!(refused.code == Some(2) && refused.err.contains("another run is using it"), "{}", refused.err);
}

#[test]
fn another_runs_weights_are_not_taken_for_this_ones() {
    let place = Place::new();
    let url = url(&place, "a");
    let train = |line: &str| {
        place.train(&format!("{CONSTANT} --nproc-per-node 1 --checkpoint-every 2 --out {url} {line}"))
    };
    let weights = || std::fs::read(place.path("bucket/a/model.safetensors")).ok();
    place.succeed(&mut on(&place, "one", train("--steps 4")));
    let first = weights().unwrap();
    // Another machine replaces the run, and is stopped before its end.
    let mut running = place.start(&mut on(&place, "two", train("--steps 10000000 --overwrite --seed 5")));
    running.until("a checkpoint of the new run", |_| {
        (weights().is_none() && place.path("bucket/a/metrics.jsonl").exists()).then_some(())
    });
    assert!(send(running.pid(), Signal::TERM));
    assert_eq!(running.wait().code, Some(75));
    assert_eq!(weights(), None);
    // The first machine continues it, in whose cache the first run's weights still are.
    let mut running = place.start(&mut on(
        &place,
        "one",
        train("--steps 10000000 --seed 5 --resume auto --set output.copy_every_seconds=1"),
    ));
    let copied = place.path("bucket/a/metrics.jsonl");
    let before = std::fs::metadata(&copied).unwrap().modified().unwrap();
    running.until("copies", |_| (std::fs::metadata(&copied).ok()?.modified().ok()? > before).then_some(()));
    assert!(send(running.pid(), Signal::TERM));
    assert_eq!(running.wait().code, Some(75));
    assert_eq!(weights(), None, "the weights of the run before");
    // Weights in other files replace them.
    let steps = place.metrics("bucket/a").last().unwrap()["step"].as_u64().unwrap() + 20;
    let line = format!("--steps {steps} --seed 5 --resume auto");
    place.succeed(&mut on(&place, "two", train(&line)));
    assert!(weights().is_some_and(|weights| weights != first));
    let line = format!("--steps {} --seed 5 --resume auto --set output.max_shard_size=20KB", steps + 20);
    place.succeed(&mut on(&place, "three", train(&line)));
    assert!(weights().is_none() && place.path("bucket/a/model.safetensors.index.json").exists());
}

#[test]
fn a_killed_machine_is_replaced_by_another() {
    let place = Place::new();
    let url = url(&place, "a");
    let line = format!(
        "{CONSTANT} --nproc-per-node 1 --checkpoint-every 2 --out {url} --resume auto --set checkpoint.lease_seconds=2 \
         --set output.copy_every_seconds=1"
    );
    let mut running = place.start(&mut on(&place, "one", place.train(&format!("{line} --steps 10000000"))));
    running.until("copied metrics", |_| {
        place.path("bucket/a/metrics.jsonl").metadata().is_ok_and(|file| file.len() > 0).then_some(())
    });
    assert!(send(running.pid(), Signal::KILL));
    drop(running);
    let there = place.metrics("bucket/a").len();
    let steps = there as u64 + 1000;
    let resumed = place.succeed(&mut on(&place, "two", place.train(&format!("{line} --steps {steps}"))));
    assert!(resumed.err.contains("resuming from the checkpoint of step "), "{}", resumed.err);
    let metrics = place.metrics("bucket/a");
    let at: Vec<_> = metrics.iter().map(|record| record["step"].as_u64().unwrap()).collect();
    assert_eq!((at.first(), at.last()), (Some(&1), Some(&steps)), "what was copied stays");
    assert!(at.is_sorted_by(|a, b| a < b));
}

#[test]
fn each_node_copies_the_logs_of_its_ranks() {
    let place = Place::new();
    let (url, port) = (url(&place, "a"), port());
    let node = |number: usize| {
        let line = format!(
            "--nproc-per-node 1 --nnodes 2 --node-rank {number} --rdzv-endpoint 127.0.0.1:{port} --dp 2 --steps 4 \
             --out {url}"
        );
        let mut command = on(&place, &format!("machine-{number}"), place.train(&line));
        command.env("BRIGADE_TOKEN", "a-secret-of-all-nodes");
        command
    };
    let other = place.start(&mut node(1));
    place.succeed(&mut node(0));
    let other = other.wait();
    assert_eq!(other.code, Some(0), "{}", other.err);
    for name in ["logs/rank-0.log", "logs/rank-1.log", "metrics.jsonl", "model.safetensors"] {
        assert!(place.path(&format!("bucket/a/{name}")).is_file(), "{name}");
    }
    assert!(
        !place
            .path(&format!("machine-1/runs/file{}/metrics.jsonl", place.path("bucket/a").display()))
            .exists()
    );
}

#[test]
fn a_rank_of_another_launcher_copies_its_results() {
    let place = Place::new();
    let url = url(&place, "a");
    let mut command = place.train(&format!("--steps 4 --out {url}"));
    let port = port().to_string();
    command.envs([("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")]);
    command.envs([
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", &port),
        ("BRIGADE_TOKEN", "a-secret-of-all-nodes"),
    ]);
    place.succeed(&mut command);
    for name in ["metrics.jsonl", "model.safetensors", "config.toml"] {
        assert!(place.path(&format!("bucket/a/{name}")).is_file(), "{name}");
    }
}

#[test]
fn without_a_place_for_files_a_url_is_one_message() {
    let place = Place::new();
    let mut command = place.train(&format!("--nproc-per-node 1 --out {}", url(&place, "a")));
    command.env_remove("BRIGADE_CACHE_DIR").env_remove("HOME").args(["--set", "data.cache_dir=cache"]);
    let done = place.run(&mut command);
    assert!(
        done.code == Some(2) && done.err.contains("set BRIGADE_CACHE_DIR, XDG_CACHE_HOME or HOME"),
        "{}",
        done.err
    );
}
