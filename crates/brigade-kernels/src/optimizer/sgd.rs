//! SGD with momentum.

use brigade_simd::optimizer::{self as kernel, Step};
use burn::optim::{LearningRate, Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::{Device, Tensor};

use super::{ScaledStep, fits, scaled, stepped};

/// SGD with momentum (Sutskever et al., "On the importance of initialization and momentum in deep learning", 2013), with the bits of Burn's, and the names of its state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SgdConfig {
    /// The velocity's decay; none for no velocity.
    pub momentum: Option<f32>,
    /// The share of the gradient that does not go into the velocity.
    pub dampening: f64,
    /// Whether the update looks a step ahead.
    pub nesterov: bool,
    /// The share of the values that is added to the gradient (L2); none to add nothing.
    pub weight_decay: Option<f32>,
}

impl SgdConfig {
    /// The optimizer.
    pub fn build(self) -> Sgd {
        Sgd { config: self }
    }
}

/// As [`SgdConfig`] says. On Burn's CPU backend in fp32 a step with momentum copies the values, and is one pass over that copy, the gradient and the velocity, which changes in its place.
#[derive(Debug, Clone)]
pub struct Sgd {
    config: SgdConfig,
}

/// The state of [`Sgd`].
#[derive(Debug, Clone)]
pub struct SgdState<const D: usize> {
    /// The mean of the gradients so far, of which each step forgets a share; none without momentum.
    pub velocity: Option<Tensor<D>>,
}

/// The name that Burn's state has.
const VELOCITY: &str = "momentum.velocity";

impl<const D: usize> RecordState for SgdState<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        if let Some(velocity) = &self.velocity {
            out.push_tensor(prefix, VELOCITY, velocity.to_data());
        }
    }

    fn state_unflatten(prefix: &str, from: &mut StateSource, device: &Device) -> Option<Self> {
        let velocity = from.take_tensor(prefix, VELOCITY);
        Some(Self { velocity: velocity.map(|data| Tensor::from_data(data, device)) })
    }
}

impl Optimizer for Sgd {
    type State<const D: usize> = SgdState<D>;

    fn step<const D: usize>(
        &self,
        learning_rate: LearningRate,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<SgdState<D>>,
    ) -> (Tensor<D>, Option<SgdState<D>>) {
        self.step_scaled(learning_rate, tensor, gradient, None, state)
    }

    fn to_device<const D: usize>(state: SgdState<D>, device: &Device) -> SgdState<D> {
        SgdState { velocity: state.velocity.map(|velocity| velocity.to_device(device)) }
    }
}

impl ScaledStep for Sgd {
    fn step_scaled<const D: usize>(
        &self,
        learning_rate: LearningRate,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        scale: Option<f64>,
        state: Option<SgdState<D>>,
    ) -> (Tensor<D>, Option<SgdState<D>>) {
        let SgdConfig { momentum, dampening, nesterov, weight_decay } = self.config;
        let velocity = state.and_then(|state| state.velocity);
        let fits = velocity.iter().chain([&tensor, &gradient]).all(fits);
        let Some(momentum) = momentum.filter(|_| fits) else {
            return self.by_tensors(learning_rate, tensor, scaled(gradient, scale), velocity);
        };
        let number = if velocity.is_none() { 1 } else { 2 };
        let step = Step { learning_rate, number, scale: scale.unwrap_or(1.0) as f32 };
        let fused = kernel::Sgd { momentum, dampening, nesterov, weight_decay };
        let (tensor, [velocity]) = stepped(tensor, gradient, [velocity], |values, gradient, [velocity]| {
            fused.step(step, values, gradient, velocity);
        });
        (tensor, Some(SgdState { velocity: Some(velocity) }))
    }
}

impl Sgd {
    /// A step by Burn's operations.
    fn by_tensors<const D: usize>(
        &self,
        learning_rate: LearningRate,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        velocity: Option<Tensor<D>>,
    ) -> (Tensor<D>, Option<SgdState<D>>) {
        let SgdConfig { momentum, dampening, nesterov, weight_decay } = self.config;
        let gradient = match weight_decay {
            None => gradient,
            Some(decay) => tensor.clone().mul_scalar(decay) + gradient,
        };
        let Some(momentum) = momentum else {
            return (tensor - gradient.mul_scalar(learning_rate), Some(SgdState { velocity: None }));
        };
        let velocity = match velocity {
            None => gradient.clone(),
            Some(old) => gradient.clone().mul_scalar(1.0 - dampening) + old.mul_scalar(momentum),
        };
        let change = match nesterov {
            false => velocity.clone(),
            true => velocity.clone().mul_scalar(momentum) + gradient,
        };
        (tensor - change.mul_scalar(learning_rate), Some(SgdState { velocity: Some(velocity) }))
    }
}
