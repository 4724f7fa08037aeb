//! Models of linear layers, for tests.

use brigade_core::{Block, Chain, Model};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::Tensor;

pub(crate) type Layers = Model<Tensor<2>, Tensor<2>, Tensor<2>>;

pub(crate) fn linear(width: usize) -> Linear {
    LinearConfig::new(width, width).init(&brigade_cpu::device().autodiff())
}

/// A model with a block for each name. Its loss is the squared error.
pub(crate) fn model<B>(names: &[&str], block: impl Fn(&str) -> B) -> Layers
where
    B: Block<Input = Tensor<2>, Output = Tensor<2>>,
{
    squared_error(names.iter().fold(Chain::new(), |chain, name| chain.then(*name, block(name))))
}

fn squared_error(chain: Chain<Tensor<2>, Tensor<2>>) -> Layers {
    chain.loss(|output: Tensor<2>, target: Tensor<2>| (output - target).square().sum())
}

/// A model of linear layers with these names.
pub(crate) fn layers(width: usize, names: &[&str]) -> Layers {
    let add =
        |chain: Chain<_, _>, name: &&str| chain.then_fn(*name, linear(width), |linear, x| linear.forward(x));
    squared_error(names.iter().fold(Chain::new(), add))
}
