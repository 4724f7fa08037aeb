//! Encoders that predict masked tokens, and their means, on padded rows.

use brigade_core::Batch;
use brigade_hf::Task;
use brigade_models::encoder::{self, Encoder};
use brigade_models::{Logits, Tokens, WeightsMapping};
use burn::tensor::{Device, Int, Tensor};

use crate::reference::{LENGTH, Reference, follows, lora, padded, targets};

/// A fixture, and its model with the fixture's adapters, if it has any.
fn load(case: &str, task: Task) -> (Reference, Encoder) {
    let mut reference = Reference::load("encoders", case, |_| WeightsMapping::default());
    let model = Encoder::from_config(&reference.config, task, Some(LENGTH)).unwrap();
    let model = model.with_adapters(&lora(&reference)).unwrap();
    reference.mapping = model.mapping();
    (reference, model)
}

fn masked_tokens(case: &str) {
    let (reference, encoder) = load(case, Task::MaskedLanguageModel);
    let model = |device: &Device| {
        let chain = encoder::masked_lm(encoder.config(), encoder.adapters(), 0, device);
        encoder::with_masked_tokens(reference.with_weights(chain))
    };
    let batch = |index: usize, device: &Device| {
        let (target, count) = targets(&reference, index, device);
        Batch::new(padded(&reference, index, device), target, count)
    };
    let mut lengths = reference.rows("ids").unwrap().into_iter().map(|row| row.len());
    let logits = |logits: Logits| logits.rows(0, lengths.next().unwrap());
    follows(&reference, model, batch, logits);
}

#[test]
fn bert_predicts_masked_tokens() {
    masked_tokens("bert-masked");
}

#[test]
fn roberta_predicts_masked_tokens() {
    masked_tokens("roberta-masked");
    masked_tokens("roberta-activation");
}

#[test]
fn bert_predicts_masked_tokens_of_packed_documents() {
    masked_tokens("bert-packed");
}

#[test]
fn roberta_predicts_masked_tokens_of_packed_documents() {
    masked_tokens("roberta-packed");
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
