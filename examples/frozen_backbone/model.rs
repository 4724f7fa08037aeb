//! The convolutional net of the example `images`, with a head of its own.

use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::{prelude::*, tensor::activation};

use crate::data::SHAPES;

#[derive(Module, Debug)]
pub struct Net {
    pub stem: Convolution,
    pub body: Convolution,
    pub classifier: Classifier,
}

#[derive(Module, Debug)]
pub struct Convolution {
    conv: Conv2d,
    norm: BatchNorm,
    pool: MaxPool2d,
}

#[derive(Module, Debug)]
pub struct Classifier {
    linear: Linear,
}

impl Net {
    pub fn new(device: &Device) -> Self {
        let convolution = |inputs, outputs| Convolution {
            conv: Conv2dConfig::new([inputs, outputs], [3, 3])
                .with_padding(PaddingConfig2d::Same)
                .init(device),
            norm: BatchNormConfig::new(outputs).init(device),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
        };
        Self {
            stem: convolution(1, 8),
            body: convolution(8, 16),
            classifier: Classifier { linear: LinearConfig::new(16, SHAPES).init(device) },
        }
    }

    /// From pictures `[pictures, 1, SIZE, SIZE]` to scores `[pictures, SHAPES]`.
    pub fn forward(&self, pictures: Tensor<4>) -> Tensor<2> {
        self.classifier.forward(self.body.forward(self.stem.forward(pictures)))
    }
}

impl Convolution {
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        self.pool.forward(activation::relu(self.norm.forward(self.conv.forward(x))))
    }
}

impl Classifier {
    pub fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        self.linear.forward(x.flatten::<3>(2, 3).mean_dim(2).squeeze_dim(2))
    }
}

/// The cross entropy, summed over the pictures.
pub fn loss(scores: Tensor<2>, shapes: Tensor<1, Int>) -> Tensor<1> {
    activation::log_softmax(scores, 1).gather(1, shapes.unsqueeze_dim(1)).sum().neg()
}

/// How many pictures get the right shape.
pub fn correct(scores: Tensor<2>, shapes: Tensor<1, Int>) -> Tensor<1> {
    scores.argmax(1).squeeze_dim(1).equal(shapes).float().sum()
}
