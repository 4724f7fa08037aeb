//! A language model's layers with a head of labels in place of that of tokens.

use brigade_core::Chain;
use burn::tensor::{Device, Tensor};

use super::{CausalLm, CausalLmError, Kind};
use crate::lora::in_adapters;
use crate::weights::WeightsMapping;
use crate::{Tokens, decoder, gpt};

impl CausalLm {
    /// The blocks, from [`Tokens`] to logits of `[batch, labels]`: the layers, `norm` and `head`.
    pub(crate) fn classifier_chain(
        &self,
        labels: usize,
        seed: u64,
        device: &Device,
    ) -> Result<Chain<Tokens, Tensor<2>>, CausalLmError> {
        let adapters = &self.adapters;
        Ok(match &self.kind {
            Kind::Gpt2(config, details) => {
                gpt::sequence_classification((config, details), labels, adapters, seed, device)?
            }
            Kind::Decoder(config) => {
                let positions = self.sequence_length;
                decoder::sequence_classification(config, labels, adapters, positions, seed, device)?
            }
        })
    }

    /// Relative costs of these blocks, in order.
    pub(crate) fn classifier_costs(&self, labels: usize) -> Result<Vec<f64>, CausalLmError> {
        let (width, of_norm) = match &self.kind {
            Kind::Gpt2(config, _) => (config.width, 2 * config.width),
            Kind::Decoder(config) => (config.hidden_size, config.hidden_size),
        };
        let mut costs = self.costs()?;
        costs.pop();
        costs.extend([of_norm as f64, (labels * width) as f64]);
        Ok(costs)
    }

    /// Where Hugging Face's files have their parameters; that of the head perhaps beside adapters.
    pub(crate) fn classifier_mapping(&self, beside_adapters: bool) -> WeightsMapping {
        const HEAD: &str = "score.weight";
        let head = if beside_adapters { in_adapters(HEAD) } else { HEAD.to_owned() };
        match &self.kind {
            Kind::Gpt2(..) => gpt::classifier_mapping(head),
            Kind::Decoder(_) => decoder::classifier_mapping(head),
        }
    }
}
