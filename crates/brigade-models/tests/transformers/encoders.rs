//! Encoders with the heads of their tasks, on padded rows.

use brigade_core::Batch;
use brigade_hf::Task;
use brigade_models::encoder::{self, Encoder};
use brigade_models::gpt::Targets;
use brigade_models::{Logits, Tokens, WeightsMapping};
use burn::tensor::{Device, Int, Tensor};

use crate::reference::{Reference, documents, follows, lora, row};

/// The length of all rows.
const LENGTH: usize = 15;

/// A fixture, and its model with the fixture's adapters, if it has any.
fn load(case: &str, task: Task) -> (Reference, Encoder) {
    let mut reference = Reference::load("encoders", case, |_| WeightsMapping::default());
    let model = Encoder::from_config(&reference.config, task, Some(LENGTH)).unwrap();
    let model = model.with_adapters(&lora(&reference)).unwrap();
    reference.mapping = model.mapping();
    (reference, model)
}

/// A row, padded by tokens that see themselves alone.
fn padded(reference: &Reference, index: usize, device: &Device) -> Tokens {
    let with = |mut numbers: Vec<i64>, value| {
        numbers.resize(LENGTH, value);
        row(&numbers, device)
    };
    let ids = reference.rows("ids").unwrap().swap_remove(index);
    let mut lengths = vec![ids.len() as i64];
    lengths.resize(1 + LENGTH - ids.len(), 1);
    let documents = (ids.len() < LENGTH).then(|| documents(&lengths, device));
    let types = reference.rows("types").map(|mut types| with(types.swap_remove(index), 0));
    Tokens { ids: with(ids, 0), documents, types }
}

fn masked_tokens(case: &str) {
    let (reference, encoder) = load(case, Task::MaskedLanguageModel);
    let model = |device: &Device| {
        let chain = encoder::masked_lm(encoder.config(), encoder.adapters(), 0, device);
        encoder::with_masked_tokens(reference.with_weights(chain))
    };
    let batch = |index: usize, device: &Device| {
        let mut targets = reference.rows("targets").unwrap().swap_remove(index);
        targets.resize(LENGTH, -100);
        let valid: Vec<f32> = targets.iter().map(|target| f32::from(u8::from(*target >= 0))).collect();
        let tokens: Vec<i64> = targets.iter().map(|target| (*target).max(0)).collect();
        let target = Targets {
            tokens: row(&tokens, device),
            mask: Some(Tensor::<1>::from_floats(&valid[..], device).reshape([1, LENGTH])),
        };
        let count = valid.iter().filter(|valid| **valid > 0.0).count();
        Batch::new(padded(&reference, index, device), target, count)
    };
    let mut lengths = reference.rows("ids").unwrap().into_iter().map(|row| row.len());
    let logits = |logits: Logits| logits.rows(0, lengths.next().unwrap());
    follows(&reference, model, batch, logits);
}

fn labels(case: &str) {
    let (reference, encoder) = load(case, Task::SequenceClassification);
    let model = |device: &Device| {
        let chain = encoder::sequence_classification(encoder.config(), encoder.adapters(), 0, device);
        encoder::with_labels(reference.with_weights(chain), &encoder.config().labels.names)
    };
    let batch = |index: usize, device: &Device| {
        let label = reference.json["targets"][index].as_i64().unwrap();
        let target = Tensor::from_ints([label as i32], device);
        Batch::new(padded(&reference, index, device), target, 1)
    };
    follows(&reference, model, batch, |logits| logits);
}

fn label_sets(case: &str) {
    let (reference, encoder) = load(case, Task::SequenceClassification);
    let model = |device: &Device| {
        let chain = encoder::sequence_classification(encoder.config(), encoder.adapters(), 0, device);
        encoder::with_label_sets(reference.with_weights(chain), &encoder.config().labels.names)
    };
    let batch = |index: usize, device: &Device| {
        let labels: Vec<f32> = serde_json::from_value(reference.json["targets"][index].clone()).unwrap();
        let target = Tensor::<1>::from_floats(&labels[..], device).unsqueeze::<2>();
        Batch::new(padded(&reference, index, device), target, labels.len())
    };
    follows(&reference, model, batch, |logits| logits);
}

fn numbers(case: &str) {
    let (reference, encoder) = load(case, Task::SequenceClassification);
    let model = |device: &Device| {
        let chain = encoder::sequence_classification(encoder.config(), encoder.adapters(), 0, device);
        encoder::with_number(reference.with_weights(chain))
    };
    let batch = |index: usize, device: &Device| {
        let number = reference.json["targets"][index].as_f64().unwrap() as f32;
        let target = Tensor::from_floats([number], device);
        Batch::new(padded(&reference, index, device), target, 1)
    };
    follows(&reference, model, batch, |logits| logits);
}

#[test]
fn bert_predicts_masked_tokens() {
    masked_tokens("bert-masked");
}

#[test]
fn roberta_predicts_masked_tokens() {
    masked_tokens("roberta-masked");
}

#[test]
fn bert_classifies() {
    labels("bert-classification");
}

#[test]
fn roberta_classifies() {
    labels("roberta-classification");
}

#[test]
fn bert_classifies_with_adapters() {
    labels("bert-lora");
}

#[test]
fn roberta_classifies_with_adapters_in_all_layers() {
    labels("roberta-lora");
}

#[test]
fn bert_finds_all_labels_of_a_text() {
    label_sets("bert-label-sets");
}

#[test]
fn bert_predicts_numbers() {
    numbers("bert-regression");
}

#[test]
fn roberta_predicts_numbers() {
    numbers("roberta-regression");
}

/// Encodings of a row do not depend on its padding, and their mean is that of the row's own tokens.
#[test]
fn means_are_of_the_text_alone() {
    let (reference, encoder) = load("bert-classification", Task::SequenceClassification);
    let device = Device::flex();
    let mut chain = reference.with_weights(encoder::sentences(encoder.config(), true, 0, &device));
    chain.initialize(0).unwrap();
    let chain = chain.valid();
    let row_of = |tokens: Tokens| chain.predict(tokens).unwrap().into_data().try_to_vec::<f32>().unwrap();
    let padded = padded(&reference, 1, &device);
    let length = reference.rows("ids").unwrap()[1].len();
    let part = |tensor: Tensor<2, Int>| tensor.slice([0..1, 0..length]);
    let alone =
        Tokens { ids: part(padded.ids.clone()), documents: None, types: padded.types.clone().map(part) };
    let (a, b) = (row_of(padded), row_of(alone));
    assert_eq!(a.len(), encoder.config().hidden_size);
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-6), "{a:?} and {b:?}");
    let length: f32 = a.iter().map(|x| x * x).sum();
    assert!((length - 1.0).abs() < 1e-5);
}
