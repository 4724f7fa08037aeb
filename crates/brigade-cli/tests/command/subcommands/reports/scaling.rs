//! `brigade scaling`

use brigade_runs::Run;
use brigade_runs::scaling::{Cause, diagnose};

use crate::place::Place;

#[test]
fn runs_on_more_ranks_are_compared() {
    let place = Place::new();
    for ranks in [1, 2] {
        place.succeed(&mut place.train(&format!("--nproc-per-node {ranks} --out {ranks}")));
    }
    let text = place.succeed(&mut place.brigade("scaling 2 1")).out;
    for said in ["strong scaling", "speed-up  efficiency", "1.00      100.0%", "Amdahl's law: "] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let json = place.succeed(&mut place.brigade("scaling 2 1 --json")).out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let ranks = |at: usize| json["runs"][at]["ranks"].as_u64();
    assert_eq!((json["kind"].as_str(), ranks(0), ranks(1)), (Some("strong"), Some(1), Some(2)), "{json}");
    assert!(json["findings"].is_array() && json["explained"] == "2", "{json}");
    // A damaged line is left out, which each command says once.
    let metrics = place.path("2/metrics.jsonl");
    let whole = std::fs::read_to_string(&metrics).unwrap();
    std::fs::write(&metrics, whole.replacen("\"loss\":", "\"loss\"", 1)).unwrap();
    for line in ["scaling 1 2", "report 2", "report 2 --json", "runs ."] {
        let err = place.succeed(&mut place.brigade(line)).err;
        assert_eq!(
            err.matches("2: 1 line of metrics.jsonl cannot be read and is left out").count(),
            1,
            "{line}: {err}"
        );
    }
    for (line, said) in [
        ("scaling 1", "all that were given ran on 1"),
        ("scaling 1 text", "text has no metrics.jsonl"),
        ("scaling 1 nowhere", "nowhere is not a folder"),
    ] {
        let done = place.run(&mut place.brigade(line));
        assert_eq!((done.code, done.err.lines().count()), (Some(2), 1), "{}", done.err);
        assert!(done.err.contains(said), "{line}: {}", done.err);
    }
}

#[test]
fn sizes_are_measured_and_compared() {
    let place = Place::new();
    let train = "-- train --config tiny.toml --data text";
    let text =
        place.succeed(&mut place.brigade(&format!("scaling --measure 2,1 --out measured {train}"))).out;
    for said in ["strong scaling", "speed-up  efficiency", "1.00      100.0%"] {
        assert!(text.starts_with("strong scaling") && text.contains(said), "{said}: {text}");
    }
    assert_eq!([1, 2].map(|ranks| place.metrics(&format!("measured/{ranks}")).len()), [10, 10]);
    let line = format!("scaling --measure 1,2 --weak --out weak --json {train} --global-batch-size 4");
    let json: serde_json::Value =
        serde_json::from_str(&place.succeed(&mut place.brigade(&line)).out).unwrap();
    assert_eq!(
        (json["kind"].as_str(), json["law"]["name"].as_str()),
        (Some("weak"), Some("gustafson")),
        "{json}"
    );
    let tokens = [1, 2].map(|ranks| place.metrics(&format!("weak/{ranks}"))[0]["tokens"].as_u64().unwrap());
    assert_eq!(tokens[1], 2 * tokens[0]);
    for (line, said) in [
        (
            format!("scaling --measure 1,2 --out measured {train}"),
            "measured/1 holds an earlier run; give another folder",
        ),
        (
            format!("scaling --measure 2,2 {train}"),
            "--measure 2,2 is not possible: a comparison needs at least two numbers of ranks",
        ),
        (format!("scaling --measure 1 {train}"), "--measure 1 is not possible: "),
        (format!("scaling --measure 1,2 {train} --out b"), "--out cannot be given with --measure"),
        (format!("scaling --measure 1,2 {train} --dry-run"), "--dry-run cannot be given with --measure"),
        ("scaling --measure 1,2 -- evaluate".into(), "--measure runs `train`"),
    ] {
        let done = place.run(&mut place.brigade(&line));
        assert_eq!((done.code, done.err.lines().count()), (Some(2), 1), "{}", done.err);
        assert!(done.err.contains(said), "{line}: {}", done.err);
    }
    let line = format!("scaling --measure 1,2 --out b {train} --data nowhere");
    let done = place.run(&mut place.brigade(&line));
    assert!(done.code == Some(1) && done.err.contains("the run on 1 rank failed"), "{}", done.err);
}

#[test]
fn sizes_that_training_refuses_are_found_before_the_first_run() {
    let place = Place::new();
    let train = "-- train --config tiny.toml --data text";
    for (line, ranks, said) in [
        (
            format!("--measure 1,3 {train} --global-batch-size 8"),
            "3 ranks",
            "--global-batch-size) = 8 is not possible",
        ),
        (
            format!("--measure 2,3 --weak {train} --global-batch-size 5"),
            "2 ranks",
            "--global-batch-size) = 5 is not possible",
        ),
        (
            format!("--measure 1,2 {train} --set train.steps=0"),
            "1 rank",
            "train.steps (--steps) = 0 is not possible",
        ),
    ] {
        let done = place.run(&mut place.brigade(&format!("scaling --out refused {line}")));
        assert_eq!((done.code, done.err.lines().count()), (Some(2), 2), "{line}: {}", done.err);
        let refused = format!("the run on {ranks} is not possible; nothing was trained");
        assert!(done.err.contains(said) && done.err.contains(&refused), "{line}: {}", done.err);
        assert!(!place.path("refused").exists(), "{line}");
    }
}

/// Runs that were slowed on purpose: what is found first.
#[test]
fn what_slows_real_runs_is_found_first() {
    let place = Place::new();
    let larger = "--set model.layers=6 --set model.width=64 --set train.validate_every=0 --steps 25";
    let stages = "--nproc-per-node 2 --pp 2 --set pipeline.stages=[1,7] --checkpoint-every 0";
    let saves = "--nproc-per-node 1 --checkpoint-every 1 --set checkpoint.asynchronous=false --set train.validate_every=0";
    for (name, line, cause, at) in [
        ("stages", format!("{larger} {stages}"), Cause::StageImbalance, Some(1)),
        ("saves", saves.to_owned(), Cause::Checkpoints, None),
    ] {
        place.succeed(&mut place.train(&format!("{line} --out {name}")));
        let found = diagnose(&Run::read(&place.path(name)).unwrap());
        assert_eq!(
            found.first().map(|first| (first.cause, first.place)),
            Some((cause, at)),
            "{name}: {found:?}"
        );
    }
}
