//! AdamW.

use brigade_simd::optimizer::{self as kernel, Step};
use burn::optim::{self, AdamWState, AdaptiveMomentumState, LearningRate, Optimizer};
use burn::tensor::{Device, Tensor};

#[cfg(feature = "cube")]
use super::fits_kernels;
use super::{ScaledStep, fits, scaled, stepped};

/// AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019), with the bits and the state of Burn's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWConfig {
    /// The first moment's decay.
    pub beta_1: f32,
    /// The second moment's decay.
    pub beta_2: f32,
    /// What is added to the square root of the second moment.
    pub epsilon: f32,
    /// The share of the values, times the learning rate, that each step takes away.
    pub weight_decay: f32,
    /// Whether it is only taken where the update goes the same way (Chen et al., "Cautious Weight Decay", 2025); by Burn's operations.
    pub cautious_weight_decay: bool,
    /// Whether the second moment's highest value so far is used (Reddi et al., "On the Convergence of Adam and Beyond", 2018); by Burn's operations.
    pub amsgrad: bool,
}

impl AdamWConfig {
    /// The optimizer.
    pub fn build(self) -> AdamW {
        let Self { beta_1, beta_2, epsilon, weight_decay, cautious_weight_decay, amsgrad } = self;
        let burn = optim::AdamWConfig::new()
            .with_beta_1(beta_1)
            .with_beta_2(beta_2)
            .with_epsilon(epsilon)
            .with_weight_decay(weight_decay)
            .with_cautious_weight_decay(cautious_weight_decay)
            .with_amsgrad(amsgrad);
        let fused = kernel::AdamW { beta_1, beta_2, epsilon, weight_decay };
        AdamW { burn: burn.build(), fused: (!cautious_weight_decay && !amsgrad).then_some(fused) }
    }
}

/// As [`AdamWConfig`] says. On Burn's CPU backend in fp32 a step is one pass over values, gradient and moments, which change in their place.
#[derive(Clone)]
pub struct AdamW {
    burn: optim::AdamW,
    fused: Option<kernel::AdamW>,
}

impl Optimizer for AdamW {
    type State<const D: usize> = AdamWState<D>;

    fn step<const D: usize>(
        &self,
        learning_rate: LearningRate,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<AdamWState<D>>,
    ) -> (Tensor<D>, Option<AdamWState<D>>) {
        self.step_scaled(learning_rate, tensor, gradient, None, state)
    }

    fn to_device<const D: usize>(state: AdamWState<D>, device: &Device) -> AdamWState<D> {
        optim::AdamW::to_device(state, device)
    }
}

impl ScaledStep for AdamW {
    fn step_scaled<const D: usize>(
        &self,
        learning_rate: LearningRate,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        scale: Option<f64>,
        state: Option<AdamWState<D>>,
    ) -> (Tensor<D>, Option<AdamWState<D>>) {
        #[cfg(feature = "cube")]
        if let Some(fused) = self.fused
            && state
                .iter()
                .flat_map(|state| [&state.momentum.moment_1, &state.momentum.moment_2])
                .chain([&tensor, &gradient])
                .all(fits_kernels)
        {
            let (time, [moment_1, moment_2]) = moments(state, &tensor);
            let step = Step { learning_rate, number: time as i32, scale: scale.unwrap_or(1.0) as f32 };
            let [tensor, moment_1, moment_2] =
                crate::cube::adamw(fused, step, [tensor, gradient, moment_1, moment_2]);
            let momentum = AdaptiveMomentumState::new(time, moment_1, moment_2);
            return (tensor, Some(AdamWState { momentum }));
        }
        let moments = state.iter().flat_map(|state| [&state.momentum.moment_1, &state.momentum.moment_2]);
        let Some(fused) = self.fused.filter(|_| moments.chain([&tensor, &gradient]).all(fits)) else {
            return self.burn.step(learning_rate, tensor, scaled(gradient, scale), state);
        };
        let (time, moments) = match state {
            Some(AdamWState { momentum: AdaptiveMomentumState { time, moment_1, moment_2, .. } }) => {
                (time + 1, [moment_1, moment_2].map(Some))
            }
            None => (1, [None, None]),
        };
        let step = Step { learning_rate, number: time as i32, scale: scale.unwrap_or(1.0) as f32 };
        let (tensor, [moment_1, moment_2]) =
            stepped(tensor, gradient, moments, |values, gradient, moments| {
                fused.step(step, values, gradient, moments)
            });
        (tensor, Some(AdamWState { momentum: AdaptiveMomentumState::new(time, moment_1, moment_2) }))
    }
}

/// The number of the step, and the moments before it.
#[cfg(feature = "cube")]
fn moments<const D: usize>(state: Option<AdamWState<D>>, like: &Tensor<D>) -> (usize, [Tensor<D>; 2]) {
    match state {
        Some(AdamWState { momentum: AdaptiveMomentumState { time, moment_1, moment_2, .. } }) => {
            (time + 1, [moment_1, moment_2])
        }
        None => (1, [(); 2].map(|()| like.zeros_like())),
    }
}
