//! One seed, one run: the bytes of the weights on any number of ranks and any transport.

use crate::place::Place;

/// The weights and the losses of a run.
fn outcome(place: &Place, name: &str, line: &str) -> (Vec<u8>, Vec<(f64, f64)>) {
    place.succeed(&mut place.train(&format!("{line} --out {name}")));
    let number = |record: &serde_json::Value, key: &str| record[key].as_f64().unwrap();
    let losses = place.metrics(name).iter().map(|r| (number(r, "loss"), number(r, "grad_norm"))).collect();
    (place.read(&format!("{name}/model.safetensors")), losses)
}

/// Four micro-batches a step on one rank, two on each of two, one on each of four.
fn same_on_all_meshes(place: &Place, line: &str) {
    let reference = outcome(place, "alone", &format!("{line} --nproc-per-node 1"));
    assert_eq!(reference.1.len(), 10);
    for ranks in [2, 4] {
        for transport in ["shared_memory", "tcp"] {
            let name = format!("{transport}-{ranks}");
            let line = format!("{line} --nproc-per-node {ranks} --dp {ranks} --transport {transport}");
            let (weights, losses) = outcome(place, &name, &line);
            assert_eq!(losses, reference.1, "{name} {line}");
            assert!(weights == reference.0, "{name} {line}: other weights");
        }
    }
}

#[test]
fn packed_text_and_a_tied_head() {
    same_on_all_meshes(&Place::new(), "--seed 7");
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

/// Stages, shards and both, as processes: the weights of one process, and its losses and validation losses.
#[test]
fn composed_meshes() {
    let place = Place::new();
    let reference = outcome(&place, "alone", "--nproc-per-node 1");
    let validated = |run: &str| -> Vec<_> {
        place.metrics(run).iter().filter_map(|record| record["validation_loss"].as_f64()).collect()
    };
    assert_eq!(validated("alone").len(), 3);
    for (number, mesh) in [
        "--nproc-per-node 2 --zero 1",
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
        let (weights, losses) = outcome(&place, &name, mesh);
        assert_eq!(losses, reference.1, "{mesh}");
        assert!(weights == reference.0, "{mesh}: other weights");
        assert_eq!(validated(&name), validated("alone"), "{mesh}");
    }
    place.succeed(&mut place.brigade("generate --out mesh-5 --prompt fn --tokens 5"));
}

#[test]
fn another_seed_is_another_run() {
    let place = Place::new();
    let [a, b] =
        [1, 2].map(|seed| outcome(&place, &format!("{seed}"), &format!("--seed {seed} --nproc-per-node 1")));
    assert!(a.0 != b.0 && a.1 != b.1);
}
