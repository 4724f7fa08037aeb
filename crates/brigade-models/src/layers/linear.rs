//! Linear layers.

use brigade_kernels::{ActivationFunction, Weight, activate, linear, linear_activation, linear_residual};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use super::lora::Lora;
use crate::initial::normal;

/// `x · weightᵀ + bias`, and what its adapter adds.
#[derive(Module, Debug)]
pub(crate) struct Linear {
    /// `[outputs, inputs]`, or `[inputs, outputs]` where these are first.
    weight: Param<Tensor<2>>,
    bias: Option<Param<Tensor<1>>>,
    pub lora: Option<Lora>,
    inputs_first: bool,
}

/// The shape of a [`Linear`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct LinearConfig {
    pub inputs: usize,
    pub outputs: usize,
    pub bias: bool,
    /// Whether weights are `[inputs, outputs]`, as GPT-2's files have them.
    pub inputs_first: bool,
}

impl LinearConfig {
    /// With weights from a normal distribution around 0, by (`seed`, `path`), and a bias of 0.
    pub fn init(self, seed: u64, path: &str, deviation: f32, device: &Device) -> Linear {
        let Self { inputs, outputs, bias, inputs_first } = self;
        let shape = if inputs_first { [inputs, outputs] } else { [outputs, inputs] };
        Linear {
            weight: normal(seed, &format!("{path}.weight"), shape, deviation, device),
            bias: bias.then(|| burn::module::Initializer::Zeros.init([outputs], device)),
            lora: None,
            inputs_first,
        }
    }
}

impl Linear {
    /// `x`: `[rows, inputs]`.
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.adapted(x, |x| linear(x, self.weight(), self.bias()))
    }

    /// `residual + forward(x)`.
    pub fn forward_onto(&self, x: Tensor<2>, residual: Tensor<2>) -> Tensor<2> {
        self.adapted(x, |x| linear_residual(x, self.weight(), self.bias(), residual))
    }

    /// `activation(forward(x))`.
    pub fn activated(&self, x: Tensor<2>, activation: ActivationFunction) -> Tensor<2> {
        match &self.lora {
            None => linear_activation(x, self.weight(), self.bias(), activation),
            Some(_) => activate(self.forward(x), activation),
        }
    }

    pub fn weight(&self) -> Weight {
        match self.inputs_first {
            true => Weight::Plain(self.weight.val()),
            false => Weight::Transposed(self.weight.val()),
        }
    }

    pub fn bias(&self) -> Option<Tensor<1>> {
        self.bias.as_ref().map(Param::val)
    }

    /// `[outputs, inputs]`.
    pub fn shape(&self) -> [usize; 2] {
        let shape = self.weight.lazy_shape();
        if self.inputs_first { [shape[1], shape[0]] } else { [shape[0], shape[1]] }
    }

    fn adapted(&self, x: Tensor<2>, forward: impl FnOnce(Tensor<2>) -> Tensor<2>) -> Tensor<2> {
        match &self.lora {
            None => forward(x),
            Some(lora) => lora.forward_onto(x.clone(), forward(x)),
        }
    }
}
