//! Norms.

use brigade_kernels::{layer_norm, rms_norm, rms_norm_above_one};
use burn::module::{Initializer, Module, Param};
use burn::tensor::{Device, Tensor};

/// [`rms_norm`] with weights that are factors, or what factors are above 1.
#[derive(Module, Debug)]
pub(crate) struct RmsNorm {
    weight: Param<Tensor<1>>,
    epsilon: f64,
    above_one: bool,
}

/// What a [`RmsNorm`] is like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RmsNormConfig {
    pub epsilon: f64,
    /// Whether weights say how far factors are above 1, as Gemma's do.
    pub above_one: bool,
}

impl RmsNormConfig {
    /// With factors of 1.
    pub fn init(self, width: usize, device: &Device) -> RmsNorm {
        let Self { epsilon, above_one } = self;
        let initializer = if above_one { Initializer::Zeros } else { Initializer::Ones };
        RmsNorm { weight: initializer.init([width], device), epsilon, above_one }
    }
}

impl RmsNorm {
    /// Over the last dimension.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        match self.above_one {
            true => rms_norm_above_one(x, self.weight.val(), self.epsilon),
            false => rms_norm(x, self.weight.val(), self.epsilon),
        }
    }
}

/// [`layer_norm`] with weights that are factors, and biases.
#[derive(Module, Debug)]
pub(crate) struct LayerNorm {
    weight: Param<Tensor<1>>,
    bias: Param<Tensor<1>>,
    epsilon: f64,
}

impl LayerNorm {
    /// With factors of 1 and biases of 0.
    pub fn new(width: usize, epsilon: f64, device: &Device) -> Self {
        let of = |initializer: Initializer| initializer.init([width], device);
        Self { weight: of(Initializer::Ones), bias: of(Initializer::Zeros), epsilon }
    }

    /// Over the last dimension.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        layer_norm(x, self.weight.val(), Some(self.bias.val()), self.epsilon)
    }
}
