//! Steps of optimizers over flat slices, in one pass: the gradient's scaling (clipping), moments, weight decay and the update.
//!
//! Each operation is rounded by itself, in the order of Burn's optimizers, so that the results have the bits of those on its CPU backend.

#[cfg(test)]
mod tests;

use pulp::Simd;

use crate::arch::dispatch;
use crate::element::Element;
use crate::rows::check_length;
use crate::slices::{Slices, for_each_vector};

/// AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019), with epsilon added to the square root of the corrected
/// second moment, as in PyTorch and Burn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// The first moment's decay.
    pub beta_1: f32,
    /// The second moment's decay.
    pub beta_2: f32,
    /// What is added to the divisor.
    pub epsilon: f32,
    /// The share of the values, times the learning rate, that each step takes away.
    pub weight_decay: f32,
}

/// SGD with momentum (Sutskever et al., "On the importance of initialization and momentum in deep learning", 2013), as in PyTorch and Burn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sgd {
    /// The velocity's decay.
    pub momentum: f32,
    /// The share of the gradient that does not go into the velocity.
    pub dampening: f64,
    /// Whether the update looks a step ahead.
    pub nesterov: bool,
    /// The share of the values that is added to the gradient; none to add nothing.
    pub weight_decay: Option<f32>,
}

/// Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lion {
    /// The momentum's share in the update's direction.
    pub beta_1: f32,
    /// The momentum's decay.
    pub beta_2: f32,
    /// The share of the values, times the learning rate, that each step takes away.
    pub weight_decay: f32,
}

/// What is the same for each step of any optimizer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// The learning rate.
    pub learning_rate: f64,
    /// The number of this step, from 1.
    pub number: i32,
    /// What multiplies the gradient first; 1 for nothing.
    pub scale: f32,
}

impl AdamW {
    /// Updates `values` and the moments, which are zero before the first step.
    ///
    /// # Panics
    /// If a slice is not as long as `values`.
    pub fn step<T: Element>(
        &self,
        step: Step,
        values: &mut [f32],
        gradient: &[T],
        [moment_1, moment_2]: [&mut [f32]; 2],
    ) {
        check_length("moment_1", moment_1.len(), values.len());
        check_length("moment_2", moment_2.len(), values.len());
        let state: (&mut [f32], &mut [f32]) = (moment_1, moment_2);
        let rule = AdamWRule {
            beta_1: self.beta_1,
            beta_2: self.beta_2,
            correction_1: 1.0 - self.beta_1.powi(step.number),
            correction_2: 1.0 - self.beta_2.powi(step.number),
            epsilon: self.epsilon,
            kept: (1.0 - step.learning_rate * f64::from(self.weight_decay)) as f32,
            learning_rate: step.learning_rate as f32,
            scale: step.scale,
        };
        check(values, gradient);
        type State<'a> = (&'a mut [f32], &'a mut [f32]);
        dispatch!(step_each[T: Element](
            rule: AdamWRule, values: &mut [f32], gradient: &[T], state: State<'_>
        ) -> ())
    }
}

impl Sgd {
    /// Updates `values` and `velocity`, which the first step only writes.
    ///
    /// # Panics
    /// If a slice is not as long as `values`.
    pub fn step<T: Element>(&self, step: Step, values: &mut [f32], gradient: &[T], velocity: &mut [f32]) {
        check_length("velocity", velocity.len(), values.len());
        check(values, gradient);
        let rule = SgdRule {
            is_first: step.number <= 1,
            momentum: self.momentum,
            share: (1.0 - self.dampening) as f32,
            nesterov: self.nesterov,
            weight_decay: self.weight_decay,
            learning_rate: step.learning_rate as f32,
            scale: step.scale,
        };
        dispatch!(step_each[T: Element](
            rule: SgdRule, values: &mut [f32], gradient: &[T], velocity: &mut [f32]
        ) -> ())
    }
}

impl Lion {
    /// Updates `values` and `momentum`, which the first step only writes.
    ///
    /// # Panics
    /// If a slice is not as long as `values`.
    pub fn step<T: Element>(&self, step: Step, values: &mut [f32], gradient: &[T], momentum: &mut [f32]) {
        check_length("momentum", momentum.len(), values.len());
        check(values, gradient);
        let rule = LionRule {
            is_first: step.number <= 1,
            beta_1: self.beta_1,
            beta_2: self.beta_2,
            kept: (1.0 - step.learning_rate * f64::from(self.weight_decay)) as f32,
            learning_rate: step.learning_rate as f32,
            scale: step.scale,
        };
        dispatch!(step_each[T: Element](
            rule: LionRule, values: &mut [f32], gradient: &[T], momentum: &mut [f32]
        ) -> ())
    }
}

fn check<T>(values: &[f32], gradient: &[T]) {
    check_length("gradient", gradient.len(), values.len());
}

/// How a register of values changes.
trait Rule<State>: Copy {
    /// The new values, from the scaled gradient's. Updates the state in place.
    fn update<S: Simd>(self, simd: S, values: S::f32s, gradient: S::f32s, state: State) -> S::f32s;

    /// What multiplies the gradient.
    fn scale(self) -> f32;
}

