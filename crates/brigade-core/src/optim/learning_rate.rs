//! The learning rate of each step: schedules, warm-up, and scaling with the batch.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

/// How the learning rate falls after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LrSchedulerKind {
    /// Not at all.
    Constant,
    /// Linearly to the minimum, which the step after the last would have.
    Linear,
    /// Along half a cosine to the minimum (Loshchilov and Hutter, "SGDR", 2017, without restarts).
    Cosine,
    /// Warm-up, stable, decay: constant, then linearly over the last `decay_steps`
    /// (Hu et al., "MiniCPM", 2024).
    Wsd,
}

/// A learning-rate schedule: a pure function from the step to a factor of the peak rate.
///
/// ```
/// use brigade_core::{LrScheduler, LrSchedulerKind};
/// let scheduler = LrScheduler { kind: LrSchedulerKind::Linear, warmup_steps: 10, total_steps: 110, min_ratio: 0.0, decay_steps: 0 };
/// assert_eq!(scheduler.factor(0), 0.1);
/// assert_eq!(scheduler.factor(9), 1.0);
/// assert_eq!(scheduler.factor(60), 0.5);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LrScheduler {
    /// The shape after warm-up.
    pub kind: LrSchedulerKind,
    /// Steps over which the rate rises linearly, to reach the peak at the last of them.
    pub warmup_steps: u64,
    /// Steps of the whole run; after them the factor is `min_ratio` (except for `Constant`).
    pub total_steps: u64,
    /// The lowest factor, from 0 to 1.
    pub min_ratio: f64,
    /// Length of the decay at the end, for [`LrSchedulerKind::Wsd`].
    pub decay_steps: u64,
}

impl LrScheduler {
    /// The factor for a step, counted from 0.
    pub fn factor(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return (step + 1) as f64 / self.warmup_steps as f64;
        }
        let start = match self.kind {
            LrSchedulerKind::Wsd => self.total_steps.saturating_sub(self.decay_steps).max(self.warmup_steps),
            _ => self.warmup_steps,
        };
        let length = self.total_steps.saturating_sub(start);
        let progress = if step < start {
            0.0
        } else if length == 0 {
            1.0
        } else {
            ((step - start) as f64 / length as f64).min(1.0)
        };
        let remaining = match self.kind {
            LrSchedulerKind::Constant => return 1.0,
            LrSchedulerKind::Linear | LrSchedulerKind::Wsd => 1.0 - progress,
            LrSchedulerKind::Cosine => 0.5 * (1.0 + (PI * progress).cos()),
        };
        self.min_ratio + (1.0 - self.min_ratio) * remaining
    }
}

/// How the peak learning rate scales with the global batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LearningRateScaling {
    /// Not at all.
    None,
    /// Proportionally (Goyal et al., "Accurate, Large Minibatch SGD", 2017): for SGD.
    Linear,
    /// With the square root (Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient
    /// Algorithms", 2022): for Adam and similar optimizers.
    Sqrt,
}

impl LearningRateScaling {
    /// The peak rate for `global_batch`, given the `rate` that was tuned for `base_batch`, and an explanation.
    ///
    /// ```
    /// use brigade_core::LearningRateScaling;
    /// let (rate, reason) = LearningRateScaling::Linear.resolve(0.1, 1024, 256);
    /// assert_eq!(rate, 0.4);
    /// assert_eq!(reason, "0.1 x (1024 / 256), linear scaling from a base batch of 256");
    /// ```
    pub fn resolve(self, rate: f64, global_batch: usize, base_batch: usize) -> (f64, String) {
        let ratio = global_batch as f64 / base_batch.max(1) as f64;
        match self {
            Self::None => (rate, "as set, not scaled with the batch".into()),
            Self::Linear => (
                rate * ratio,
                format!(
                    "{rate} x ({global_batch} / {base_batch}), linear scaling from a base batch of {base_batch}"
                ),
            ),
            Self::Sqrt => (
                rate * ratio.sqrt(),
                format!(
                    "{rate} x sqrt({global_batch} / {base_batch}), square-root scaling from a base batch of {base_batch}"
                ),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn factors(kind: LrSchedulerKind) -> Vec<f64> {
        let scheduler =
            LrScheduler { kind, warmup_steps: 2, total_steps: 10, min_ratio: 0.1, decay_steps: 4 };
        (0..12).map(|step| (scheduler.factor(step) * 1000.0).round() / 1000.0).collect()
    }

    #[test]
    fn shapes() {
        assert_eq!(
            factors(LrSchedulerKind::Constant),
            [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
        );
        assert_eq!(
            factors(LrSchedulerKind::Linear),
            [0.5, 1.0, 1.0, 0.888, 0.775, 0.663, 0.55, 0.438, 0.325, 0.213, 0.1, 0.1]
        );
        assert_eq!(
            factors(LrSchedulerKind::Cosine),
            [0.5, 1.0, 1.0, 0.966, 0.868, 0.722, 0.55, 0.378, 0.232, 0.134, 0.1, 0.1]
        );
        assert_eq!(
            factors(LrSchedulerKind::Wsd),
            [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.775, 0.55, 0.325, 0.1, 0.1]
        );
    }

    #[test]
    fn no_warmup_and_no_length_are_defined() {
        let scheduler = LrScheduler {
            kind: LrSchedulerKind::Cosine,
            warmup_steps: 0,
            total_steps: 0,
            min_ratio: 0.2,
            decay_steps: 0,
        };
        assert_eq!(scheduler.factor(0), 0.2);
    }
}
