//! Runs whose text and checkpoints are in servers of others. `cargo xtask test-stores` runs these.

use std::process::Command;

use brigade_testing::{ABSENT, BUCKET, FORBIDDEN, Fault, Protocol, READ_ONLY, StoreServer};
use rustix::process::Signal;

use crate::place::{Done, Place};
use crate::processes::send;
use crate::runs::{files, same_end};

/// The place, and a server with its text.
fn place(protocol: Protocol) -> (Place, StoreServer) {
    let place = Place::new();
    let text = files(&place.path("text"));
    let names: Vec<_> = text.keys().map(|name| format!("text/{name}")).collect();
    let objects: Vec<_> = names
        .iter()
        .zip(text.values())
        .flat_map(|(name, content)| {
            [BUCKET, READ_ONLY, FORBIDDEN].map(|bucket| (bucket, name.as_str(), content.as_slice()))
        })
        .collect();
    let server = StoreServer::start(protocol, &objects);
    (place, server)
}

fn brigade(place: &Place, server: &StoreServer, line: &str) -> Command {
    let mut command = place.brigade(line);
    command.envs(server.environment());
    command
}

/// On the text of a bucket.
fn train(place: &Place, server: &StoreServer, line: &str) -> Command {
    let data = server.url(BUCKET, "text");
    brigade(place, server, &format!("train --config tiny.toml --data {data} {line}"))
}

/// What a run wrote and said, and all that is in the bucket, is without secrets.
fn no_secret(place: &Place, server: &StoreServer, done: &[&Done]) {
    let is_in = |text: &[u8]| {
        server.secrets().iter().any(|secret| text.windows(secret.len()).any(|part| part == secret.as_bytes()))
    };
    for done in done {
        assert!(!is_in(done.out.as_bytes()) && !is_in(done.err.as_bytes()), "{}{}", done.out, done.err);
    }
    for (name, content) in files(&place.path("")) {
        assert!(!is_in(&content), "{name}");
    }
    for (name, content) in server.objects(BUCKET) {
        assert!(!is_in(&content), "{name}");
    }
}

/// On streamed text, with checkpoints in the bucket, resumed on another mesh, while requests meet faults of all kinds.
fn trained_and_resumed(protocol: Protocol) {
    let (place, server) = place(protocol);
    let constant = "--set schedule.name=constant --set train.validate_every=2";
    place.succeed(&mut place.train(&format!("{constant} --nproc-per-node 1 --out whole")));
    const FAULTS: [Fault; 5] =
        [Fault::Status(503), Fault::Cut(100), Fault::LostRequest, Fault::LostAnswer, Fault::Slow(20)];
    server.proxy().plan(|request| match request.number % 4 {
        3 => FAULTS[request.number / 4 % FAULTS.len()],
        _ => Fault::None,
    });
    let url = server.url(BUCKET, "run");
    let line = format!("{constant} --checkpoint-every 2 --keep 2 --set checkpoint.dir={url} --out a");
    let begun =
        place.succeed(&mut train(&place, &server, &format!("{line} --nproc-per-node 2 --pp 2 --steps 6")));
    assert!(begun.err.contains(": 24 files"), "{}", begun.err);
    let listed = place.succeed(&mut brigade(&place, &server, &format!("checkpoint list {url}")));
    assert!(listed.out.starts_with("step 6 ") && listed.out.contains("step 4 "), "{}", listed.out);
    assert!(!listed.out.contains("step 2 "), "{}", listed.out);
    let verified = place.succeed(&mut brigade(&place, &server, &format!("checkpoint verify {url}")));
    let line = "train --resume a --steps 10 --nproc-per-node 2 --dp 2 --pp 1 --zero 3";
    let resumed = place.succeed(&mut brigade(&place, &server, line));
    assert!(resumed.err.contains("resuming from the checkpoint of step 6"), "{}", resumed.err);
    same_end(&place, "a", "whole");
    let status = place.run(&mut brigade(&place, &server, &format!("status {url}")));
    assert!(status.out.contains("finished"), "{}{}", status.out, status.err);

    // A new run does not replace what is there, unless it is told to.
    let line = format!("--nproc-per-node 1 --set checkpoint.dir={url} --out b");
    let refused = place.run(&mut train(&place, &server, &line));
    assert!(refused.err.contains("holds checkpoints of an earlier run"), "{}", refused.err);
    let replaced = place.succeed(&mut train(&place, &server, &format!("{line} --overwrite")));
    server.proxy().plan(|_| Fault::None);
    let names: Vec<_> = server.objects(BUCKET).into_iter().map(|(name, _)| name).collect();
    let manifests = names.iter().filter(|name| name.ends_with("/manifest.json")).count();
    assert_eq!(manifests, 1, "only the last checkpoint of the new run: {names:?}");
    no_secret(&place, &server, &[&begun, &listed, &verified, &resumed, &status, &refused, &replaced]);
}

