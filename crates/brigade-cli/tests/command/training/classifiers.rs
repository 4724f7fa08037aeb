//! Decoders that are trained as classifiers, whole and with adapters.

use serde_json::{Value, json};

use super::tasks::{SET, evaluated, train, with_bert};
use crate::place::Place;
use crate::safetensors;

/// A trained language model of a family in `base/`, whose `config.json` has no `pad_token_id`, beside reviews with labels.
fn with_base(family: &str, shape: &Value) -> Place {
    let place = with_bert();
    std::fs::create_dir(place.path("new")).unwrap();
    let mut config = json!({ "model_type": family, "vocab_size": 12, "bos_token_id": 2, "eos_token_id": 3, "initializer_range": 0.2 });
    config.as_object_mut().unwrap().extend(shape.as_object().unwrap().clone());
    std::fs::write(place.path("new/config.json"), config.to_string()).unwrap();
    std::fs::copy(place.path("bert/tokenizer.json"), place.path("new/tokenizer.json")).unwrap();
    std::fs::write(place.path("bert/tokenizer_config.json"), "{\"pad_token\": \"[PAD]\"}").unwrap();
    let line = "--model new --set model.pretrained=false --data reviews.jsonl --nproc-per-node 1 --steps 5";
    train(&place, "base", line);
    place
}

fn read(place: &Place, path: &str) -> Value {
    serde_json::from_str(&place.text(path)).unwrap()
}

