//! Smaller models that stand for one when what its blocks need is measured.

use brigade_core::{Batch, SmallerModel};
use brigade_hf::DecoderConfig;
use burn::tensor::{Device, Int, Tensor};

use super::{CausalLm, Kind};
use crate::gpt::{GptConfig, Targets};
use crate::{Documents, Logits, Tokens};

/// Multiplications of the largest block's forward that are soon done.
const MOST_WORK: f64 = (1u64 << 30) as f64;

/// What sizes may be divided by.
const DIVISORS: [usize; 6] = [2, 4, 8, 16, 32, 64];

impl CausalLm {
    /// The models that stand for this one with a micro-batch; none where it is measured soon itself, or its sizes cannot be divided.
    pub(super) fn smaller(
        &self,
        batch: &Batch<Tokens, Targets>,
        device: &Device,
    ) -> Option<[SmallerModel<Tokens, Logits, Targets>; 2]> {
        let tokens = batch.input.ids.dims().iter().product::<usize>() as f64;
        let work = tokens * self.costs().ok()?.into_iter().fold(0.0, f64::max);
        let takes_long = |divisor: &&usize| work / (divisor.pow(3) as f64) > MOST_WORK;
        let (too_small, enough) = DIVISORS.split_at(DIVISORS.iter().take_while(takes_long).count());
        let wanted = if work > MOST_WORK { enough.first() } else { None };
        let one = |divisor: usize| {
            let model = self.divided(divisor)?;
            let batch = model.divided_batch(batch, divisor);
            Some(SmallerModel { divisor, model: model.with_loss(0, device, divisor).ok()?, batch })
        };
        let mut divisors = wanted.into_iter().chain(too_small.iter().rev().filter(|_| work > MOST_WORK));
        divisors.find_map(|divisor| Some([one(*divisor)?, one(2 * divisor)?]))
    }

    /// With all sizes divided, but for the numbers of layers and heads.
    fn divided(&self, divisor: usize) -> Option<Self> {
        let whole = |size: usize| size.is_multiple_of(divisor).then(|| size / divisor);
        let kind = match &self.kind {
            Kind::Gpt2(config) => Kind::Gpt2(GptConfig {
                vocabulary: config.vocabulary.div_ceil(divisor),
                sequence_length: config.sequence_length.div_ceil(divisor),
                width: config.heads * whole(config.width / config.heads)?,
                ..config.clone()
            }),
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
        Some(Self { kind, sequence_length, adapters: self.adapters.divided(divisor) })
    }

    /// As many rows of this model, of one document each where they have any.
    fn divided_batch(&self, batch: &Batch<Tokens, Targets>, divisor: usize) -> Batch<Tokens, Targets> {
        let (device, [samples, length]) = (batch.input.ids.device(), batch.input.ids.dims());
        let shape = [samples, length.div_ceil(divisor)];
        let bounds = |_: &Documents| -> Documents {
            let ends = Tensor::<3, Int>::full([samples, shape[1], 1], shape[1] as i64, &device);
            Tensor::cat(vec![ends.zeros_like(), ends], 2)
        };
        let input = Tokens {
            ids: Tensor::zeros(shape, &device),
            documents: batch.input.documents.as_ref().map(bounds),
            types: None,
        };
        let mask = batch.target.mask.as_ref().map(|mask| Tensor::ones(shape, &mask.device()));
        let targets = Targets { tokens: Tensor::zeros(shape, &device), mask };
        Batch::new(input, targets, samples * shape[1])
    }
}
