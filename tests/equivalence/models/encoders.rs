//! BERT and RoBERTa, which predict masked tokens or labels, whole and with adapters: the bits of one process on any mesh, and after a resume on another
//! one.

use brigade::core::{Batch, EngineSettings, ParameterGroup};
use brigade::models::Tokens;
use brigade::models::classifier::SequenceClassifier;
use brigade::models::encoder::Encoder;
use brigade::models::gpt::Targets;
use brigade::models::{LoraConfig, is_adapter, is_adapter_or_head};
use brigade_hf::{Config, Task};
use serde_json::json;

use crate::case::ints;
use crate::models::classifiers::{LABELS, LENGTH, VOCABULARY, adapters, changed, changed_with, rows};

const FAMILIES: [&str; 2] = ["bert", "roberta"];

/// Three layers, with dropout.
fn config(family: &str) -> Config {
    let fields = json!({
        "model_type": family, "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_labels": LABELS, "pad_token_id": 1,
        // RoBERTa's positions begin after that of the padding.
        "max_position_embeddings": LENGTH + 2, "type_vocab_size": if family == "bert" { 2 } else { 1 },
        "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    });
    Config::from_fields("config.json", fields.as_object().unwrap()).unwrap()
}

/// Two rows; BERT's have two texts.
fn texts(family: &str, number: usize) -> Tokens {
    let types = (family == "bert").then(|| ints(number + 900, 2, [2, LENGTH]));
    Tokens { types, ..rows(number) }
}

fn with_head(family: &str) -> Encoder {
    Encoder::from_config(&config(family), Task::MaskedLanguageModel, Some(LENGTH)).unwrap()
}

/// Two rows with masked tokens, by the number of the micro-batch.
fn masked(family: &str, number: usize) -> Batch<Tokens, Targets> {
    let mask = ints(number + 700, 2, [2, LENGTH]);
    let count = mask.to_data().iter::<i64>().sum::<i64>() as usize;
    let tokens = ints(number + 500, VOCABULARY, [2, LENGTH]);
    Batch::new(texts(family, number), Targets { tokens, mask: Some(mask.float()) }, count)
}

#[test]
fn encoders_learn_masked_tokens() {
    for family in FAMILIES {
        let model = with_head(family);
        let batch = |number| masked(family, number);
        let (changed, all) = changed(|| model.masked_lm(7, &brigade_cpu::device()), batch);
        assert_eq!(changed, all, "{family}");
    }
}

#[test]
fn encoders_learn_masked_tokens_by_adapters() {
    for family in FAMILIES {
        let model = with_head(family).with_adapters(&adapters(&["query", "value"])).unwrap();
        let batch = |number| masked(family, number);
        let (changed, _) = changed(|| model.masked_lm(7, &brigade_cpu::device()), batch);
        assert!(changed.iter().all(|name| is_adapter(name)), "{family}: {changed:?}");
        assert_eq!(changed.len(), model.adapters().tensors().len(), "{family}");
    }
}

#[test]
fn encoders_are_frozen_by_patterns() {
    let patterns = ["embed*", "layers.0-1.*"];
    let frozen = |pattern: &str| ParameterGroup { frozen: true, ..ParameterGroup::matching(pattern) };
    let base = EngineSettings { groups: patterns.map(frozen).to_vec(), ..EngineSettings::default() };
    for family in FAMILIES {
        let model = with_head(family);
        let batch = |number| masked(family, number);
        let (changed, all) = changed_with(&base, || model.masked_lm(7, &brigade_cpu::device()), batch);
        let is_frozen = |name: &String| {
            ["embed", "layers.0.", "layers.1."].into_iter().any(|start| name.starts_with(start))
        };
        let trained: Vec<String> = all.iter().filter(|name| !is_frozen(name)).cloned().collect();
        assert!(trained.len() < all.len(), "{family}: {all:?}");
        assert_eq!(changed, trained, "{family}");
    }
}

#[test]
fn encoders_learn_labels() {
    let targets = ["query", "value"];
    for (family, lora) in FAMILIES
        .into_iter()
        .flat_map(|family| [(family, LoraConfig::default()), (family, adapters(&targets))])
    {
        let model = SequenceClassifier::from_config(&config(family), Some(LENGTH)).unwrap();
        let model = model.with_adapters(&lora).unwrap();
        let batch = |number| Batch::new(texts(family, number), ints(number + 500, LABELS, [2]), 2);
        let (changed, all) = changed(|| model.classification(7, &brigade_cpu::device()).unwrap(), batch);
        if lora.rank == 0 {
            assert_eq!(changed, all, "{family}");
        } else {
            assert!(changed.iter().all(|name| is_adapter_or_head(name)), "{family}: {changed:?}");
            assert!(changed.len() > model.adapters().tensors().len(), "{family}: {changed:?}");
        }
    }
}
