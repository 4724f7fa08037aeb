//! What takes time in each step, or in some of them.

use brigade_report::{duration, median};

/// In fewer steps something may have taken long by chance.
const FEWEST_LONG: usize = 3;

/// In more of the steps something takes as long as it does in the others.
const MOST_LONG: f64 = 0.4;

/// How much longer than usual it must take to be long, as a share of a step.
const LONG: f64 = 0.1;

/// What something takes in steps, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Spent {
    /// On average. Steps in which it took long by chance do not count.
    pub mean: f64,
    /// In the step in the middle.
    pub middle: f64,
    /// The share of steps in which it takes long; 0 if it takes as long in all.
    pub long_share: f64,
    /// How long it takes in those, on average.
    pub long_mean: f64,
}

impl Spent {
    /// From what it took in each step; `step` is what a step usually takes.
    pub fn of(seconds: impl IntoIterator<Item = f64>, step: f64) -> Self {
        let all: Vec<f64> = seconds.into_iter().filter(|seconds| seconds.is_finite()).collect();
        let Some(middle) = median(all.iter().copied()) else { return Self::default() };
        let (long, usual): (Vec<f64>, Vec<f64>) =
            all.iter().partition(|seconds| **seconds > 2.0 * middle + LONG * step);
        if long.len() < FEWEST_LONG {
            return Self { mean: mean(&usual), middle, long_share: 0.0, long_mean: 0.0 };
        }
        let long_share = long.len() as f64 / all.len() as f64;
        let long_share = if long_share > MOST_LONG { 0.0 } else { long_share };
        Self { mean: mean(&all), middle, long_share, long_mean: mean(&long) }
    }

    /// `12.000 ms of each step`, or `1.00 s in 10% of the steps`.
    pub fn text(&self) -> String {
        match self.long_share > 0.0 && self.middle < self.mean / 2.0 {
            true => format!("{} in {:.0}% of the steps", duration(self.long_mean), 100.0 * self.long_share),
            false => format!("{} of each step", duration(self.mean)),
        }
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long_in_some_steps_counts_and_what_did_once_does_not() {
        let every = |n: u32| (1..=100).map(move |step| if step % n == 0 { 1.0 } else { 0.01 });
        let often = Spent::of(every(10), 0.1);
        assert!((often.mean - 0.109).abs() < 1e-9 && often.middle == 0.01, "{often:?}");
        assert_eq!(often.text(), "1.00 s in 10% of the steps");
        let twice = Spent::of(every(50), 0.1);
        assert!((twice.mean - 0.01).abs() < 1e-9, "{twice:?}");
        assert_eq!(twice.text(), "10.000 ms of each step");
        assert_eq!(Spent::of([0.3; 20], 0.1).text(), "300.000 ms of each step");
        assert_eq!(Spent::of([f64::NAN], 0.1), Spent::default());
    }
}
