//! `brigade evaluate`

use serde_json::Value;

use crate::place::Place;

#[test]
fn what_a_model_knows_of_a_text_is_the_same_on_every_mesh() {
    let place = Place::new();
    let train =
        "--nproc-per-node 2 --steps 30 --set optimizer.learning_rate=1e-2 --set data.validation_fraction=0.5";
    place.succeed(&mut place.train(&format!("{train} --out a")));
    let run = |line: &str| {
        let line = format!("evaluate --model a --data text --micro-batch-size 2 {line}");
        place.succeed(&mut place.brigade(&line)).out
    };
    let alone = run("--nproc-per-node 1 --json");
    let found: Value = serde_json::from_str(&alone).unwrap();
    let number = |name: &str| found[name].as_f64().unwrap();
    assert_eq!(number("perplexity"), number("loss").exp());
    assert!(number("loss") > 0.5 && number("loss") < 4.0 && number("next_token_accuracy") > 0.2, "{alone}");
    // A byte is a token, each document has one more that ends it, and the first of all is not predicted.
    let bytes = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().metadata().unwrap().len() + 1;
    let tokens: u64 = std::fs::read_dir(place.path("text")).unwrap().map(bytes).sum();
    assert_eq!(found["tokens"].as_u64(), Some(tokens - 1));
    for mesh in [
        "--pp 2",
        "--dp 2",
        "--nproc-per-node 2",
        "--nproc-per-node 2 --zero 0",
        "--nproc-per-node 4 --pp 2 --zero 3 --transport tcp",
    ] {
        assert_eq!(run(&format!("{mesh} --json")), alone, "{mesh}");
    }
    // Settings mean what flags mean.
    let short = run("--nproc-per-node 1 --json --sequence-length 8");
    assert_ne!(short, alone);
    assert_eq!(run("--nproc-per-node 1 --json --set model.sequence_length=8"), short);
    let words = run("");
    let rounded = format!("loss                 {:.6}\n", number("loss"));
    assert!(
        words.starts_with(&rounded) && words.contains("perplexity") && words.contains("next_token_accuracy"),
        "{words}"
    );
    // Nothing is left behind.
    let mut names: Vec<_> =
        std::fs::read_dir(place.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.retain(|name| !name.to_string_lossy().starts_with(['o', 'e']));
    names.sort();
    assert_eq!(names, ["a", "cache", "text", "tiny.toml"]);
}

#[test]
fn what_cannot_be_evaluated_is_said() {
    let place = Place::new();
    place.succeed(&mut place.train("--nproc-per-node 1 --steps 1 --out a"));
    let refused = |line: &str, said: &str| {
        let done = place.run(&mut place.brigade(&format!("evaluate {line}")));
        assert_eq!(done.code, Some(2), "{line}: {}", done.err);
        assert!(done.err.contains(said), "{line}: {}", done.err);
    };
    refused("--model a", "--data <SOURCE>");
    refused("--model nowhere --data text", "nowhere");
    refused("--model a --data nowhere", "nowhere");
    refused(
        "--model a --data text --sequence-length 17",
        "model.sequence_length = 17 is not possible: the model has 16 positions",
    );
    refused("--model a --data text --sequence-length 0", "sequence_length");
    refused("--model a --data text --micro-batch-size 0", "--micro-batch-size");
    refused("--model a --data text --set train.micro_batch_size=0", "micro_batch_size");
    refused(
        "--model a --data text --set model.sequence_length=17",
        "model.sequence_length = 17 is not possible",
    );
    refused("--model a --data text --pp 5", "4 blocks");
    refused("--model a --data text --nproc-per-node 2 --dp 3", "mesh");
    std::fs::remove_file(place.path("a/model.safetensors")).unwrap();
    refused("--model a --data text", "model.safetensors");
}
