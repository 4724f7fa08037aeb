//! One seed, one run: the bytes of the weights on any number of ranks and any transport.

use std::net::TcpListener;
use std::process::Command;

use serde_json::Value;

use crate::place::Place;
use crate::processes::TOKEN;

/// The weights of a run, and of each step what does not depend on the mesh.
fn outcome(place: &Place, name: &str, line: &str) -> (Vec<u8>, Vec<Vec<Value>>) {
    outcome_of(place, name, place.train(&format!("{line} --out {name}")))
}

fn outcome_of(place: &Place, name: &str, mut command: Command) -> (Vec<u8>, Vec<Vec<Value>>) {
    const SAME: [&str; 5] = ["loss", "grad_norm", "metrics", "validation_loss", "validation_metrics"];
    place.succeed(&mut command);
    let steps = place.metrics(name).into_iter().map(|record| SAME.map(|key| record[key].clone()).to_vec());
    (place.read(&format!("{name}/model.safetensors")), steps.collect())
}

/// Four micro-batches a step on one rank, two on each of two, one on each of four.
fn same_on_all_meshes(place: &Place, line: &str) {
    let reference = outcome(place, "alone", &format!("{line} --nproc-per-node 1"));
    assert_eq!(reference.1.len(), 10);
    for ranks in [2, 4] {
        for transport in ["shared_memory", "tcp"] {
            let name = format!("{transport}-{ranks}");
            let line = format!("{line} --nproc-per-node {ranks} --dp {ranks} --transport {transport}");
            let (weights, steps) = outcome(place, &name, &line);
            assert_eq!(steps, reference.1, "{name} {line}");
            assert!(weights == reference.0, "{name} {line}: other weights");
        }
    }
}

#[test]
fn packed_text_and_a_tied_head() {
    same_on_all_meshes(&Place::new(), "--seed 7");
}

#[test]
fn dropout() {
    let place = Place::new();
    same_on_all_meshes(&place, "--set model.dropout=0.1");
    let without = outcome(&place, "without", "--set model.dropout=0 --nproc-per-node 1");
    assert!(without.0 != place.read("alone/model.safetensors"), "something is dropped");
}

#[test]
fn documents_with_masked_prompts_and_a_head_of_its_own() {
    let place = Place::new();
    let line = |n: usize| {
        let (prompt, text) = ("ask ".repeat(n % 4), "say ".repeat(1 + n % 3));
        format!("{{\"prompt\": \"{prompt}\", \"text\": \"{text}{n}\"}}\n")
    };
    std::fs::write(place.path("talk.jsonl"), (0..60).map(line).collect::<String>()).unwrap();
    let settings = "--data talk.jsonl --set data.layout=documents --set model.tied_head=false --set optimizer.name=lion \
                    --set optimizer.learning_rate=1e-4";
    same_on_all_meshes(&place, settings);
    let tokens: Vec<u64> = place.metrics("alone").iter().map(|r| r["tokens"].as_u64().unwrap()).collect();
    assert!(tokens.iter().all(|count| *count < 8 * 16), "{tokens:?}");
    assert!(tokens.windows(2).any(|pair| pair[0] != pair[1]), "{tokens:?}");
}

/// Of a source that is smaller than its share, and of one with other columns and validation files of its own.
#[test]
fn sources_with_weights() {
    let place = Place::new();
    let lines = |from: usize| {
        (from..from + 40)
            .map(|n| format!("{{\"answer\": \"say {n} \"}}\n").repeat(1 + n % 3))
            .collect::<String>()
    };
    std::fs::write(place.path("talk.jsonl"), lines(0)).unwrap();
    std::fs::write(place.path("held.jsonl"), lines(40)).unwrap();
    let run = |name: &str, weight: usize, mesh: &str| {
        let talk = format!(
            "{{path='talk.jsonl',weight={weight},columns={{text='answer'}},validation='held.jsonl'}}"
        );
        let sources = format!("--set data.source=[{{path='text'}},{talk}]");
        let line = format!("train --config tiny.toml {sources} {mesh} --out {name}");
        outcome_of(&place, name, place.brigade(&line))
    };
    let reference = run("alone", 9, "--nproc-per-node 1");
    for (number, mesh) in
        ["--nproc-per-node 2 --transport tcp", "--nproc-per-node 4 --pp 2 --zero 3"].into_iter().enumerate()
    {
        let (weights, steps) = run(&format!("mesh-{number}"), 9, mesh);
        assert_eq!(steps, reference.1, "{mesh}");
        assert!(weights == reference.0, "{mesh}: other weights");
    }
    assert!(run("other", 1, "--nproc-per-node 1").0 != reference.0, "weights have no effect");
}

