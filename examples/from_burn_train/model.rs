//! A net that tells the spirals apart.

use burn::nn::{Linear, LinearConfig};
use burn::{prelude::*, tensor::activation};

#[derive(Module, Debug)]
pub struct Net {
    pub hidden: Hidden,
    pub head: Linear,
}

#[derive(Module, Debug)]
pub struct Hidden {
    first: Linear,
    second: Linear,
}

impl Net {
    pub fn new(device: &Device) -> Self {
        let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(device);
        Self { hidden: Hidden { first: linear(2, 32), second: linear(32, 32) }, head: linear(32, 2) }
    }

    /// From points `[points, 2]` to scores `[points, 2]`.
    pub fn forward(&self, points: Tensor<2>) -> Tensor<2> {
        self.head.forward(self.hidden.forward(points))
    }
}

impl Hidden {
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        activation::tanh(self.second.forward(activation::tanh(self.first.forward(x))))
    }
}

/// The cross entropy, summed over the points.
pub fn loss(scores: Tensor<2>, arms: Tensor<1, Int>) -> Tensor<1> {
    activation::log_softmax(scores, 1).gather(1, arms.unsqueeze_dim(1)).sum().neg()
}
