//! Low-rank adapters of linear layers (LoRA: Hu et al., 2021).

use brigade_kernels::{Weight, linear, linear_residual};
use burn::module::{Initializer, Module, Param};
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Device, Tensor};

use super::dropped;
use crate::initial::uniform;
use crate::lora::LoraConfig;

/// `scale · b · a · dropout(x)`.
#[derive(Module, Debug)]
pub(crate) struct Lora {
    /// `[rank, inputs]`.
    a: Param<Tensor<2>>,
    /// `[outputs, rank]`.
    b: Param<Tensor<2>>,
    dropout: Dropout,
    scale: f64,
}

impl Lora {
    /// For a layer of `[outputs, inputs]`. As `peft` does it, `a` is uniform up to `1 / sqrt(inputs)`, drawn by (`seed`, `path`), and `b` is 0, so that it adds
    /// nothing at first.
    pub fn new(
        config: &LoraConfig,
        [outputs, inputs]: [usize; 2],
        seed: u64,
        path: &str,
        device: &Device,
    ) -> Self {
        let bound = (inputs as f32).sqrt().recip();
        Self {
            a: uniform(seed, &format!("{path}.lora.a"), [config.rank, inputs], bound, device),
            b: Initializer::Zeros.init([outputs, config.rank], device),
            dropout: DropoutConfig::new(config.dropout).init(),
            scale: config.scale(),
        }
    }

    /// `y` and what the adapter gives for `x`: `[rows, outputs]` and `[rows, inputs]`.
    pub fn forward_onto(&self, x: Tensor<2>, y: Tensor<2>) -> Tensor<2> {
        let inner = linear(dropped(x, &self.dropout), Weight::Transposed(self.a.val()), None);
        linear_residual(inner.mul_scalar(self.scale), Weight::Transposed(self.b.val()), None, y)
    }
}
