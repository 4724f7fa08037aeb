//! Encoders, trained for the tasks of `--task`.

use serde_json::{Value, json};

use crate::place::Place;
use crate::safetensors::{read, write};

const WORDS: [&str; 10] =
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "fine", "awful", "film"];

/// A small BERT without weights in `bert/`, whose tokens are words, and reviews with labels.
pub(super) fn with_bert() -> Place {
    let place = Place::new();
    std::fs::create_dir(place.path("bert")).unwrap();
    let write = |name: &str, value: Value| std::fs::write(place.path(name), value.to_string()).unwrap();
    write(
        "bert/config.json",
        json!({
            "model_type": "bert", "architectures": ["BertModel"], "vocab_size": 12, "hidden_size": 16,
            "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 32,
            "initializer_range": 0.2,
        }),
    );
    let special = |id: usize| {
        json!({"id": id, "content": WORDS[id], "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let around = |id: usize| json!({"id": WORDS[id], "ids": [id], "tokens": [WORDS[id]]});
    let vocabulary: serde_json::Map<String, Value> =
        WORDS.iter().enumerate().map(|(id, word)| ((*word).to_owned(), json!(id))).collect();
    let piece = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
    let text = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
    let [second, last] = [
        json!({"Sequence": {"id": "B", "type_id": 1}}),
        json!({"SpecialToken": {"id": "[SEP]", "type_id": 1}}),
    ];
    write(
        "bert/tokenizer.json",
        json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": (0..5).map(special).collect::<Vec<_>>(), "normalizer": null,
            "pre_tokenizer": {"type": "Whitespace"}, "decoder": null,
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [piece("[CLS]"), text("A"), piece("[SEP]")],
                "pair": [piece("[CLS]"), text("A"), piece("[SEP]"), second, last],
                "special_tokens": {"[CLS]": around(2), "[SEP]": around(3)},
            },
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
        }),
    );
    let mut reviews = String::new();
    for number in 0..60 {
        let (word, label) = [("good", "praise"), ("bad", "blame"), ("fine", "praise")][number % 3];
        let (text, stars) = (
            format!("{}{word} film", "film ".repeat(number % 4)),
            if label == "praise" { 1.0 } else { -1.0 },
        );
        reviews.push_str(&format!("{}\n", json!({"text": text, "label": label, "stars": stars})));
    }
    std::fs::write(place.path("reviews.jsonl"), &reviews).unwrap();
    std::fs::write(
        place.path("stars.jsonl"),
        reviews.replace("\"label\"", "\"name\"").replace("\"stars\"", "\"label\""),
    )
    .unwrap();
    place
}

pub(super) const SET: &str = "--set model.sequence_length=8 --set data.tokenizer=bert/tokenizer.json --set optimizer.learning_rate=1e-2 \
                   --set data.validation_fraction=0.2 --set train.validation_samples=0 --set data.pad_to_multiple=2";

/// The file of weights of a run of a task on `model`.
pub(super) fn train(place: &Place, name: &str, line: &str) -> Vec<u8> {
    place.succeed(&mut place.brigade(&format!("train --config tiny.toml {SET} {line} --out {name}")));
    place.read(&format!("{name}/model.safetensors"))
}

#[test]
fn long_texts_with_labels_are_cut_and_counted_or_refused() {
    let place = with_bert();
    let line = format!(
        "train --config tiny.toml {SET} --set model.sequence_length=6 --model bert --set model.pretrained=false --task classification --data reviews.jsonl \
         --nproc-per-node 1 --steps 1"
    );
    // A quarter of the texts has five words, and two tokens around them.
    for out in ["cut", "again"] {
        let done = place.succeed(&mut place.brigade(&format!("{line} --out {out}")));
        let said = "15 of 60 documents are longer than model.sequence_length = 6 and were cut (15 tokens dropped) (data.long)";
        assert!(done.err.contains(said), "{}", done.err);
    }
    for (long, said) in [
        ("refuse", "it has 7 tokens, more than the 6 of a row (model.sequence_length)"),
        ("split", "data.long = \"split\" is not possible for texts with labels"),
    ] {
        let done = place.run(&mut place.brigade(&format!("{line} --set data.long={long} --out {long}")));
        assert!(done.code == Some(2) && done.err.contains(said), "{:?}: {}", done.code, done.err);
    }
}

