//! Tokens as a [`Dataset`].

use brigade_core::Batch;
use brigade_data::{Sequence, TokenSequences};
use brigade_models::Tokens;
use brigade_models::gpt::Targets;
use burn::tensor::{Device, Tensor, TensorData};

use super::rows::{inputs, pad, token_tensor};
use crate::dataset::Dataset;

/// Rows of tokens to train a language model on: inputs `[batch, sequence]`, with the documents that share a row where they are kept apart, and as
/// target of each token the next one (or the same token, for masked models). The rows of a micro-batch are as long as the longest of them.
#[derive(Debug, Clone)]
pub struct TokenDataset(TokenSequences);

impl TokenDataset {
    /// The rows as samples.
    pub fn new(sequences: TokenSequences) -> Self {
        Self(sequences)
    }
}

impl Dataset for TokenDataset {
    type Item = Sequence;
    type Input = Tokens;
    type Target = Targets;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize) -> anyhow::Result<Sequence> {
        Ok(self.0.get(index)?)
    }

    fn batch(&self, mut items: Vec<Sequence>, device: &Device) -> Batch<Tokens, Targets> {
        let shape = pad(&mut items, self.0.end_of_text());
        let valid: Vec<bool> = items.iter().flat_map(|item| item.valid.iter().copied()).collect();
        let valid_targets = valid.iter().filter(|valid| **valid).count();
        let mask = (valid_targets < valid.len()).then(|| {
            let mask: Vec<f32> = valid.iter().map(|valid| f32::from(u8::from(*valid))).collect();
            Tensor::from_data(TensorData::new(mask, shape), device)
        });
        Batch::new(
            inputs(&items, shape, device),
            Targets {
                tokens: token_tensor(items.iter().flat_map(|item| &item.targets), shape, device),
                mask,
            },
            valid_targets,
        )
    }

    fn targets_per_sample(&self) -> usize {
        self.0.sequence_length()
    }

    fn unit(&self) -> &str {
        "tokens"
    }
}
