//! A trained language model's scores for the next token.

use std::path::Path;

use anyhow::{Context, bail};
use brigade_core::Chain;
use brigade_models::gpt::{self, GptConfig};
use brigade_models::load_safetensors;
use burn::tensor::{Device, Int, Tensor};

use crate::dataset::ids;

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