#[test]
fn labels_are_found_once_and_not_in_a_dry_run() {
    let place = with_bert();
    let line = format!(
        "train --config tiny.toml {SET} --model bert --set model.pretrained=false --task classification --steps 1 --nproc-per-node 2"
    );
    let done = place.run(&mut place.brigade(&format!("{line} --out a")));
    let said = "task.name (--task) = \"classification\" needs records, each with a `text` and a `label`; give them with --data";
    assert!(done.code == Some(2) && done.err.contains(said), "{:?}: {}", done.code, done.err);
    for data in ["", "--data reviews.jsonl"] {
        let done = place.succeed(&mut place.brigade(&format!("{line} {data} --out a --dry-run")));
        assert!(done.err.contains("the labels are not known without reading the data"), "{}", done.err);
        assert!(done.out.contains("labels = []"), "{}", done.out);
    }
    assert!(!place.path("cache").exists());
    place.succeed(&mut place.brigade(&format!("{line} --data reviews.jsonl --out a")));
    let entries = std::fs::read_dir(place.path("cache")).unwrap().map(|entry| entry.unwrap().path());
    let lists: Vec<_> = entries.map(|entry| entry.join("list.json")).filter(|list| list.exists()).collect();
    let list: Value = serde_json::from_slice(&std::fs::read(&lists[0]).unwrap()).unwrap();
    assert_eq!((lists.len(), &list["list"]), (1, &json!(["blame", "praise"])));
}

/// Trains alone, on a mesh, and on another one after a resume.
fn same_everywhere(place: &Place, line: &str) {
    let line = format!("{line} --model bert --set model.pretrained=false --checkpoint-every 40");
    let alone = train(place, "alone", &format!("{line} --nproc-per-node 1 --steps 80"));
    let mesh = "--nproc-per-node 4 --pp 2 --dp 2 --zero 3 --recompute all --steps 80";
    assert!(train(place, "mesh", &format!("{line} {mesh}")) == alone);
    let halves = format!("{line} --set schedule.name=constant");
    let whole = train(place, "whole", &format!("{halves} --nproc-per-node 1 --steps 80"));
    train(place, "halves", &format!("{halves} --nproc-per-node 2 --zero 1 --steps 40"));
    assert!(
        train(
            place,
            "halves",
            &format!("{halves} --nproc-per-node 2 --dp 1 --pp 2 --steps 80 --resume auto")
        ) == whole
    );
}

fn last(place: &Place, run: &str) -> Value {
    place.metrics(run).into_iter().rev().find(|record| record["validation_loss"].is_number()).unwrap()
}

/// What `brigade evaluate` finds of a run of `same_everywhere`: the same on every mesh.
pub(super) fn evaluated(place: &Place, data: &str) -> Value {
    let found = |mesh: &str| {
        let set = "--set data.tokenizer=bert/tokenizer.json --set data.pad_to_multiple=2 --sequence-length 8";
        let line = format!("evaluate --model alone --data {data} {set} --micro-batch-size 2 --json {mesh}");
        place.succeed(&mut place.brigade(&line)).out
    };
    let alone = found("--nproc-per-node 1");
    assert_eq!(found("--nproc-per-node 4 --pp 2 --zero 3"), alone);
    serde_json::from_str(&alone).unwrap()
}

/// Each text has a label for its kind and one for that of its pair, which only the order tells apart.
#[test]
fn pairs_of_texts_have_any_number_of_labels() {
    let place = with_bert();
    let mut records = String::new();
    for number in 0..64 {
        let words = [number % 2, number / 2 % 2].map(|good| ["bad", "good"][good]);
        let labels: Vec<&str> = ["first", "second"]
            .into_iter()
            .zip(words)
            .filter(|(_, word)| *word == "good")
            .map(|(label, _)| label)
            .collect();
        let (text, pair) =
            (format!("film {}", words[0]), format!("{}{}", "film ".repeat(number % 3), words[1]));
        records.push_str(&format!("{}\n", json!({"text": text, "text_pair": pair, "label": labels})));
    }
    std::fs::write(place.path("pairs.jsonl"), &records).unwrap();
    same_everywhere(&place, "--task multi-label-classification --data pairs.jsonl");
    let config: Value = serde_json::from_str(&place.text("alone/config.json")).unwrap();
    assert_eq!(config["problem_type"], json!("multi_label_classification"));
    assert_eq!(config["id2label"], json!({"0": "first", "1": "second"}));
    let found = &last(&place, "alone")["validation_metrics"];
    assert!(["accuracy", "macro_f1"].iter().all(|name| found[*name].as_f64().unwrap() > 0.9), "{found}");

    let found = evaluated(&place, "pairs.jsonl");
    assert!(found["macro_f1"].as_f64().unwrap() > 0.9, "{found}");

    std::fs::write(place.path("odd.jsonl"), records.replace("\"label\":[]", "\"label\":\"first\"")).unwrap();
    let line = format!(
        "train --config tiny.toml {SET} --model bert --set model.pretrained=false --data odd.jsonl --out odd"
    );
    let done = place.run(&mut place.brigade(&format!("{line} --task multi-label-classification")));
    assert!(
        done.code != Some(0) && done.err.contains("must be a list of names or whole numbers"),
        "{}",
        done.err
    );
}

