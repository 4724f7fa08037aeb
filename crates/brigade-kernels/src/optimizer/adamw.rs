//! AdamW.

#[cfg(feature = "cube")]
use std::ops::Range;

use brigade_simd::optimizer::{self as kernel, Step};
use burn::optim::{self, AdamWState, AdaptiveMomentumState, LearningRate, Optimizer};
use burn::tensor::{Device, Tensor};

use super::{ScaledStep, fits, scaled, stepped};
#[cfg(feature = "cube")]
use super::{StepRun, fits_kernels, part_alone};

/// AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019), with the state of Burn's and, but for the kernel of GPUs, its bits.
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

/// As [`AdamWConfig`] says. On Burn's CPU backend in fp32 a step copies the values, and is one pass over that copy, the gradient and the moments, which change in their place. On GPUs it is one kernel.
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
        if let Some(fused) = self.on_device([&tensor, &gradient], state.as_ref()) {
            let shape = tensor.shape();
            let elements = shape.num_elements();
            let flat = |tensor: Tensor<D>| tensor.reshape([elements]);
            let state = state.map(|state| with_moments(state, flat));
            let (values, gradient) = (flat(tensor), flat(gradient));
            let stepped = Tensor::empty([elements], (&values.device(), values.dtype()));
            let of = [&values, &gradient];
            let (values, state) = part_on_device(
                fused,
                &[whole_run(fused, learning_rate)],
                of,
                0..elements,
                stepped,
                scale,
                state,
            );
            let whole = |tensor: Tensor<1>| tensor.reshape(shape.clone());
            return (whole(values), Some(with_moments(state, whole)));
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

    #[cfg(feature = "cube")]
    fn step_part(
        &self,
        learning_rate: LearningRate,
        of: [&Tensor<1>; 2],
        part: Range<usize>,
        stepped: Tensor<1>,
        scale: Option<f64>,
        state: Option<AdamWState<1>>,
    ) -> (Tensor<1>, Option<AdamWState<1>>) {
        let Some(fused) = self.on_device(of, state.as_ref()) else {
            return part_alone(self, learning_rate, of, part, stepped, scale, state);
        };
        let runs = [whole_run(fused, learning_rate)];
        let (stepped, state) = part_on_device(fused, &runs, of, part, stepped, scale, state);
        (stepped, Some(state))
    }

    fn is_one_pass(runs: &[&Self], device: &Device) -> bool {
        #[cfg(feature = "cube")]
        {
            let same = |one: &kernel::AdamW| kernel::AdamW { weight_decay: 0.0, ..*one };
            let first = runs.first().and_then(|run| run.fused.as_ref());
            runs.len() <= MAX_RUNS
                && runs.iter().all(|run| run.fused.as_ref().map(same) == first.map(same))
                && first.is_some()
                && fits_kernels(&Tensor::<1>::empty([1], (device, burn::tensor::DType::F32)))
        }
        #[cfg(not(feature = "cube"))]
        {
            let _ = (runs, device);
            false
        }
    }

    #[cfg(feature = "cube")]
    fn step_runs(
        runs: &[StepRun<'_, Self>],
        of: [&Tensor<1>; 2],
        scale: Option<f64>,
        state: Option<AdamWState<1>>,
    ) -> Option<(Tensor<1>, AdamWState<1>)> {
        let fused = runs.first()?.optimizer.fused?;
        let of_device = |run: &StepRun<'_, Self>| {
            let weight_decay = run.optimizer.fused?.weight_decay;
            let (start, learning_rate) = (run.start, run.learning_rate);
            Some(crate::cube::StepRun { start, learning_rate, weight_decay })
        };
        let runs: Vec<_> = runs.iter().map(of_device).collect::<Option<_>>()?;
        let stepped = Tensor::empty(of[0].dims(), (&of[0].device(), of[0].dtype()));
        Some(part_on_device(fused, &runs, of, 0..of[0].dims()[0], stepped, scale, state))
    }
}

#[cfg(feature = "cube")]
impl AdamW {
    /// If a step of these values and gradients is one kernel of their device.
    fn on_device<const D: usize>(
        &self,
        of: [&Tensor<D>; 2],
        state: Option<&AdamWState<D>>,
    ) -> Option<kernel::AdamW> {
        let moments =
            state.into_iter().flat_map(|state| [&state.momentum.moment_1, &state.momentum.moment_2]);
        self.fused.filter(|_| moments.chain(of).all(fits_kernels))
    }
}

/// Runs that a kernel knows at the most.
#[cfg(feature = "cube")]
const MAX_RUNS: usize = 32;

/// All elements.
#[cfg(feature = "cube")]
fn whole_run(fused: kernel::AdamW, learning_rate: LearningRate) -> crate::cube::StepRun {
    crate::cube::StepRun { start: 0, learning_rate, weight_decay: fused.weight_decay }
}

/// A step of a part by a kernel of its device.
#[cfg(feature = "cube")]
fn part_on_device(
    fused: kernel::AdamW,
    runs: &[crate::cube::StepRun],
    of: [&Tensor<1>; 2],
    part: Range<usize>,
    stepped: Tensor<1>,
    scale: Option<f64>,
    state: Option<AdamWState<1>>,
) -> (Tensor<1>, AdamWState<1>) {
    let zeros = || Tensor::zeros([part.len()], (&of[0].device(), of[0].dtype()));
    let (time, moments) = match state {
        Some(AdamWState { momentum: AdaptiveMomentumState { time, moment_1, moment_2, .. } }) => {
            (time + 1, [moment_1, moment_2])
        }
        None => (1, [zeros(), zeros()]),
    };
    let step = (time as i32, scale.unwrap_or(1.0) as f32);
    let numbers = [fused.beta_1, fused.beta_2, fused.epsilon];
    let [stepped, moment_1, moment_2] = crate::cube::adamw(numbers, step, runs, of, moments, part, stepped);
    (stepped, AdamWState { momentum: AdaptiveMomentumState::new(time, moment_1, moment_2) })
}

/// The state with its moments in another shape.
#[cfg(feature = "cube")]
fn with_moments<const D: usize, const E: usize>(
    state: AdamWState<D>,
    shaped: impl Fn(Tensor<D>) -> Tensor<E>,
) -> AdamWState<E> {
    let AdaptiveMomentumState { time, moment_1, moment_2, .. } = state.momentum;
    AdamWState { momentum: AdaptiveMomentumState::new(time, shaped(moment_1), shaped(moment_2)) }
}