#[inline(always)]
fn step_each<S: Simd, R: Rule<State>, State: Slices, T: Element>(
    simd: S,
    rule: R,
    values: &mut [f32],
    gradient: &[T],
    state: State,
) {
    let scale = simd.splat_f32s(rule.scale());
    for_each_vector(
        simd,
        ((values, gradient), state),
        #[inline(always)]
        |((values, gradient), state)| {
            let gradient = simd.mul_f32s(T::load(simd, gradient), scale);
            let updated = rule.update(simd, f32::load(simd, values), gradient, state);
            f32::store(simd, values, updated);
        },
    );
}

/// `a · x + b · y`, each product and the sum rounded.
#[inline(always)]
fn mixed<S: Simd>(simd: S, x: S::f32s, a: f32, y: S::f32s, b: f32) -> S::f32s {
    simd.add_f32s(simd.mul_f32s(x, simd.splat_f32s(a)), simd.mul_f32s(y, simd.splat_f32s(b)))
}

#[derive(Clone, Copy)]
struct AdamWRule {
    beta_1: f32,
    beta_2: f32,
    correction_1: f32,
    correction_2: f32,
    epsilon: f32,
    kept: f32,
    learning_rate: f32,
    scale: f32,
}

impl Rule<(&mut [f32], &mut [f32])> for AdamWRule {
    #[inline(always)]
    fn update<S: Simd>(
        self,
        simd: S,
        values: S::f32s,
        gradient: S::f32s,
        (moment_1, moment_2): (&mut [f32], &mut [f32]),
    ) -> S::f32s {
        let first = mixed(simd, f32::load(simd, moment_1), self.beta_1, gradient, 1.0 - self.beta_1);
        let square = simd.mul_f32s(gradient, gradient);
        let second = mixed(simd, f32::load(simd, moment_2), self.beta_2, square, 1.0 - self.beta_2);
        f32::store(simd, moment_1, first);
        f32::store(simd, moment_2, second);
        let first = simd.div_f32s(first, simd.splat_f32s(self.correction_1));
        let second = simd.div_f32s(second, simd.splat_f32s(self.correction_2));
        let divisor = simd.add_f32s(simd.sqrt_f32s(second), simd.splat_f32s(self.epsilon));
        let change = simd.mul_f32s(simd.div_f32s(first, divisor), simd.splat_f32s(self.learning_rate));
        simd.sub_f32s(simd.mul_f32s(values, simd.splat_f32s(self.kept)), change)
    }

    fn scale(self) -> f32 {
        self.scale
    }
}

#[derive(Clone, Copy)]
struct SgdRule {
    is_first: bool,
    momentum: f32,
    share: f32,
    nesterov: bool,
    weight_decay: Option<f32>,
    learning_rate: f32,
    scale: f32,
}

impl Rule<&mut [f32]> for SgdRule {
    #[inline(always)]
    fn update<S: Simd>(self, simd: S, values: S::f32s, gradient: S::f32s, velocity: &mut [f32]) -> S::f32s {
        let gradient = match self.weight_decay {
            None => gradient,
            Some(decay) => simd.add_f32s(simd.mul_f32s(values, simd.splat_f32s(decay)), gradient),
        };
        let new = match self.is_first {
            true => gradient,
            false => mixed(simd, gradient, self.share, f32::load(simd, velocity), self.momentum),
        };
        f32::store(simd, velocity, new);
        let change = match self.nesterov {
            false => new,
            true => simd.add_f32s(simd.mul_f32s(new, simd.splat_f32s(self.momentum)), gradient),
        };
        simd.sub_f32s(values, simd.mul_f32s(change, simd.splat_f32s(self.learning_rate)))
    }

    fn scale(self) -> f32 {
        self.scale
    }
}

#[derive(Clone, Copy)]
struct LionRule {
    is_first: bool,
    beta_1: f32,
    beta_2: f32,
    kept: f32,
    learning_rate: f32,
    scale: f32,
}

impl LionRule {
    #[inline(always)]
    fn mean<S: Simd>(self, simd: S, old: S::f32s, gradient: S::f32s, beta: f32) -> S::f32s {
        match self.is_first {
            true => simd.mul_f32s(gradient, simd.splat_f32s(1.0 - beta)),
            false => mixed(simd, old, beta, gradient, 1.0 - beta),
        }
    }
}

impl Rule<&mut [f32]> for LionRule {
    #[inline(always)]
    fn update<S: Simd>(self, simd: S, values: S::f32s, gradient: S::f32s, momentum: &mut [f32]) -> S::f32s {
        let old = f32::load(simd, momentum);
        let direction = self.mean(simd, old, gradient, self.beta_1);
        f32::store(simd, momentum, self.mean(simd, old, gradient, self.beta_2));
        let (zero, one) = (simd.splat_f32s(0.0), simd.splat_f32s(self.learning_rate));
        let positive = simd.select_f32s(simd.greater_than_f32s(direction, zero), one, zero);
        let change = simd.select_f32s(simd.less_than_f32s(direction, zero), simd.neg_f32s(one), positive);
        simd.sub_f32s(simd.mul_f32s(values, simd.splat_f32s(self.kept)), change)
    }

    fn scale(self) -> f32 {
        self.scale
    }
}