#[test]
fn texts_are_told_apart_by_their_labels() {
    let place = with_bert();
    same_everywhere(&place, "--task classification --data reviews.jsonl");
    let config: Value = serde_json::from_str(&place.text("alone/config.json")).unwrap();
    assert_eq!(config["architectures"], json!(["BertForSequenceClassification"]));
    assert_eq!(config["id2label"], json!({"0": "blame", "1": "praise"}));
    assert_eq!(config["label2id"], json!({"blame": 0, "praise": 1}));
    assert_eq!(config["problem_type"], json!("single_label_classification"));

    let found = &last(&place, "alone")["validation_metrics"];
    let value = |name: &str| found[name].as_f64().unwrap();
    assert!(value("accuracy") > 0.9 && value("macro_f1") > 0.9, "{found}");
    assert!((value("texts/blame") + value("texts/praise") - 1.0).abs() < 1e-6, "{found}");

    let found = evaluated(&place, "reviews.jsonl");
    assert_eq!((&found["samples"], found.get("perplexity")), (&json!(60), None));
    assert!((found["texts/blame"].as_f64().unwrap() - 1.0 / 3.0).abs() < 1e-6, "{found}");
    assert!(
        found["accuracy"].as_f64().unwrap() > 0.9 && found["macro_f1"].as_f64().unwrap() > 0.9,
        "{found}"
    );

    // Its labels, and those alone, are known where it goes on.
    let more =
        "--model alone --data reviews.jsonl --nproc-per-node 2 --steps 1 --set optimizer.learning_rate=1e-30";
    train(&place, "more", more);
    assert_eq!(place.text("more/config.json"), place.text("alone/config.json"));
    assert_eq!(last(&place, "more")["validation_loss"], last(&place, "alone")["validation_loss"]);
    std::fs::write(place.path("odd.jsonl"), "{\"text\": \"film\", \"label\": \"odd\"}\n").unwrap();
    for (line, said) in [
        (
            "--model alone --data odd.jsonl",
            r#"odd.jsonl:1: the model has no label "odd"; its labels are "blame", "praise""#,
        ),
        ("--model bert --data reviews.jsonl", "is a `bert` without a head; say with --task"),
        ("--model bert --task causal-lm --data reviews.jsonl", "`bert` does not predict the next token"),
        ("--model bert --task classification --data text", "there is no column `label`"),
        ("--task classification --data reviews.jsonl", "task.name (--task) is for existing models"),
        ("--model bert --task regression --data reviews.jsonl", "must be a number (--task regression)"),
    ] {
        let line = format!(
            "train --config tiny.toml {SET} --set model.pretrained=false {line} --nproc-per-node 1 --out odd"
        );
        let refused = place.run(&mut place.brigade(&line));
        assert!(refused.code != Some(0) && refused.err.contains(said), "{line}: {}", refused.err);
    }
}

