//! Inference with a trained language model.

use std::path::Path;

use anyhow::{Context, bail};
use brigade_core::Chain;
use brigade_models::{CausalLm, LoadWeights, Logits, Strict, Tokens, merge_adapters};
use burn::tensor::Device;

use super::rows::token_tensor;

/// A trained language model, for inference on this process's CPU.
pub struct LanguageModel {
    chain: Chain<Tokens, Logits>,
    context: usize,
    vocabulary: usize,
    device: Device,
}

impl LanguageModel {
    /// Reads a model's weights: each of `weights` is a file, or the index of several. The second has adapters, if the model has any.
    ///
    /// # Errors
    /// If there is no such model, or the file is damaged or of another model.
    pub fn load(model: &CausalLm, weights: &[&Path]) -> anyhow::Result<Self> {
        let device = brigade_cpu::device();
        let mut chain = model.chain(0, &device)?;
        chain.load_weights_of(weights, &model.mapping(), Strict::Parameters)?;
        chain.initialize(0)?;
        let (context, vocabulary) = (model.sequence_length(), model.vocabulary());
        Ok(Self { chain: chain.valid(), context, vocabulary, device })
    }

    /// Writes the weights of a model with its adapters added into a safetensors file in fp32. `weights`: as for [`load`](Self::load).
    ///
    /// # Errors
    /// As [`load`](Self::load), or if the file cannot be written.
    pub fn merge_adapters(model: &CausalLm, weights: &[&Path], to: &Path) -> anyhow::Result<()> {
        let chain = model.chain(0, &brigade_cpu::device())?;
        let scale = model.adapters().config().scale();
        Ok(merge_adapters(chain, scale, weights, &model.mapping(), to)?)
    }

    /// The logits of the token after `tokens`, one for each token of the vocabulary. The model sees as many of the last tokens as
    /// it has positions.
    ///
    /// # Errors
    /// If `tokens` is empty or has a token outside the model's vocabulary, or if the device fails.
    pub fn next_token_logits(&self, tokens: &[u32]) -> anyhow::Result<Vec<f32>> {
        let seen = &tokens[tokens.len().saturating_sub(self.context)..];
        let last = seen.len().checked_sub(1).context("a model needs at least one token to continue")?;
        if let Some(token) = seen.iter().find(|token| **token as usize >= self.vocabulary) {
            bail!("token {token} is outside the model's vocabulary of {}", self.vocabulary);
        }
        let logits = self.chain.predict(token_tensor(seen.iter(), [1, seen.len()], &self.device).into())?;
        logits.rows(last, 1).try_into_vec_as::<f32>().context("cannot read the model's logits")
    }
}
