//! Low-rank adapters of linear layers (LoRA: Hu et al., 2021).

use brigade_kernels::{Weight, linear, linear_residual};
use burn::module::{Initializer, Module, Param};
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::dropped;
use crate::initial::uniform;

/// `[lora]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoraConfig {
    /// The rank of adapters (LoRA); only these are then trained, on top of the model of `--model`; 0 trains the model itself.
    pub rank: usize,
    /// An adapter's output is multiplied by `alpha / rank`.
    pub alpha: f64,
    /// Dropout probability for an adapter's input, from 0 to below 1.
    pub dropout: f64,
    /// The linear layers that get adapters: the last parts of their names (`q_proj`, `layers.0.mlp.down_proj`), in which `*` stands for any text. Empty: those of queries and
    /// values.
    pub targets: Vec<String>,
    /// Whether the factor is `alpha / sqrt(rank)` instead.
    pub rslora: bool,
}

impl Default for LoraConfig {
    /// None, of queries and values otherwise, as `peft` has them.
    fn default() -> Self {
        Self { rank: 0, alpha: 8.0, dropout: 0.0, targets: Vec::new(), rslora: false }
    }
}

impl LoraConfig {
    /// What multiplies the product of an adapter's matrices.
    pub fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        self.alpha / if self.rslora { rank.sqrt() } else { rank }
    }
}

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
