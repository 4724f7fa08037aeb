//! Smaller models that stand for one when what its blocks need is measured.

use brigade_core::{Batch, SmallerModel};
use brigade_hf::DecoderConfig;
use burn::tensor::{Device, Tensor};

use super::{CausalLm, Kind};
use crate::gpt::{GptConfig, GptDetails, Targets};
use crate::smaller::{Division, divided_rows, stand_ins};
use crate::{Logits, Tokens};

impl CausalLm {
    /// The models that stand for this one with a micro-batch, if any do.
    pub(super) fn smaller(
        &self,
        batch: &Batch<Tokens, Targets>,
        device: &Device,
    ) -> Option<[SmallerModel<Tokens, Logits, Targets>; 2]> {
        stand_ins(&batch.input, &self.costs().ok()?, |Division { divisor, .. }| {
            let input = divided_rows(&batch.input, divisor);
            let shape = input.ids.dims();
            let mask = batch.target.mask.as_ref().map(|mask| Tensor::ones(shape, &mask.device()));
            let targets = Targets { tokens: Tensor::zeros(shape, &input.ids.device()), mask };
            let batch = Batch::new(input, targets, shape[0] * shape[1]);
            let model = self.divided(divisor)?.with_loss(0, device, divisor).ok()?;
            Some(SmallerModel { divisor, model, batch })
        })
    }

    /// With all sizes divided, but for the numbers of layers and heads.
    pub(crate) fn divided(&self, divisor: usize) -> Option<Self> {
        let whole = |size: usize| size.is_multiple_of(divisor).then(|| size / divisor);
        let kind = match &self.kind {
            Kind::Gpt2(config, details) => {
                let shape = GptConfig {
                    vocabulary: config.vocabulary.div_ceil(divisor),
                    sequence_length: config.sequence_length.div_ceil(divisor),
                    width: config.heads * whole(config.width / config.heads)?,
                    ..config.clone()
                };
                Kind::Gpt2(shape, GptDetails { inner: whole(details.inner)?, ..*details })
            }
            Kind::Decoder(config) => {
                let mut layers = config.layers.clone();
                for layer in &mut layers {
                    layer.window = layer.window.map(|window| window.div_ceil(divisor));
                }
                Kind::Decoder(Box::new(DecoderConfig {
                    vocab_size: config.vocab_size.div_ceil(divisor),
                    hidden_size: whole(config.hidden_size)?,
                    intermediate_size: whole(config.intermediate_size)?,
                    head_dim: whole(config.head_dim).filter(|depth| depth.is_multiple_of(2))?,
                    max_positions: config.max_positions.div_ceil(divisor),
                    layers,
                    ..(**config).clone()
                }))
            }
        };
        let sequence_length = self.sequence_length.div_ceil(divisor);
        Some(Self { kind, sequence_length, adapters: self.adapters.divided(divisor), loss: self.loss })
    }
}