#[test]
fn numbers_of_texts_are_predicted() {
    let place = with_bert();
    same_everywhere(&place, "--task regression --data stars.jsonl");
    let config: Value = serde_json::from_str(&place.text("alone/config.json")).unwrap();
    assert_eq!(
        (&config["problem_type"], &config["id2label"]),
        (&json!("regression"), &json!({"0": "LABEL_0"}))
    );
    let first =
        place.metrics("alone").into_iter().find(|record| record["validation_loss"].is_number()).unwrap();
    let error = |record: &Value| record["validation_metrics"]["mean_absolute_error"].as_f64().unwrap();
    let (first, last) = (error(&first), error(&last(&place, "alone")));
    assert!(last < 0.8 * first, "from {first} to {last}");
    assert!(evaluated(&place, "stars.jsonl")["mean_absolute_error"].as_f64().unwrap() < first);

    // A label that has a name keeps it.
    let mut named = config;
    (named["id2label"], named["label2id"]) = (json!({"0": "stars"}), json!({"stars": 0}));
    std::fs::write(place.path("alone/config.json"), named.to_string()).unwrap();
    let line = format!(
        "train --config tiny.toml {SET} --model alone --data stars.jsonl --nproc-per-node 1 --steps 1 --out more"
    );
    place.succeed(&mut place.brigade(&line));
    let more: Value = serde_json::from_str(&place.text("more/config.json")).unwrap();
    assert_eq!((&more["id2label"], &more["label2id"]), (&named["id2label"], &named["label2id"]));
}

#[test]
fn masked_tokens_are_predicted() {
    let place = with_bert();
    same_everywhere(&place, "--task masked-lm --data reviews.jsonl --set task.mask_probability=0.4");
    let config: Value = serde_json::from_str(&place.text("alone/config.json")).unwrap();
    assert_eq!(config["architectures"], json!(["BertForMaskedLM"]));
    let records = place.metrics("alone");
    let loss = |step: usize| records[step]["loss"].as_f64().unwrap();
    assert!(loss(19) < loss(0), "from {} to {}", loss(0), loss(19));
    // Some tokens are masked, the same ones each time.
    let found = evaluated(&place, "reviews.jsonl --set task.mask_probability=0.4");
    assert_eq!(found["perplexity"].as_f64().unwrap(), found["loss"].as_f64().unwrap().exp());

    // A new head is said, and the weights before it are those that there were.
    let line = format!(
        "train --config tiny.toml {SET} --model alone --task classification --data reviews.jsonl --nproc-per-node 1 --out labels"
    );
    let said = place.succeed(&mut place.brigade(&line));
    assert!(said.err.contains("has no weights for head.dense.bias"), "{}", said.err);
    let line = format!("evaluate --model alone --data reviews.jsonl --set task.name=classification {SET}");
    let refused = place.run(&mut place.brigade(&line));
    assert!(refused.err.contains("has no weights for head.dense.bias"), "{}", refused.err);
}