#[test]
fn a_llama_becomes_a_classifier() {
    let shape = json!({ "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 32 });
    let place = with_base("llama", &shape);
    let line = "--task classification --model base --data reviews.jsonl --checkpoint-every 40";
    let said = place.succeed(&mut place.brigade(&format!(
        "train --config tiny.toml {SET} {line} --nproc-per-node 1 --steps 80 --out alone"
    )));
    assert!(said.err.contains("has no weights for head.score.weight, which start"), "{}", said.err);
    let alone = place.read("alone/model.safetensors");
    let mesh = "--nproc-per-node 4 --pp 2 --dp 2 --zero 3 --recompute all --steps 80";
    assert!(train(&place, "mesh", &format!("{line} {mesh}")) == alone);
    let config = read(&place, "alone/config.json");
    assert_eq!(config["architectures"], json!(["LlamaForSequenceClassification"]));
    // That of the tokenizer.
    assert_eq!((&config["pad_token_id"], &config["id2label"]["1"]), (&json!(0), &json!("praise")));
    let found = evaluated(&place, "reviews.jsonl");
    assert!(found["accuracy"].as_f64().unwrap() > 0.9, "{found}");

    // What it is trained for and its labels are known where it goes on, and it predicts no tokens.
    let more =
        "--model alone --data reviews.jsonl --nproc-per-node 2 --steps 1 --set optimizer.learning_rate=1e-30";
    assert!(train(&place, "more", more) == alone);
    for (line, said) in [
        ("--task regression", "alone is a classifier with 2 labels: "),
        ("--set task.labels=['a','b','c']", "give as many, leave it out, or begin with the model"),
        ("--set task.labels=['a','a']", "task.labels has \"a\" twice"),
        ("--set lora.alpha=9", "alpha = 9"),
    ] {
        let done = place.run(&mut place.brigade(&format!(
            "train --config tiny.toml {SET} --model alone --data reviews.jsonl --nproc-per-node 1 --out other {line}"
        )));
        assert!(done.code == Some(2) && done.err.contains(said), "{line}: {:?} {}", done.code, done.err);
        assert!(!place.path("other").exists(), "{line}");
    }
    let refused = place.run(&mut place.brigade("generate --model alone --prompt film"));
    assert!(
        refused.code == Some(2) && refused.err.contains("classifier, which does not generate text"),
        "{:?} {}",
        refused.code,
        refused.err
    );
    // Nothing says which token fills rows.
    let base = place.text("base/config.json");
    let without = base.replace("\"eos_token_id\": 3", "\"eos_token_id\": null");
    assert_ne!(base, without);
    std::fs::write(place.path("base/config.json"), without).unwrap();
    std::fs::remove_file(place.path("bert/tokenizer_config.json")).unwrap();
    let line = format!("train --config tiny.toml {SET} {line} --nproc-per-node 1 --steps 1 --out odd");
    let refused = place.run(&mut place.brigade(&line));
    assert!(refused.code == Some(2) && refused.err.contains("`pad_token_id`"), "{}", refused.err);
}

#[test]
fn adapters_of_a_gpt2_learn_labels_with_their_head() {
    let shape = json!({ "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0 });
    let place = with_base("gpt2", &shape);
    let adapted = |name: &str, line: &str| {
        let lora = "--lora-rank 2 --set lora.dropout=0.1 --set lora.targets=[\"c_attn\",\"c_proj\"]";
        let line =
            format!("--task classification --data reviews.jsonl --model base {lora} {line} --steps 80");
        place.succeed(&mut place.brigade(&format!("train --config tiny.toml {SET} {line} --out {name}")));
        place.read(&format!("{name}/adapter_model.safetensors"))
    };
    let alone = adapted("alone", "--nproc-per-node 1");
    assert!(adapted("mesh", "--nproc-per-node 4 --pp 2 --dp 2 --zero 3 --recompute all") == alone);
    let config = read(&place, "alone/adapter_config.json");
    assert_eq!(
        (&config["fan_in_fan_out"], &config["task_type"], &config["modules_to_save"]),
        (&json!(true), &json!("SEQ_CLS"), &json!(["score"]))
    );
    let labels = read(&place, "alone/labels.json");
    // The token that fills rows is that of the tokenizer.
    assert_eq!(
        (&labels["id2label"], &labels["pad_token_id"]),
        (&json!({"0": "blame", "1": "praise"}), &json!(0))
    );
    let found = evaluated(&place, "reviews.jsonl");
    assert!(found["accuracy"].as_f64().unwrap() > 0.9, "{found}");

    place.succeed(&mut place.brigade("export alone --out merged --merge-lora"));
    let config = read(&place, "merged/config.json");
    assert_eq!(
        (&config["architectures"], &config["pad_token_id"]),
        (&json!(["GPT2ForSequenceClassification"]), &json!(0))
    );
    std::fs::rename(place.path("alone"), place.path("adapters")).unwrap();
    std::fs::rename(place.path("merged"), place.path("alone")).unwrap();
    let merged = evaluated(&place, "reviews.jsonl");
    let difference = merged["loss"].as_f64().unwrap() - found["loss"].as_f64().unwrap();
    assert!(difference.abs() < 1e-5 && merged["accuracy"] == found["accuracy"], "{found} and {merged}");
    // They go on from where they were: steps too small for fp32 change nothing.
    let more = "--model adapters --data reviews.jsonl --nproc-per-node 2 --steps 1 --set optimizer.learning_rate=1e-30";
    place.succeed(&mut place.brigade(&format!("train --config tiny.toml {SET} {more} --out more")));
    assert!(place.read("more/adapter_model.safetensors") == alone);
    // `peft` writes no labels.
    std::fs::remove_file(place.path("adapters/labels.json")).unwrap();
    let line = format!("evaluate --model adapters --data reviews.jsonl --nproc-per-node 1 --json {SET}");
    let line = format!("{line} --set task.labels=['blame','praise']");
    let done = place.succeed(&mut place.brigade(&line));
    let again: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(again["accuracy"], found["accuracy"], "{found} and {again}");
}

#[test]
fn adapters_with_a_part_of_a_head_need_a_model_with_the_rest() {
    let place = with_bert();
    let base = "--task masked-lm --data reviews.jsonl --model bert --set model.pretrained=false";
    train(&place, "base", &format!("{base} --nproc-per-node 1 --steps 1"));
    let line = format!("--task classification --data reviews.jsonl --model base --lora-rank 2 {SET}");
    let line = format!("train --config tiny.toml {line} --nproc-per-node 1 --steps 1 --out adapters");
    place.succeed(&mut place.brigade(&line));
    let path = place.path("adapters/adapter_model.safetensors");
    let mut tensors = safetensors::read(&path);
    for name in ["weight", "bias"] {
        assert!(tensors.remove(&format!("base_model.model.bert.pooler.dense.{name}")).is_some());
    }
    safetensors::write(&path, &tensors);
    let line = format!("evaluate --model adapters --data reviews.jsonl --nproc-per-node 1 {SET}");
    let refused = place.run(&mut place.brigade(&line));
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    for said in ["a part of a classifier's head", "`bert.pooler.dense.weight`", "`modules_to_save`"] {
        assert!(refused.err.contains(said), "{said}: {}", refused.err);
    }
}