/// Stages, shards and both, as processes: the weights of one process, its losses and metrics, also of validation.
#[test]
fn composed_meshes() {
    let place = Place::new();
    let reference = outcome(&place, "alone", "--nproc-per-node 1");
    assert_eq!(reference.1.iter().filter(|step| step[3].is_f64() && step[4].is_object()).count(), 3);
    for (number, mesh) in [
        "--nproc-per-node 2 --zero 1",
        "--nproc-per-node 4 --set comm.table=[{collective='all_reduce',algorithm='halving',up_to=20000}]",
        "--nproc-per-node 2 --zero 3 --recompute all --transport tcp",
        "--nproc-per-node 4 --zero 2",
        "--nproc-per-node 2 --pp 2",
        "--nproc-per-node 4 --pp 4 --schedule gpipe --transport tcp",
        "--nproc-per-node 4 --pp 2 --dp 2 --zero 3 --schedule interleaved-1f1b --chunks 2",
        "--nproc-per-node 4 --pp 2 --zero 1 --set pipeline.stages=[1,3]",
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("mesh-{number}");
        let (weights, steps) = outcome(&place, &name, mesh);
        assert_eq!(steps, reference.1, "{mesh}");
        assert!(weights == reference.0, "{mesh}: other weights");
    }
    place.succeed(&mut place.brigade("generate --model mesh-5 --prompt fn --tokens 5"));
}

/// Two workers are another run than one process, but the same whatever mesh each of them is.
#[test]
fn workers_that_meet_in_outer_steps() {
    let place = Place::new();
    let synchronous = outcome(&place, "alone", "--nproc-per-node 1");
    for (strategy, other) in [
        ("--strategy diloco --set strategy.outer_dtype=bf16", "--nproc-per-node 4 --pp 2 --transport tcp"),
        ("--strategy diloco --set strategy.outer_dtype=int8", "--nproc-per-node 4 --pp 2"),
        ("--strategy local-sgd", "--nproc-per-node 8 --pp 2 --dp 2 --zero 3"),
        (
            "--strategy diloco --fragments 2 --set train.validate_every=4",
            "--nproc-per-node 8 --pp 2 --dp 2 --zero 3 --transport tcp",
        ),
    ] {
        let line = format!("{strategy} --workers 2 --inner-steps 2");
        let run = |name: &str, mesh: &str| outcome(&place, name, &format!("{line} {mesh} --overwrite"));
        let reference = run("workers", "--nproc-per-node 2");
        assert!(reference.0 != synchronous.0, "{strategy}: workers are another run");
        let records = place.metrics("workers");
        assert_eq!(
            records.iter().map(|record| record["step"].as_u64().unwrap()).collect::<Vec<_>>(),
            [2, 4, 6, 8, 10]
        );
        for record in &records {
            assert_eq!(record["metrics"]["valid_targets"].as_f64(), Some(2.0 * 8.0 * 16.0));
            assert!(record["outer_step"]["bytes"].as_u64().unwrap() > 0, "{record}");
        }
        for mesh in ["--nproc-per-node 4 --dp 2 --zero 1", other] {
            let (weights, steps) = run("mesh", mesh);
            assert_eq!(steps, reference.1, "{line} {mesh}");
            assert!(weights == reference.0, "{line} {mesh}: other weights");
        }
    }
}

