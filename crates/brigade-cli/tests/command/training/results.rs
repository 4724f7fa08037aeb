//! What a run leaves in its folder.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::place::Place;

/// Name and shape of the tensors in a safetensors file.
fn tensors(place: &Place, file: &str) -> BTreeMap<String, Vec<usize>> {
    let bytes = place.read(file);
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: BTreeMap<String, Value> = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let shape =
        |value: &Value| value.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect();
    header
        .into_iter()
        .filter(|(name, _)| name != "__metadata__")
        .map(|(name, t)| (name, shape(&t["shape"])))
        .collect()
}

#[test]
fn a_folder_of_results() {
    let place = Place::new();
    let done = place.succeed(&mut place.train("--nproc-per-node 2 --out a"));
    assert!(done.out.contains("steps") && done.out.contains("model.safetensors"), "{}", done.out);
    assert!(
        done.err.contains("global batch 8 = dp 2 x 2 micro-batches of 2; learning rate 0.002"),
        "{}",
        done.err
    );

    let mut names: Vec<String> = fs::read_dir(place.path("a"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(names[4].starts_with("events.out.tfevents."), "{names:?}");
    names.remove(4);
    assert_eq!(
        names,
        [
            ".brigade.lock",
            "checkpoints",
            "config.json",
            "config.toml",
            "generation_config.json",
            "history.jsonl",
            "logs",
            "metrics.jsonl",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json"
        ]
    );
    for rank in 0..2 {
        assert!(place.path(&format!("a/logs/rank-{rank}.log")).is_file());
    }

    let tensors = tensors(&place, "a/model.safetensors");
    assert_eq!(tensors["wte.weight"], [257, 16]);
    assert_eq!(tensors["h.1.attn.c_attn.weight"], [16, 48]);
    assert!(tensors.contains_key("ln_f.bias") && !tensors.contains_key("lm_head.weight"), "{tensors:?}");

    let parameters: usize = tensors.values().map(|shape| shape.iter().product::<usize>()).sum();
    check_metrics(&place.metrics("a"), parameters);
}

/// Two ranks, ten steps.
fn check_metrics(metrics: &[Value], parameters: usize) {
    assert_eq!(metrics.len(), 10);
    for (index, record) in metrics.iter().enumerate() {
        let number = |key: &str| record[key].as_f64().unwrap_or_else(|| panic!("{key} in {record}"));
        assert_eq!(number("step"), (index + 1) as f64);
        assert_eq!(number("tokens"), 8.0 * 16.0);
        for key in
            ["loss", "grad_norm", "learning_rate", "tokens_per_second", "step_seconds", "forward_seconds"]
        {
            assert!(number(key) > 0.0, "{key} in {record}");
        }
        for key in ["backward_seconds", "optimizer_seconds", "peak_rss_bytes", "comm_bytes", "comm_calls"] {
            assert!(number(key) > 0.0, "{key} in {record}");
        }
        assert!(number("data_wait_seconds") >= 0.0 && number("comm_wait_seconds") >= 0.0, "{record}");
        let hidden = number("comm_hidden_seconds");
        assert!((0.0..=number("step_seconds")).contains(&hidden), "{record}");
        let rate = number("tokens") / number("step_seconds");
        assert!((number("tokens_per_second") / rate - 1.0).abs() < 1e-6);
        assert!(
            number("forward_seconds") + number("backward_seconds") <= 1.01 * number("step_seconds"),
            "{record}"
        );
        // Embedding, two layers, head, and the table that embedding and head share; each rank sends 2·Ψ·(n−1)/n values
        // of four bytes.
        assert_eq!(record["collectives"]["all_reduce"]["calls"], 5);
        assert_eq!(record["collectives"]["all_reduce"]["bytes"], 2 * parameters * 4);
        assert!(number("comm_bytes") < (2 * parameters * 4 + 2000) as f64, "{record}");
        let validated = record.get("validation_loss").is_some_and(Value::is_f64);
        assert_eq!(validated, [4, 8, 10].contains(&(index + 1)), "{record}");
    }
    let rate = |step: usize| metrics[step - 1]["learning_rate"].as_f64().unwrap();
    assert!(rate(1) < rate(2) && rate(2) > rate(10), "warm-up and cosine");
    let loss = |step: usize| metrics[step - 1]["loss"].as_f64().unwrap();
    assert!((loss(1) - 257f64.ln()).abs() < 0.2 && loss(10) < loss(1), "{} {}", loss(1), loss(10));
}

/// What is computed again need not be kept: a rank's memory falls, and its weights stay.
#[test]
fn recomputation_saves_memory() {
    let place = Place::new();
    let model = "--set model.sequence_length=64 --set model.width=64 --set model.layers=10 --micro-batch-size 64 \
                 --global-batch-size 64 --steps 2 --set train.validate_every=0 --set train.validation_samples=2";
    let [kept, again] = ["none", "all"].map(|which| {
        place.succeed(
            &mut place.train(&format!("{model} --nproc-per-node 1 --recompute {which} --out {which}")),
        );
        place.metrics(which)[0]["peak_rss_bytes"].as_u64().unwrap()
    });
    assert!(2 * again < kept, "{again} bytes with recomputation, {kept} without");
    assert!(place.read("none/model.safetensors") == place.read("all/model.safetensors"));
}

#[test]
fn the_resolved_configuration_gives_the_same_weights() {
    let place = Place::new();
    place.succeed(&mut place.train("--nproc-per-node 2 --seed 5 --steps 4 --set optimizer.name=sgd --out a"));
    let config = place.text("a/config.toml");
    assert!(
        config.contains("vocabulary = 257") && config.contains("seed = 5") && config.contains("steps = 4"),
        "{config}"
    );
    assert!(config.contains(place.path("text").to_str().unwrap()), "{config}");
    let elsewhere = tempfile::tempdir().unwrap();
    let [config, out] = ["a/config.toml", "b"].map(|name| place.path(name).to_str().unwrap().to_owned());
    let line = format!("train --config {config} --out {out} --nproc-per-node 1");
    place.succeed(place.brigade(&line).current_dir(elsewhere.path()));
    assert!(place.read("a/model.safetensors") == place.read("b/model.safetensors"));
}

#[test]
fn results_are_replaced_only_when_asked() {
    let place = Place::new();
    place.succeed(&mut place.train("--nproc-per-node 1 --steps 3 --out a"));
    let before =
        (place.text("a/config.toml"), place.text("a/metrics.jsonl"), place.read("a/model.safetensors"));
    let refused = place.run(&mut place.train("--nproc-per-node 1 --steps 2 --seed 1 --out a"));
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    assert!(
        refused.err.contains("--out a holds results of an earlier run")
            && refused.err.contains("--overwrite")
    );
    assert!(
        before
            == (
                place.text("a/config.toml"),
                place.text("a/metrics.jsonl"),
                place.read("a/model.safetensors")
            )
    );

    place.succeed(&mut place.train("--nproc-per-node 1 --steps 2 --seed 1 --out a --overwrite"));
    assert_eq!(place.metrics("a").len(), 2);
    let events = fs::read_dir(place.path("a")).unwrap();
    let events =
        events.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("events"));
    assert_eq!(events.count(), 1);
    // That it was allowed once is not written down for the next time.
    assert!(!place.text("a/config.toml").contains("overwrite"));
}

#[test]
fn a_run_that_fails_before_it_begins_replaces_nothing() {
    let place = Place::new();
    place.succeed(&mut place.train("--nproc-per-node 1 --steps 1 --out a"));
    let weights = place.read("a/model.safetensors");
    for line in [
        "--seed 18446744073709551615",
        "--set data.tokenizer=a/missing.json",
        "--micro-batch-size 9223372036854775808",
    ] {
        let done = place.run(&mut place.train(&format!("--nproc-per-node 1 --out a --overwrite {line}")));
        assert_eq!(done.code, Some(2), "{line}: {}", done.err);
        assert!(place.read("a/model.safetensors") == weights && place.metrics("a").len() == 1, "{line}");
    }
    // A run's own tokenizer may be what the next one in its folder takes.
    place.succeed(
        &mut place
            .train("--nproc-per-node 1 --steps 1 --out a --overwrite --set data.tokenizer=a/tokenizer.json"),
    );
    fs::create_dir(place.path("mine")).unwrap();
    fs::copy(place.path("tiny.toml"), place.path("mine/config.toml")).unwrap();
    let done = place.run(&mut place.brigade("train --config mine/config.toml --data text --out mine"));
    assert_eq!(done.code, Some(2), "{}", done.err);
    assert!(place.read("mine/config.toml") == place.read("tiny.toml"));
}

#[test]
fn without_a_folder_each_run_gets_a_new_one() {
    let place = Place::new();
    for number in 1..=2 {
        place.succeed(&mut place.train("--nproc-per-node 1 --steps 1 --quiet"));
        assert!(place.path(&format!("runs/tiny-{number}/model.safetensors")).is_file());
    }
}

#[test]
fn quiet_prints_nothing() {
    let place = Place::new();
    let done = place.succeed(&mut place.train("--nproc-per-node 2 --steps 2 --quiet --out a"));
    assert_eq!((done.out.as_str(), done.err.as_str()), ("", ""));
}

#[test]
fn a_dry_run_says_everything_and_touches_nothing() {
    let place = Place::new();
    let done = place
        .succeed(&mut place.train("--nproc-per-node 2 --out a --dry-run --set optimizer.learning_rate=3e-4"));
    for line in [
        "learning_rate = 0.0003",
        "vocabulary = 257",
        "# mesh: pp 1 x dp 2 = 2 ranks",
        "# gradient accumulation: 2 micro",
    ] {
        assert!(done.out.contains(line), "{line} in {}", done.out);
    }
    let words: Vec<&str> = done.out.split_whitespace().collect();
    for (block, parameters) in
        [("embedding", "4368"), ("h.0", "3280"), ("h.1", "3280"), ("head", "32"), ("all", "10960")]
    {
        let at = words.windows(3).any(|w| w[0] == block && w[1] == parameters && w[2] == "parameters");
        assert!(at, "{block} {parameters} in {}", done.out);
    }
    let table: String =
        done.out.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect();
    fs::write(place.path("again.toml"), table).unwrap();
    let again = place.succeed(&mut place.brigade("train --config again.toml --nproc-per-node 2 --dry-run"));
    // What is measured, and what the machine has at the moment, differs a little.
    let computed = |text: &str| -> Vec<String> {
        let measured =
            |line: &&str| line.contains("saved activations ") || line.contains("the run will need");
        text.lines().filter(|line| !measured(line)).map(str::to_owned).collect()
    };
    assert_eq!(computed(&again.out), computed(&done.out));
    assert!(!place.path("a").exists() && !place.path("cache").exists());
}

#[test]
fn the_default_text_is_there() {
    let place = Place::new();
    let line = "train --config tiny.toml --set data.max_bytes=100000 --nproc-per-node 1 --steps 1 --out a";
    let done = place.succeed(&mut place.brigade(line));
    assert!(done.err.contains("Rust sources of the locked dependencies (at most 0.1 MiB)"), "{}", done.err);
}