#[test]
#[ignore = "needs the servers of `cargo xtask test-stores`"]
fn a_run_in_a_real_s3_has_the_weights_of_one_on_files() {
    trained_and_resumed(Protocol::S3);
}

#[test]
#[ignore = "needs the servers of `cargo xtask test-stores`"]
fn a_run_in_a_real_gcs_has_the_weights_of_one_on_files() {
    trained_and_resumed(Protocol::Gcs);
}

/// With its results in the bucket, continued on another machine, while requests meet faults of all kinds.
fn results_in_the_bucket(protocol: Protocol) {
    let (place, server) = place(protocol);
    let constant = "--set schedule.name=constant --set train.validate_every=2";
    place.succeed(&mut place.train(&format!("{constant} --nproc-per-node 1 --out whole")));
    const FAULTS: [Fault; 4] = [Fault::Status(503), Fault::LostRequest, Fault::LostAnswer, Fault::Slow(20)];
    server.proxy().plan(|request| match request.number % 4 {
        3 => FAULTS[request.number / 4 % FAULTS.len()],
        _ => Fault::None,
    });
    let url = server.url(BUCKET, "runs/a");
    let on = |machine: &str, mut command: Command| {
        command.env("BRIGADE_CACHE_DIR", place.path(machine));
        command
    };
    let line = format!("{constant} --checkpoint-every 2 --keep 2 --out {url}");
    let first = train(&place, &server, &format!("{line} --nproc-per-node 2 --pp 2 --steps 6"));
    let begun = place.succeed(&mut on("one", first));
    let line = format!("train --resume {url} --steps 10 --nproc-per-node 2 --dp 2 --pp 1 --zero 3");
    let resumed = place.succeed(&mut on("two", brigade(&place, &server, &line)));
    assert!(resumed.err.contains("resuming from the checkpoint of step 6"), "{}", resumed.err);
    let status = place.succeed(&mut brigade(&place, &server, &format!("status {url}")));
    assert!(status.out.contains("finished"), "{}", status.out);
    let report = place.succeed(&mut brigade(&place, &server, &format!("report {url}")));
    server.proxy().plan(|_| Fault::None);
    let objects = server.objects(BUCKET);
    std::fs::create_dir(place.path("copy")).unwrap();
    for name in ["model.safetensors", "metrics.jsonl"] {
        let there = objects.iter().find(|(key, _)| key.ends_with(&format!("runs/a/{name}")));
        std::fs::write(place.path(&format!("copy/{name}")), &there.unwrap().1).unwrap();
    }
    same_end(&place, "copy", "whole");
    no_secret(&place, &server, &[&begun, &resumed, &status, &report]);
}

#[test]
#[ignore = "needs the servers of `cargo xtask test-stores`"]
fn results_in_a_real_s3_go_on_on_another_machine() {
    results_in_the_bucket(Protocol::S3);
}

#[test]
#[ignore = "needs the servers of `cargo xtask test-stores`"]
fn results_in_a_real_gcs_go_on_on_another_machine() {
    results_in_the_bucket(Protocol::Gcs);
}

#[test]
#[ignore = "needs the servers of `cargo xtask test-stores`"]
fn results_that_a_real_bucket_does_not_take_are_named_at_the_end() {
    let (place, server) = place(Protocol::S3);
    server.proxy().plan(|request| match request.name.ends_with("model.safetensors") {
        true => Fault::Status(403),
        false => Fault::None,
    });
    let url = server.url(BUCKET, "runs/a");
    let done = place.run(&mut train(&place, &server, &format!("--nproc-per-node 1 --out {url}")));
    assert_eq!(done.code, Some(1), "{}", done.err);
    let folder = place.path("cache/runs").display().to_string();
    let said = format!("could be copied to {url}: ");
    assert!(done.err.contains(&said) && done.err.contains(&folder), "{}", done.err);
    assert!(done.err.contains("model.safetensors"), "{}", done.err);
    // The rest is there.
    let objects = server.objects(BUCKET);
    let is_there = |name: &str| objects.iter().any(|(key, _)| key.ends_with(&format!("runs/a/{name}")));
    assert!(is_there("metrics.jsonl") && is_there("config.toml") && !is_there("model.safetensors"));
}

