//! The last block of a decoder that classifies.

use brigade_core::Block;
use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::linear::{Linear, LinearConfig};

/// The vector of each row's last token, `[batch, width]`, to logits of its labels, `[batch, labels]`.
#[derive(Module, Debug)]
pub(crate) struct ScoreHead {
    score: Linear,
}

impl ScoreHead {
    /// Of `[labels, width]`, without a bias, as the block `head`.
    pub fn new([labels, width]: [usize; 2], seed: u64, deviation: f32, device: &Device) -> Self {
        let config = LinearConfig { inputs: width, outputs: labels, bias: false, inputs_first: false };
        Self { score: config.init(seed, "head.score", deviation, device) }
    }
}

impl Block for ScoreHead {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.score.forward(x)
    }

    /// Few: of one token of a row.
    fn cost(&self) -> f64 {
        self.num_params() as f64
    }
}
