//! A net of any width for points in the plane.

use burn::nn::{Linear, LinearConfig};
use burn::{prelude::*, tensor::activation};

/// From points `[points, 2]` to scores `[points, 2]`.
#[derive(Module, Debug)]
pub struct Net {
    pub layers: Vec<Layer>,
}

#[derive(Module, Debug)]
pub struct Layer {
    linear: Linear,
    is_last: bool,
}

impl Net {
    pub fn new(width: usize, device: &Device) -> Self {
        let layer = |inputs, outputs, is_last| {
            let linear = LinearConfig::new(inputs, outputs).init(device);
            Layer { linear, is_last }
        };
        Self { layers: vec![layer(2, width, false), layer(width, width, false), layer(width, 2, true)] }
    }
}

impl Layer {
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let y = self.linear.forward(x);
        if self.is_last { y } else { activation::tanh(y) }
    }
}

/// The cross entropy with the probabilities that are wanted, summed over the points.
pub fn loss(scores: Tensor<2>, wanted: Tensor<2>) -> Tensor<1> {
    (activation::log_softmax(scores, 1) * wanted).sum().neg()
}
