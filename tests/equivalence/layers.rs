//! Small models of linear layers, and batches for them.

use brigade::core::{Batch, Block, DATA, Engine, Groups, OptimizerFactory, StepReport, Zero};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Tensor, TensorData, activation::tanh};

pub const WIDTH: usize = 6;

pub type Layers = Engine<Tensor<2>, Tensor<2>, Tensor<2>>;

#[derive(Module, Debug)]
pub struct Layer {
    pub linear: Linear,
}

impl Block for Layer {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        tanh(self.linear.forward(x))
    }
}

pub fn linear() -> Linear {
    LinearConfig::new(WIDTH, WIDTH).init(&brigade_cpu::device().autodiff())
}

pub fn squared_error(output: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
    (output - target).square().sum()
}

pub fn adamw() -> OptimizerFactory {
    let adamw = AdamWConfig::new().with_epsilon(1e-8).with_weight_decay(0.0).build();
    OptimizerFactory::new(adamw.clone(), adamw)
}

/// A micro-batch of three rows, by its number.
pub fn batch(number: usize) -> Batch<Tensor<2>, Tensor<2>> {
    let values = |salt: usize| {
        let values: Vec<f32> =
            (0..3 * WIDTH).map(|i| (((i + salt) * (number + 3) * 7919 % 101) as f32 - 50.0) / 50.0).collect();
        Tensor::from_data(TensorData::new(values, [3, WIDTH]), &brigade_cpu::device())
    };
    Batch::new(values(0), values(7), 3)
}

/// Runs a step, counted from 0, on this rank's share of its four micro-batches.
pub fn step(engine: &mut Layers, zero: Zero, groups: &Groups, step: usize) -> StepReport {
    let count = 4 / groups.over(&DATA).size();
    let numbers = (0..count).map(|k| zero.micro_batch_number(groups.mesh(), groups.world().rank(), k, count));
    engine.step(numbers.map(|number| batch(4 * step + number)).collect(), 1e-2).unwrap()
}
