//! Tokens as a [`Dataset`].

use brigade_core::Batch;
use brigade_data::{Sequence, TokenSequences};
use brigade_models::Tokens;
use brigade_models::gpt::Targets;
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::dataset::Dataset;

/// Sequences of tokens to train a language model on: inputs `[batch, sequence]`, and as target of each token the next one.
#[derive(Debug, Clone)]
pub struct TokenDataset(TokenSequences);

impl TokenDataset {
    /// The sequences as samples.
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
        Ok(self.0.get(index))
    }

    fn batch(&self, items: Vec<Sequence>, device: &Device) -> Batch<Tokens, Targets> {
        let shape = [items.len(), self.0.sequence_length()];
        let valid: Vec<bool> = items.iter().flat_map(|item| item.valid.iter().copied()).collect();
        let valid_targets = valid.iter().filter(|valid| **valid).count();
        let mask = (valid_targets < valid.len()).then(|| {
            let mask: Vec<f32> = valid.iter().map(|valid| f32::from(u8::from(*valid))).collect();
            Tensor::from_data(TensorData::new(mask, shape), device)
        });
        Batch::new(
            token_tensor(items.iter().flat_map(|item| &item.inputs), shape, device).into(),
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

/// Tokens as a tensor.
pub(super) fn token_tensor<'a>(
    tokens: impl Iterator<Item = &'a u32>,
    shape: [usize; 2],
    device: &Device,
) -> Tensor<2, Int> {
    let tokens: Vec<i64> = tokens.map(|token| i64::from(*token)).collect();
    Tensor::from_data(TensorData::new(tokens, shape), device)
}