#[test]
#[ignore = "needs the servers of `cargo xtask test-stores`"]
fn a_real_bucket_has_one_run_at_a_time() {
    for protocol in Protocol::ALL {
        let (place, server) = place(protocol);
        let url = server.url(BUCKET, "run");
        let line = format!(
            "--nproc-per-node 1 --set checkpoint.every=4 --set checkpoint.dir={url} --set checkpoint.lease_seconds=4"
        );
        let endless = format!("{line} --steps 10000000 --set schedule.name=constant --out a");
        let mut running = place.start(&mut train(&place, &server, &endless));
        running.until("a checkpoint", |_| {
            let listed = place.run(&mut brigade(&place, &server, &format!("checkpoint list {url}")));
            listed.out.contains("step ").then_some(())
        });
        let refused = place.run(&mut train(&place, &server, &format!("{line} --overwrite --out b")));
        assert_eq!(refused.code, Some(2), "{}", refused.err);
        let who = format!("another run is using it: process {} on host ", running.pid());
        assert!(refused.err.contains(&who), "{}", refused.err);
        assert!(send(running.pid(), Signal::KILL));
        drop(running);
        // Of two that wait for the lease of the dead one, one gets it.
        let [mut one, mut other] = ["b", "c"].map(|out| {
            let line = endless.replace("--out a", &format!("--overwrite --out {out}"));
            place.start(&mut train(&place, &server, &line))
        });
        let is_one = one.until("one of them ends", |one| {
            if one.is_over() { Some(true) } else { other.is_over().then_some(false) }
        });
        let (lost, mut won, out) = if is_one { (one, other, "c") } else { (other, one, "b") };
        let lost = lost.wait();
        assert_eq!(lost.code, Some(2), "{}", lost.err);
        assert!(lost.err.contains("another run is using it"), "{}", lost.err);
        won.until("it trains", |_| place.path(&format!("{out}/metrics.jsonl")).exists().then_some(()));
        assert!(!won.is_over());
        drop(won);
        no_secret(&place, &server, &[&refused, &lost]);
    }
}

#[test]
#[ignore = "needs the servers of `cargo xtask test-stores`"]
fn a_real_bucket_without_the_right_is_one_message_before_a_run_begins() {
    let (place, server) = place(Protocol::S3);
    let forbidden = "the credentials in the environment are wrong, or do not allow this";
    let absent = "the bucket does not exist";
    let mut all = Vec::new();
    for (data, checkpoints, said) in [
        (Some(FORBIDDEN), None, forbidden),
        (Some(ABSENT), None, absent),
        (None, Some(FORBIDDEN), forbidden),
        (None, Some(READ_ONLY), forbidden),
        (None, Some(ABSENT), absent),
    ] {
        let named = server.url(data.or(checkpoints).unwrap_or_default(), "");
        let data = server.url(data.unwrap_or(READ_ONLY), "text");
        let checkpoints = server.url(checkpoints.unwrap_or(BUCKET), "run");
        let line = format!(
            "train --config tiny.toml --nproc-per-node 2 --data {data} --set checkpoint.dir={checkpoints} --out r"
        );
        let done = place.run(&mut brigade(&place, &server, &line));
        assert_eq!(done.code, Some(2), "{line}: {}", done.err);
        let messages = done.err.lines().filter(|line| line.starts_with("brigade: ")).count();
        assert!(
            messages == 1 && done.err.contains(said) && done.err.contains(&named),
            "{line}: {}",
            done.err
        );
        assert!(!done.err.contains('<'), "{line}: {}", done.err);
        assert!(!place.path("r/metrics.jsonl").exists(), "{line}: a run has begun");
        all.push(done);
    }
    no_secret(&place, &server, &all.iter().collect::<Vec<_>>());
}

#[test]
#[ignore = "needs the servers of `cargo xtask test-stores`"]
fn a_job_is_not_submitted_for_a_real_bucket_that_does_not_exist_and_warned_of_one_without_the_right() {
    let (place, server) = place(Protocol::S3);
    let submit = |flags: &str, data: &str, checkpoints: &str| {
        let (data, checkpoints) = (server.url(data, "text/*.rs"), server.url(checkpoints, "run"));
        let line = format!(
            "submit --to slurm --nodes 2 --gpus 0 {flags} -- train --config tiny.toml --data {data} --out r \
             --set checkpoint.dir={checkpoints} --nproc-per-node 1"
        );
        place.run(&mut brigade(&place, &server, &line))
    };
    for flags in ["--dry-run", "--render job"] {
        for (data, checkpoints) in [(ABSENT, BUCKET), (READ_ONLY, ABSENT)] {
            let done = submit(flags, data, checkpoints);
            assert_eq!(done.code, Some(2), "{}{}", done.out, done.err);
            let said = format!("s3://{ABSENT}/");
            assert!(
                done.err.contains(&said) && done.err.contains("the bucket does not exist"),
                "{}",
                done.err
            );
            assert!(done.err.lines().count() == 1 && done.out.is_empty(), "{}{}", done.out, done.err);
        }
    }
    assert!(!place.path("job").exists());
    let done = submit("--dry-run", READ_ONLY, FORBIDDEN);
    let said = format!("missing: the right to s3://{FORBIDDEN}/run, for this machine at least: 403");
    assert!(done.code == Some(1) && done.out.contains(&said), "{}{}", done.out, done.err);
    // The nodes may have it.
    let warned = submit("--render job", READ_ONLY, FORBIDDEN);
    assert!(warned.code == Some(0) && warned.err.contains(&said), "{}{}", warned.out, warned.err);
    let well = submit("--render job", READ_ONLY, BUCKET);
    assert!(well.code == Some(0) && well.err.is_empty(), "{}{}", well.out, well.err);
    no_secret(&place, &server, &[&done, &warned, &well]);
}
