//! Tokens to mask as a [`Dataset`].

use brigade_core::Batch;
use brigade_data::{Sequence, TokenSequences};
use brigade_models::Tokens;
use brigade_models::encoder::Masking;
use brigade_models::gpt::Targets;
use burn::tensor::{Device, Distribution, Tensor, TensorData};

use super::rows::{inputs, pad, token_tensor};
use crate::dataset::Dataset;

/// Rows of tokens to train an encoder on: inputs `[batch, sequence]`, some of whose tokens are masked, and as targets these tokens. The masked positions are drawn per
/// micro-batch of each step, as a function of the seed; on any mesh and after a resume they are the same.
#[derive(Debug, Clone)]
pub struct MaskedDataset {
    rows: TokenSequences,
    masking: Masking,
}

impl MaskedDataset {
    /// The rows as samples; each token is to predict itself ([`TargetToken::Same`](brigade_data::TargetToken)).
    pub fn new(rows: TokenSequences, masking: Masking) -> Self {
        Self { rows, masking }
    }
}

impl Dataset for MaskedDataset {
    type Item = Sequence;
    type Input = Tokens;
    type Target = Targets;

    fn len(&self) -> usize {
        self.rows.len()
    }

    fn get(&self, index: usize) -> anyhow::Result<Sequence> {
        Ok(self.rows.get(index)?)
    }

    fn batch(&self, mut items: Vec<Sequence>, device: &Device) -> Batch<Tokens, Targets> {
        let shape = pad(&mut items, self.rows.end_of_text());
        // Burn's generator is seeded for the micro-batch.
        let drawn = Tensor::<1>::random([4], Distribution::Default, device).into_data();
        let seed = drawn
            .iter::<f32>()
            .fold(0_u64, |seed, number| seed << 16 | u64::from((number * 65_536.0) as u16));
        let mut tokens: Vec<u32> = items.iter().flat_map(|item| item.inputs.iter().copied()).collect();
        let valid: Vec<bool> = items.iter().flat_map(|item| item.valid.iter().copied()).collect();
        let targets = token_tensor(tokens.iter(), shape, device);
        let chosen = self.masking.mask(&mut tokens, &valid, shape[1], seed);
        let mask: Vec<f32> = chosen.iter().map(|chosen| f32::from(u8::from(*chosen))).collect();
        let input =
            Tokens { ids: token_tensor(tokens.iter(), shape, device), ..inputs(&items, shape, device) };
        let mask = Some(Tensor::from_data(TensorData::new(mask, shape), device));
        let count = chosen.iter().filter(|chosen| **chosen).count();
        Batch::new(input, Targets { tokens: targets, mask }, count)
    }

    fn targets_per_sample(&self) -> usize {
        self.rows.sequence_length()
    }

    fn unit(&self) -> &str {
        "tokens"
    }
}
