//! Lion.

use brigade_simd::optimizer::{self as kernel, Step};
use burn::optim::{self, LearningRate, LionState, Optimizer};
use burn::tensor::{Device, Tensor};

use super::{ScaledStep, fits, scaled, stepped};

/// Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023), with the bits and the state of Burn's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LionConfig {
    /// The momentum's share in the direction of the update.
    pub beta_1: f32,
    /// The momentum's decay.
    pub beta_2: f32,
    /// The share of the values, times the learning rate, that each step takes away.
    pub weight_decay: f32,
}

impl LionConfig {
    /// The optimizer.
    pub fn build(self) -> Lion {
        let Self { beta_1, beta_2, weight_decay } = self;
        let burn = optim::LionConfig::new().with_beta_1(beta_1).with_beta_2(beta_2);
        let fused = kernel::Lion { beta_1, beta_2, weight_decay };
        Lion { burn: burn.with_weight_decay(weight_decay).build(), fused }
    }
}

/// As [`LionConfig`] says. On Burn's CPU backend in fp32 a step copies the values, and is one pass over that copy, the gradient and the momentum, which changes in its place.
#[derive(Clone)]
pub struct Lion {
    burn: optim::Lion,
    fused: kernel::Lion,
}

impl Optimizer for Lion {
    type State<const D: usize> = LionState<D>;

    fn step<const D: usize>(
        &self,
        learning_rate: LearningRate,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<LionState<D>>,
    ) -> (Tensor<D>, Option<LionState<D>>) {
        self.step_scaled(learning_rate, tensor, gradient, None, state)
    }

    fn to_device<const D: usize>(state: LionState<D>, device: &Device) -> LionState<D> {
        optim::Lion::to_device(state, device)
    }
}

impl ScaledStep for Lion {
    fn step_scaled<const D: usize>(
        &self,
        learning_rate: LearningRate,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        scale: Option<f64>,
        state: Option<LionState<D>>,
    ) -> (Tensor<D>, Option<LionState<D>>) {
        if !state.iter().map(|state| &state.momentum).chain([&tensor, &gradient]).all(fits) {
            return self.burn.step(learning_rate, tensor, scaled(gradient, scale), state);
        }
        let number = if state.is_none() { 1 } else { 2 };
        let step = Step { learning_rate, number, scale: scale.unwrap_or(1.0) as f32 };
        let momentum = [state.map(|state| state.momentum)];
        let (tensor, [momentum]) = stepped(tensor, gradient, momentum, |values, gradient, [momentum]| {
            self.fused.step(step, values, gradient, momentum);
        });
        (tensor, Some(LionState::new(momentum)))
    }
}
