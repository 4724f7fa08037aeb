//! Separately launched workers, and their coordinator.

use std::process::Command;

use rustix::process::Signal;

use crate::place::{Done, Place, Running};
use crate::processes::{TOKEN, send};
use crate::runs::{dead_after, trained};

const RUN: &str = "--strategy diloco --workers 2 --set train.validate_every=0";

/// A coordinator, and the workers that know it.
struct Workers<'a> {
    place: &'a Place,
    line: &'a str,
    endpoint: String,
    coordinator: Running,
}

impl<'a> Workers<'a> {
    fn new(place: &'a Place, line: &'a str, wait: &str) -> Self {
        let line_of = format!("coordinate --workers 2 --host 127.0.0.1 --port 0 --wait-seconds {wait}");
        let mut coordinator = place.start(place.brigade(&line_of).env("BRIGADE_TOKEN", TOKEN));
        let endpoint = coordinator.until("it says where it listens", |coordinator| {
            let said = coordinator.said();
            Some(said.lines().next()?.split_once(" at ")?.1.to_owned()).filter(|_| said.contains('\n'))
        });
        Self { place, line, endpoint, coordinator }
    }

    fn command(&self, worker: usize, extra: &str) -> Command {
        let Self { place, line, endpoint, .. } = self;
        let line = format!("{RUN} {line} --worker {worker} --coordinator {endpoint} --out w{worker} {extra}");
        let mut command = place.train(&line);
        command.env("BRIGADE_TOKEN", TOKEN);
        command
    }

    fn start(&self, worker: usize, extra: &str) -> Running {
        self.place.start(&mut self.command(worker, extra))
    }

    fn said(&self) -> String {
        self.coordinator.said()
    }
}

fn well(running: Running) -> Done {
    let done = running.wait();
    assert_eq!(done.code, Some(0), "{}", done.err);
    done
}

#[test]
fn workers_that_find_each_other_train_to_the_bits_of_one_world() {
    for mesh in ["--nproc-per-node 1", "--nproc-per-node 2 --pp 2", "--nproc-per-node 2 --zero 3"] {
        let place = Place::new();
        let line = format!("--inner-steps 5 --micro-batch-size 1 {mesh}");
        let workers = Workers::new(&place, &line, "30");
        let mut first = workers.start(0, "");
        let waits = "waiting for worker 1 (at most 30 s, --wait-seconds of brigade coordinate)";
        first.until(waits, |first| first.complained().contains(waits).then_some(()));
        for running in [first, workers.start(1, "")] {
            well(running);
        }
        let said = well(workers.coordinator).out;
        assert!(said.contains(waits), "{said}");
        assert!(said.contains("outer step after step 10: workers 0, 1"), "{said}");
        let ranks = mesh.replace("node 1", "node 2").replace("node 2 -", "node 4 -");
        place.succeed(
            &mut place.train(&format!("{RUN} --inner-steps 5 --micro-batch-size 1 {ranks} --out a")),
        );
        for worker in ["w0", "w1"] {
            assert!(
                place.read(&format!("{worker}/model.safetensors")) == place.read("a/model.safetensors"),
                "{mesh}"
            );
            let [own, all] = [worker, "a"].map(|run| {
                let last = place.metrics(run).pop().unwrap();
                (last["loss"].clone(), last["validation_loss"].clone(), last["outer_step"]["workers"].clone())
            });
            assert_eq!(own, all);
        }
    }
}

#[test]
fn workers_continue_what_one_world_began_and_one_world_says_whose_state_it_takes() {
    let place = Place::new();
    let line = "--inner-steps 2 --micro-batch-size 1 --checkpoint-every 4 --keep 0";
    trained(&place, "a", &format!("{RUN} --inner-steps 2 --micro-batch-size 1 --nproc-per-node 2"));
    ["w0", "w1"].into_iter().for_each(|worker| dead_after(&place, "a", 4, worker));
    let workers = Workers::new(&place, line, "30");
    let running = [0, 1].map(|worker| workers.start(worker, "--resume auto"));
    for done in running.map(well) {
        assert!(done.err.contains("resuming from the checkpoint of step 4"), "{}", done.err);
        assert!(!done.err.contains("inner state"), "{}", done.err);
    }
    well(workers.coordinator);
    for worker in ["w0", "w1"] {
        let weights = [worker, "a"].map(|run| place.read(&format!("{run}/model.safetensors")));
        assert!(weights[0] == weights[1], "{worker}");
    }
    dead_after(&place, "w1", 8, "b");
    let done =
        place.succeed(&mut place.train(&format!("{RUN} {line} --nproc-per-node 2 --resume auto --out b")));
    let says = "the checkpoint has the inner state of one worker, from which all 2 workers continue";
    assert!(done.err.contains(says), "{}", done.err);
}