/// Servers that wait for all workers are synchronous training. Those that do not make another run, which goes on from what others saved, and
/// others from what it saved.
#[test]
fn servers_and_workers() {
    let place = Place::new();
    let reference = outcome(&place, "alone", "--nproc-per-node 1");
    for line in ["--nproc-per-node 3", "--nproc-per-node 4 --servers 2 --transport tcp"] {
        let (weights, steps) =
            outcome(&place, "mesh", &format!("--strategy async-server {line} --overwrite"));
        assert_eq!(steps, reference.1, "{line}");
        assert!(weights == reference.0, "{line}: other weights");
    }
    let line = "--strategy async-server --servers 2 --staleness 2 --inner-steps 5 --set train.validate_every=5 \
                --nproc-per-node 4";
    let done = place
        .succeed(&mut place.train(&format!("{line} --checkpoint-every 5 --profile-steps 7..8 --out late")));
    assert!(
        place.path("late/profile/steps-6-10.json").exists(),
        "the timeline of a whole round: {}",
        done.err
    );
    assert!(done.err.contains("2 workers and 2 servers") && done.err.contains("staleness"), "{}", done.err);
    let records = place.metrics("late");
    assert_eq!(records.iter().map(|record| record["step"].as_u64().unwrap()).collect::<Vec<_>>(), [5, 10]);
    for record in &records {
        assert_eq!(record["metrics"]["valid_targets"].as_f64(), Some(5.0 * 8.0 * 16.0));
        let round = &record["round"];
        assert_eq!(
            (round["steps"].as_u64(), round["skipped_updates"].as_u64()),
            (Some(5), Some(0)),
            "{record}"
        );
        let [mean, most] = ["staleness_mean", "staleness_max"].map(|name| round[name].as_f64().unwrap());
        assert!(mean <= most && most <= 3.0, "{record}");
    }
    assert!(records[1]["validation_loss"].as_f64().unwrap().is_finite());
    place.succeed(&mut place.brigade("generate --model late --prompt fn --tokens 5"));
    for other in [
        "--strategy sync --set strategy.servers=0 --set strategy.staleness=0 --nproc-per-node 2 --zero 1 --steps 15",
        "--strategy async-server --servers 1 --zero 0 --nproc-per-node 3 --steps 20",
    ] {
        place.succeed(&mut place.brigade(&format!("train --resume late {other}")));
    }
    let steps =
        place.metrics("late").iter().map(|record| record["step"].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!(steps, [5, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]);
}

/// Processes that differ in `TF_CONFIG` alone are workers and servers as it says.
#[test]
fn the_tasks_of_tf_config_are_workers_and_servers() {
    let place = Place::new();
    let reference = outcome(&place, "alone", "--nproc-per-node 1");
    let ports: Vec<u16> = {
        let listeners: Vec<_> = (0..4).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
    };
    let at = |node: usize| format!("\"127.0.0.1:{}\"", ports[node]);
    let cluster = format!(r#"{{"chief":[{}],"worker":[{}],"ps":[{},{}]}}"#, at(0), at(1), at(2), at(3));
    let tasks = [("chief", 0), ("worker", 0), ("ps", 0), ("ps", 1)];
    for (staleness, strategy) in [(0, ""), (2, "--staleness 2 --inner-steps 5 --set train.validate_every=5")]
    {
        let line = format!("--strategy async-server {strategy} --checkpoint-every 5 --out tf-{staleness}");
        let start = |(kind, index): (&str, usize)| {
            let task = format!(r#"{{"cluster":{cluster},"task":{{"type":"{kind}","index":{index}}}}}"#);
            let mut command = place.train(&line);
            place.start(command.env("TF_CONFIG", task).env("BRIGADE_TOKEN", TOKEN))
        };
        let done = tasks.map(start).map(|running| running.wait());
        done.iter().for_each(|done| assert_eq!(done.code, Some(0), "{}", done.err));
        assert!(done[0].err.contains("2 workers and 2 servers"), "{}", done[0].err);
        let records = place.metrics(&format!("tf-{staleness}"));
        assert_eq!(records.last().unwrap()["step"], 10);
        assert_eq!(records.last().unwrap()["round"].is_null(), staleness == 0);
        if staleness == 0 {
            let weights = place.read("tf-0/model.safetensors");
            assert!(weights == reference.0, "other weights than one process");
        }
    }
    let task = format!(r#"{{"cluster":{cluster},"task":{{"type":"ps","index":2}}}}"#);
    let wrong = place.run(place.train("--strategy async-server --out no").env("TF_CONFIG", task));
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.err.contains("task.index 2 is not below 2, the length of cluster.ps"), "{}", wrong.err);
}

#[test]
fn another_seed_is_another_run() {
    let place = Place::new();
    let [a, b] =
        [1, 2].map(|seed| outcome(&place, &format!("{seed}"), &format!("--seed {seed} --nproc-per-node 1")));
    assert!(a.0 != b.0 && a.1 != b.1);
}

/// Six of eight sequences of 16 tokens are validation's: three micro-batches, which no two ranks share evenly.
#[test]
fn accuracy_and_valid_targets_are_recorded_shown_and_summed_up() {
    let place = Place::new();
    let done = place.succeed(&mut place.train("--nproc-per-node 2 --steps 30 --out a"));
    let records = place.metrics("a");
    for record in &records {
        let (metrics, tokens) = (&record["metrics"], record["tokens"].as_f64().unwrap());
        assert_eq!(metrics["valid_targets"].as_f64(), Some(tokens));
        let correct = metrics["next_token_accuracy"].as_f64().unwrap() * tokens;
        assert!((0.0..=tokens).contains(&correct) && (correct - correct.round()).abs() < 1e-6, "{record}");
    }
    let accuracy = |of: &Value, metrics: &str| of[metrics]["next_token_accuracy"].as_f64().unwrap();
    let [first, last] = [&records[0], records.last().unwrap()];
    assert!(accuracy(last, "metrics") > accuracy(first, "metrics"), "it learns: {first} {last}");
    assert_eq!(last["validation_metrics"]["valid_targets"].as_f64(), Some(6.0 * 16.0));
    assert!((0.0..=1.0).contains(&accuracy(last, "validation_metrics")), "{last}");
    let names = |text: &str| ["next_token_accuracy", "valid_targets"].map(|name| text.contains(name));
    assert_eq!(names(&done.err), [true, true], "{}", done.err);
    assert_eq!(names(&done.out), [true, false], "how many there were is no result: {}", done.out);
}
