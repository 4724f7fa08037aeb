//! Models that classify, and decoders that predict tokens, on padded rows.

use brigade_core::Batch;
use brigade_models::classifier::{SequenceClassifier, with_label_sets, with_labels, with_number};
use brigade_models::gpt::{ACCURACY, cross_entropy};
use brigade_models::{CausalLm, Logits, WeightsMapping};
use burn::tensor::{Device, Tensor};

use crate::reference::{LENGTH, Reference, follows, lora, padded, targets};

/// A fixture, and its model with the fixture's adapters, if it has any.
fn load(folder: &str, case: &str) -> (Reference, SequenceClassifier) {
    let mut reference = Reference::load(folder, case, |_| WeightsMapping::default());
    let model = SequenceClassifier::from_config(&reference.config, Some(LENGTH)).unwrap();
    let model = model.with_adapters(&lora(&reference)).unwrap();
    reference.mapping = model.mapping();
    (reference, model)
}

fn labels(folder: &str, case: &str) {
    let (reference, model) = load(folder, case);
    let batch = |index: usize, device: &Device| {
        let label = reference.json["targets"][index].as_i64().unwrap();
        let target = Tensor::from_ints([label as i32], device);
        Batch::new(padded(&reference, index, device), target, 1)
    };
    let chain = |device: &Device| reference.with_weights(model.chain(0, device).unwrap());
    follows(&reference, |device| with_labels(chain(device), model.labels()), batch, |logits| logits);
}

fn label_sets(folder: &str, case: &str) {
    let (reference, model) = load(folder, case);
    let batch = |index: usize, device: &Device| {
        let labels: Vec<f32> = serde_json::from_value(reference.json["targets"][index].clone()).unwrap();
        let target = Tensor::<1>::from_floats(&labels[..], device).unsqueeze::<2>();
        Batch::new(padded(&reference, index, device), target, labels.len())
    };
    let chain = |device: &Device| reference.with_weights(model.chain(0, device).unwrap());
    follows(&reference, |device| with_label_sets(chain(device), model.labels()), batch, |logits| logits);
}

fn numbers(folder: &str, case: &str) {
    let (reference, model) = load(folder, case);
    let batch = |index: usize, device: &Device| {
        let number = reference.json["targets"][index].as_f64().unwrap() as f32;
        let target = Tensor::from_floats([number], device);
        Batch::new(padded(&reference, index, device), target, 1)
    };
    let chain = |device: &Device| reference.with_weights(model.chain(0, device).unwrap());
    follows(&reference, |device| with_number(chain(device)), batch, |logits| logits);
}

fn next_tokens(folder: &str, case: &str) {
    let mut reference = Reference::load(folder, case, |_| WeightsMapping::default());
    let model = CausalLm::from_config(&reference.config, None).unwrap();
    let model = model.with_adapters(&lora(&reference)).unwrap();
    reference.mapping = model.mapping();
    let batch = |index: usize, device: &Device| {
        let (target, count) = targets(&reference, index, device);
        Batch::new(padded(&reference, index, device), target, count)
    };
    let chain = |device: &Device| reference.with_weights(model.chain(0, device).unwrap());
    let mut lengths = reference.rows("ids").unwrap().into_iter().map(|row| row.len());
    let logits = |logits: Logits| logits.rows(0, lengths.next().unwrap());
    follows(&reference, |device| chain(device).loss_with_metrics([ACCURACY], cross_entropy), batch, logits);
}

macro_rules! cases {
    ($($test:ident: $of:ident($folder:literal, $case:literal),)*) => {
        $(#[test]
        fn $test() {
            $of($folder, $case);
        })*
    };
}

cases! {
    bert_classifies: labels("encoders", "bert-classification"),
    bert_classifies_with_adapters: labels("encoders", "bert-lora"),
    bert_finds_all_labels_of_a_text: label_sets("encoders", "bert-label-sets"),
    bert_predicts_numbers: numbers("encoders", "bert-regression"),
    roberta_classifies: labels("encoders", "roberta-classification"),
    roberta_classifies_with_adapters_in_all_layers: labels("encoders", "roberta-lora"),
    roberta_predicts_numbers: numbers("encoders", "roberta-regression"),
    llama_classifies: labels("classifiers", "llama"),
    llama_classifies_with_adapters: labels("classifiers", "llama-lora"),
    mistral_classifies_with_a_window: labels("classifiers", "mistral"),
    qwen2_predicts_numbers_though_its_language_model_is_tied: numbers("classifiers", "qwen2"),
    qwen3_finds_all_labels_of_a_text: label_sets("classifiers", "qwen3"),
    gemma2_classifies_by_logits_that_are_not_capped: labels("classifiers", "gemma2"),
    gemma3_classifies: labels("classifiers", "gemma3"),
    gpt2_classifies: labels("classifiers", "gpt2"),
    gpt2_classifies_with_adapters: labels("classifiers", "gpt2-lora"),
    gpt2_predicts_numbers: numbers("classifiers", "gpt2-regression"),
    gpt2_predicts_tokens: next_tokens("classifiers", "gpt2-tokens"),
    gpt2_with_a_head_of_its_own_predicts_tokens_of_packed_documents: next_tokens("classifiers", "gpt2-packed"),
    gpt2_with_adapters_in_all_layers_predicts_tokens: next_tokens("classifiers", "gpt2-tokens-lora"),
    llama_predicts_tokens_of_padded_rows: next_tokens("classifiers", "llama-tokens"),
    mistral_predicts_tokens_of_padded_rows: next_tokens("classifiers", "mistral-tokens"),
    qwen2_predicts_tokens_of_padded_rows: next_tokens("classifiers", "qwen2-tokens"),
    qwen3_predicts_tokens_of_padded_rows: next_tokens("classifiers", "qwen3-tokens"),
    gemma2_predicts_tokens_of_padded_rows: next_tokens("classifiers", "gemma2-tokens"),
    gemma3_predicts_tokens_of_padded_rows: next_tokens("classifiers", "gemma3-tokens"),
}