#[test]
fn a_worker_that_dies_is_left_behind_and_takes_over_what_the_others_have() {
    // As many steps as a fast machine makes while a worker starts.
    for (mesh, steps) in [("--nproc-per-node 1", 1500), ("--nproc-per-node 2 --pp 2", 800)] {
        let place = Place::new();
        let line = format!("--inner-steps 5 --micro-batch-size 1 --steps {steps} {mesh}");
        let mut workers = Workers::new(&place, &line, "30");
        let mut first = workers.start(0, "");
        let second = workers.start(1, "");
        let seen = |workers: &mut Workers<'_>, what: &str| {
            let said = |coordinator: &mut Running| coordinator.said().contains(what).then_some(());
            workers.coordinator.until(what, said);
        };
        seen(&mut workers, "outer step after step 50: workers 0, 1");
        drop(second);
        seen(&mut workers, "worker 1 is gone");
        let before = workers.said().matches("workers 0\n").count();
        first.until("it goes on alone", |_| {
            (workers.said().matches("workers 0\n").count() > before + 2).then_some(())
        });
        // It starts from nothing, since it has no checkpoint.
        let second = workers.start(1, "--overwrite");
        seen(&mut workers, "workers 0; 1 given the result");
        let done = [first, second].map(well);
        assert!(done[0].err.contains("missing: 1"), "{}", done[0].err);
        assert!(done[1].err.contains("loaded the other workers' state"), "{}", done[1].err);
        assert!(place.read("w0/model.safetensors") == place.read("w1/model.safetensors"), "{mesh}");
        let said = well(workers.coordinator).out;
        assert!(said.contains(&format!("outer step after step {steps}: workers 0, 1")), "{said}");
    }
}

#[test]
fn workers_with_other_algorithms_and_transports_meet() {
    let place = Place::new();
    let workers = Workers::new(&place, "--nproc-per-node 1 --inner-steps 5 --micro-batch-size 1", "30");
    let alike = "--set comm.collectives=flat --set comm.transport=shared_memory";
    let first = place.start(workers.command(0, alike).env("BRIGADE_HOST_ID", "another"));
    for running in [first, workers.start(1, "")] {
        well(running);
    }
    let said = well(workers.coordinator).out;
    assert!(said.contains("outer step after step 10: workers 0, 1"), "{said}");
    assert!(place.read("w0/model.safetensors") == place.read("w1/model.safetensors"));
}

/// What one worker alone says of its network, so that no world can be formed with the other.
const APART: &str = r#"--set comm.interfaces=["lo"]"#;

#[test]
fn workers_that_are_there_and_cannot_meet_end_with_the_reason() {
    let place = Place::new();
    let line = "--nproc-per-node 1 --inner-steps 5 --micro-batch-size 1 --set comm.init_timeout_seconds=5";
    let workers = Workers::new(&place, line, "30");
    // The second may be alone once the first has ended.
    let done = [workers.start(0, APART), workers.start(1, "")].map(Running::wait);
    let told = |done: &Done| {
        let limit =
            "workers 0, 1 are all there, but have failed to synchronise for 5 s (comm.init_timeout_seconds)";
        let reason = "choose interfaces (comm.interfaces)";
        done.code == Some(1) && done.err.contains(limit) && done.err.contains(reason)
    };
    assert!(done.iter().any(told), "{}\n{}", done[0].err, done[1].err);
}

#[test]
fn a_preemption_ends_a_worker_that_cannot_meet_the_others() {
    let place = Place::new();
    let workers = Workers::new(&place, "--nproc-per-node 1 --inner-steps 5 --micro-batch-size 1", "30");
    let mut first = workers.start(0, APART);
    let _second = workers.start(1, "");
    first.until("outer steps fail", |first| first.complained().contains("and is repeated").then_some(()));
    assert!(send(first.pid(), Signal::TERM));
    let done = first.wait();
    assert_eq!(done.code, Some(75), "{}", done.err);
    let says = "preempted while the workers could not synchronise; no step is saved";
    assert!(done.err.contains(says), "{}", done.err);
}

#[test]
fn a_worker_that_is_late_or_does_not_fit_is_told_so() {
    let place = Place::new();
    let workers = Workers::new(&place, "--nproc-per-node 1 --inner-steps 5", "0");
    well(workers.start(0, ""));
    let late = workers.start(1, "").wait();
    assert_eq!(late.code, Some(1));
    assert!(late.err.contains("have ended the run after step 10 without this one"), "{}", late.err);
    let other = workers.start(0, "--set train.seed=7 --overwrite").wait();
    assert_eq!(other.code, Some(1));
    assert!(other.err.contains("`seed = 7` here"), "{}", other.err);
    well(workers.coordinator);
}

#[test]
fn wrong_settings_of_workers_are_refused_before_anything_starts() {
    let place = Place::new();
    let refused = |line: &str, says: &str| {
        let done = place.run(&mut place.train(line));
        assert_eq!(done.code, Some(2), "{line}: {}", done.err);
        assert!(done.err.contains(says), "{line}: {}", done.err);
    };
    let at = "--coordinator 127.0.0.1:29600 --inner-steps 5";
    refused("--worker 1", "strategy.worker (--worker)");
    refused("--coordinator 127.0.0.1:29600", "only --strategy local-sgd, diloco and async-server");
    refused(&format!("--strategy diloco {at}"), "must say how many workers");
    refused(
        &format!("--strategy diloco --workers 2 --worker 2 {at}"),
        "below strategy.workers (--workers) = 2",
    );
    refused("--strategy diloco --workers 2 --inner-steps 5 --coordinator here", "it must be host:port");
    refused(
        &format!("--strategy diloco --workers 2 --set checkpoint.keep_best=true {at}"),
        "checkpoint.keep_best",
    );
    let without_token = "BRIGADE_TOKEN is not set: the workers are launched separately";
    refused("--strategy diloco --workers 2 --coordinator 127.0.0.1:29600 --inner-steps 2", without_token);
    let done = place.run(&mut place.brigade("coordinate --workers 2 --port 0"));
    assert_eq!(done.code, Some(2));
    assert!(done.err.contains(without_token), "{}", done.err);
}