/// Adapters of an encoder, and the head beside them: the same on every mesh and after a resume, read back, evaluated, and merged.
#[test]
fn adapters_of_an_encoder_learn_labels_with_their_head() {
    let place = with_bert();
    let base = "--task masked-lm --data reviews.jsonl --model bert --set model.pretrained=false";
    train(&place, "base", &format!("{base} --nproc-per-node 1 --steps 5"));
    let adapted = |name: &str, line: &str| {
        let lora = "--set lora.dropout=0.1 --set lora.targets=[\"query\",\"dense\"] --lora-rank 2";
        let line = format!(
            "train --config tiny.toml {SET} --task classification --data reviews.jsonl --model base {lora} --set schedule.name=constant \
             --checkpoint-every 40 {line} --out {name}"
        );
        place.succeed(&mut place.brigade(&line));
        place.read(&format!("{name}/adapter_model.safetensors"))
    };
    let alone = adapted("alone", "--nproc-per-node 1 --steps 80");
    assert!(adapted("mesh", "--nproc-per-node 4 --pp 2 --dp 2 --zero 3 --recompute all --steps 80") == alone);
    adapted("halves", "--nproc-per-node 2 --zero 1 --steps 40");
    assert!(adapted("halves", "--nproc-per-node 2 --dp 1 --pp 2 --steps 80 --resume auto") == alone);

    let config: Value = serde_json::from_str(&place.text("alone/adapter_config.json")).unwrap();
    assert_eq!(
        (&config["task_type"], &config["modules_to_save"]),
        (&json!("SEQ_CLS"), &json!(["classifier", "pooler"]))
    );
    // `dense` is in the head as well, which has no adapters.
    assert_eq!(config["target_modules"].as_array().unwrap().len(), 2 * 4);
    let labels: Value = serde_json::from_str(&place.text("alone/labels.json")).unwrap();
    assert_eq!(labels["id2label"], json!({"0": "blame", "1": "praise"}));
    assert!(!place.path("alone/config.json").exists());

    let found = evaluated(&place, "reviews.jsonl");
    assert!(found["accuracy"].as_f64().unwrap() > 0.9, "{found}");
    place.succeed(&mut place.brigade("export alone --out merged --merge-lora"));
    let config: Value = serde_json::from_str(&place.text("merged/config.json")).unwrap();
    assert_eq!(config["architectures"], json!(["BertForSequenceClassification"]));
    std::fs::rename(place.path("alone"), place.path("adapters")).unwrap();
    std::fs::rename(place.path("merged"), place.path("alone")).unwrap();
    let merged = evaluated(&place, "reviews.jsonl");
    let difference = merged["loss"].as_f64().unwrap() - found["loss"].as_f64().unwrap();
    assert!(difference.abs() < 1e-5 && merged["accuracy"] == found["accuracy"], "{found} and {merged}");
    // They go on from where they were: steps too small for fp32 change nothing.
    let more = "--model adapters --data reviews.jsonl --nproc-per-node 2 --steps 1 --set optimizer.learning_rate=1e-30";
    place.succeed(&mut place.brigade(&format!("train --config tiny.toml {SET} {more} --out more")));
    assert!(place.read("more/adapter_model.safetensors") == alone);
    assert_eq!(place.text("more/labels.json"), place.text("adapters/labels.json"));
    // Masked tokens have no head of their own to learn.
    let line = "--task masked-lm --data reviews.jsonl --model base --lora-rank 2 --nproc-per-node 1 --steps 2 --out tokens";
    place.succeed(&mut place.brigade(&format!("train --config tiny.toml {SET} {line}")));
    let config: Value = serde_json::from_str(&place.text("tokens/adapter_config.json")).unwrap();
    assert_eq!((&config["task_type"], &config["modules_to_save"]), (&Value::Null, &Value::Null));
    assert_eq!(config["target_modules"], json!(["query", "value"]));
    assert!(!place.path("tokens/labels.json").exists());
}

/// Adapters do not train the head that predicts tokens, so the model must have one. What the model was for before does not matter.
#[test]
fn adapters_for_masked_tokens_need_a_head_and_are_used_with_it() {
    let place = with_bert();
    let base = "--task masked-lm --data reviews.jsonl --model bert --set model.pretrained=false";
    train(&place, "base", &format!("{base} --nproc-per-node 1 --steps 5"));
    let (weights, config) = (place.path("base/model.safetensors"), place.text("base/config.json"));
    let is_class = |class: &str| {
        let changed = config.replace("BertForMaskedLM", class);
        assert_ne!(changed, config);
        std::fs::write(place.path("base/config.json"), changed).unwrap();
    };
    let lora = "--task masked-lm --data reviews.jsonl --model base --lora-rank 2 --nproc-per-node 1 --steps 20 --out alone";
    let command = format!("train --config tiny.toml {SET} {lora}");

    let whole = read(&weights);
    let mut headless = whole.clone();
    headless.retain(|name, _| !name.starts_with("cls."));
    write(&weights, &headless);
    is_class("BertModel");
    let refused = place.run(&mut place.brigade(&command));
    let said = ["lora.rank (--lora-rank) = 2", "`cls.predictions.bias`", "train the whole model first"];
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    assert!(said.iter().all(|part| refused.err.contains(part)), "{}", refused.err);
    assert!(!place.path("alone").exists());

    write(&weights, &whole);
    is_class("BertForPreTraining");
    place.succeed(&mut place.brigade(&command));
    let found = evaluated(&place, "reviews.jsonl");
    place.succeed(&mut place.brigade("export alone --out merged --merge-lora"));
    let merged: Value = serde_json::from_str(&place.text("merged/config.json")).unwrap();
    assert_eq!(merged["architectures"], json!(["BertForMaskedLM"]));
    std::fs::rename(place.path("alone"), place.path("adapters")).unwrap();
    std::fs::rename(place.path("merged"), place.path("alone")).unwrap();
    let merged = evaluated(&place, "reviews.jsonl");
    let difference = merged["loss"].as_f64().unwrap() - found["loss"].as_f64().unwrap();
    assert!(difference.abs() < 1e-5, "{found} and {merged}");
}
