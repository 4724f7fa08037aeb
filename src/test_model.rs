//! Models of linear layers, for tests.

use brigade_core::{Block, Chain, Model};
use burn::module::Module;
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
    let chain = names.iter().fold(Chain::new(), |chain, name| chain.then(*name, block(name)));
    chain.loss(|output: Tensor<2>, target: Tensor<2>| (output - target).square().sum())
}

/// A model of linear layers with these names.
pub(crate) fn layers(width: usize, names: &[&str]) -> Layers {
    model(names, |_| Layer { linear: linear(width) })
}

#[derive(Module, Debug)]
struct Layer {
    linear: Linear,
}

impl Block for Layer {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.linear.forward(x)
    }
}
