//! Language models: tokens as a [`Dataset`], and a trained model's scores for the next token.

use std::path::Path;

use anyhow::{Context, bail};
use brigade_core::{Batch, Chain};
use brigade_data::{Sequence, TokenSequences};
use brigade_models::gpt::{self, GptConfig, Targets};
use brigade_models::load_safetensors;
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::dataset::Dataset;

/// Sequences of tokens to train a language model on: inputs `[batch, sequence]`, and for each the
/// token that follows it.
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
    type Input = Tensor<2, Int>;
    type Target = Targets;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize) -> anyhow::Result<Sequence> {
        Ok(self.0.get(index))
    }

    fn batch(&self, items: Vec<Sequence>, device: &Device) -> Batch<Tensor<2, Int>, Targets> {
        let shape = [items.len(), self.0.sequence_length()];
        let valid: Vec<bool> = items.iter().flat_map(|item| item.valid.iter().copied()).collect();
        let valid_targets = valid.iter().filter(|valid| **valid).count();
        let mask = (valid_targets < valid.len()).then(|| {
            let mask: Vec<f32> = valid.iter().map(|valid| f32::from(u8::from(*valid))).collect();
            Tensor::from_data(TensorData::new(mask, shape), device)
        });
        Batch {
            input: ids(items.iter().flat_map(|item| &item.inputs), shape, device),
            target: Targets { tokens: ids(items.iter().flat_map(|item| &item.targets), shape, device), mask },
            valid_targets,
        }
    }

    fn targets_per_sample(&self) -> usize {
        self.0.sequence_length()
    }
}

fn ids<'a>(tokens: impl Iterator<Item = &'a u32>, shape: [usize; 2], device: &Device) -> Tensor<2, Int> {
    let tokens: Vec<i64> = tokens.map(|token| i64::from(*token)).collect();
    Tensor::from_data(TensorData::new(tokens, shape), device)
}

/// A trained language model, for inference on this process's CPU.
pub struct LanguageModel {
    chain: Chain<Tensor<2, Int>, Tensor<2>>,
    context: usize,
    vocabulary: usize,
    device: Device,
}

impl LanguageModel {
    /// Reads the weights of a GPT-2 of this shape.
    ///
    /// # Errors
    /// If the shape is not a model, or the file is not whole or of another model.
    pub fn load(shape: &GptConfig, weights: &Path) -> anyhow::Result<Self> {
        let device = brigade_cpu::device();
        let mut chain = shape.chain(0, &device)?;
        load_safetensors(weights, &mut chain, &gpt::names())?;
        chain.initialize(0)?;
        let GptConfig { sequence_length: context, vocabulary, .. } = *shape;
        Ok(Self { chain: chain.valid(), context, vocabulary, device })
    }

    /// One score (logit) for each token of the vocabulary: how likely it comes after `tokens`, of
    /// which the model sees the last ones, as many as it has positions.
    ///
    /// # Errors
    /// If `tokens` is empty or holds one that is outside the model's vocabulary, or the device fails.
    pub fn scores(&self, tokens: &[u32]) -> anyhow::Result<Vec<f32>> {
        let seen = &tokens[tokens.len().saturating_sub(self.context)..];
        let last = seen.len().checked_sub(1).context("a model needs at least one token to go on from")?;
        if let Some(token) = seen.iter().find(|token| **token as usize >= self.vocabulary) {
            bail!("token {token} is outside the model's vocabulary of {}", self.vocabulary);
        }
        let logits = self.chain.predict(ids(seen.iter(), [1, seen.len()], &self.device))?;
        logits.narrow(0, last, 1).try_into_vec_as::<f32>().context("cannot read the model's scores")
    }
}
