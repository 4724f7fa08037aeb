//! What a classifier gives: its logits, or what they are the product of.

use std::vec::IntoIter;

use brigade_core::{Activation, Part};
use brigade_kernels::{
    CrossEntropyConfig, Weight, cast, cross_entropy, is_fused, is_fused_on_cpu, linear, linear_cross_entropy,
};
use burn::tensor::{DType, FloatDType, Int, Tensor, TensorData};

/// What is added to the cross entropy of a language model in training; what is validated is plain.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LossOptions {
    /// The share of the target's probability that all tokens get equally, at least 0 and below 1 (Szegedy et al., "Rethinking the Inception Architecture", 2016).
    pub label_smoothing: f64,
    /// The factor of the squared logarithm of the softmax's denominator, at least 0 (Chowdhery et al., "PaLM", 2022).
    pub z_loss: f64,
}

/// Logits of some rows, whose loss is fp32 whatever type they have. Where the loss can be computed without all of them in memory at once, they are not computed before.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "a micro-batch has one of them")]
pub enum Logits {
    /// `[rows, classes]`.
    Whole(Tensor<2>),
    /// `x · weightᵀ + bias`.
    Product {
        /// `[rows, width]`.
        x: Tensor<2>,
        /// `[classes, width]`.
        weight: Tensor<2>,
        /// `[classes]`. Where there is one, the loss makes the logits of those rows alone that have a weight.
        bias: Option<Tensor<1>>,
    },
}

impl Logits {
    /// `x · weightᵀ`, now or later. `x`: `[rows, width]`; `weight`: `[classes, width]`.
    pub fn new(x: Tensor<2>, weight: Tensor<2>) -> Self {
        match is_fused(&x) && is_fused(&weight) {
            true => Self::Product { x, weight, bias: None },
            false => Self::Whole(x.matmul(weight.transpose())),
        }
    }

    /// Whether gradients are wanted.
    fn is_trained(&self) -> bool {
        match self {
            Self::Whole(x) | Self::Product { x, .. } => x.device().is_autodiff(),
        }
    }

    /// All of them, `[rows, classes]`, in fp32 where blocks compute in bf16.
    pub fn whole(self) -> Tensor<2> {
        match self {
            Self::Whole(logits) => wide(logits),
            Self::Product { x, weight, bias } => product(x, weight, bias),
        }
    }

    /// Those of `count` rows from `start` on, `[count, classes]`.
    pub fn rows(self, start: usize, count: usize) -> Tensor<2> {
        match self {
            Self::Whole(logits) => logits.narrow(0, start, count),
            Self::Product { x, weight, bias } => product(x.narrow(0, start, count), weight, bias),
        }
    }

    /// The sum of the cross entropy of all rows, in nats, and the number of rows whose target has the highest logit, each of shape `[1]`. `targets`, and
    /// `weights` that multiply both: `[rows]`.
    pub fn cross_entropy(
        self,
        targets: Tensor<1, Int>,
        weights: Option<Tensor<1>>,
    ) -> (Tensor<1>, Tensor<1>) {
        self.cross_entropy_with(targets, weights, LossOptions::default(), 1)
    }

    /// [`cross_entropy`](Self::cross_entropy), in training with these options; the rows whose logits are in memory at a time are divided by `rows_divisor`.
    pub(crate) fn cross_entropy_with(
        self,
        targets: Tensor<1, Int>,
        weights: Option<Tensor<1>>,
        options: LossOptions,
        rows_divisor: usize,
    ) -> (Tensor<1>, Tensor<1>) {
        let LossOptions { label_smoothing, z_loss } =
            if self.is_trained() { options } else { LossOptions::default() };
        let config = CrossEntropyConfig { label_smoothing, z_loss, rows_divisor };
        match self {
            Self::Whole(logits) => cross_entropy(logits, targets, weights, config),
            Self::Product { x, weight, bias: Some(bias) } => {
                let (x, targets, weights) = weighted_rows(x, targets, weights);
                let logits = linear(x, Weight::Transposed(weight), Some(bias));
                cross_entropy(logits, targets, weights, config)
            }
            Self::Product { x, weight, bias: None } if x.dtype() == weight.dtype() => {
                linear_cross_entropy(x, weight, targets, weights, config)
            }
            Self::Product { x, weight, bias: None } => {
                let [x, weight] = [x, weight].map(wide);
                linear_cross_entropy(x, weight, targets, weights, config)
            }
        }
    }
}

/// The rows that have a weight, or one where none has.
fn weighted_rows(
    x: Tensor<2>,
    targets: Tensor<1, Int>,
    weights: Option<Tensor<1>>,
) -> (Tensor<2>, Tensor<1, Int>, Option<Tensor<1>>) {
    let Some(weights) = weights else { return (x, targets, None) };
    let all = weights.to_data();
    let weighted = all.iter::<f32>().enumerate().filter(|(_, weight)| *weight != 0.0);
    let mut rows: Vec<i64> = weighted.map(|(row, _)| row as i64).collect();
    if rows.is_empty() {
        rows.push(0);
    }
    let count = rows.len();
    let rows = Tensor::<1, Int>::from_data(TensorData::new(rows, [count]), &weights.device());
    (x.select(0, rows.clone()), targets.select(0, rows.clone()), Some(weights.select(0, rows)))
}

/// In fp32 on the CPU; elsewhere in the type of the weight, as a copy of it in fp32 would be larger than all logits.
fn product(x: Tensor<2>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<2> {
    if !is_fused_on_cpu(&x) {
        return wide(linear(x, Weight::Transposed(weight), bias));
    }
    let logits = wide(x).matmul(wide(weight).transpose());
    bias.into_iter().fold(logits, |logits, bias| {
        let bias: Tensor<2> = bias.unsqueeze();
        logits + wide(bias)
    })
}

/// In fp32 at least.
fn wide(tensor: Tensor<2>) -> Tensor<2> {
    if tensor.dtype() == DType::BF16 { cast(tensor, FloatDType::F32) } else { tensor }
}

/// One tensor, two or three, so in a tuple or a structure it must be the last.
impl Activation for Logits {
    fn into_parts(self, parts: &mut Vec<Part>) {
        match self {
            Self::Whole(logits) => logits.into_parts(parts),
            Self::Product { x, weight, bias } => {
                x.into_parts(parts);
                weight.into_parts(parts);
                if let Some(bias) = bias {
                    bias.into_parts(parts);
                }
            }
        }
    }

    fn from_parts(parts: &mut IntoIter<Part>) -> Option<Self> {
        let first = Tensor::from_parts(parts)?;
        if parts.len() == 0 {
            return Some(Self::Whole(first));
        }
        let weight = Tensor::from_parts(parts)?;
        let bias = if parts.len() == 0 { None } else { Some(Tensor::from_parts(parts)?) };
        Some(Self::Product { x: first, weight, bias })
    }

    fn is_widened_for_loss() -> bool {
        false
    }

    fn describe() -> String {
        "logits: a float tensor of rank 2, or two that they are the product of, and their bias".into()
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn options_of_the_loss_count_in_training_alone() {
        let plain = Device::default();
        let options = LossOptions { label_smoothing: 0.1, z_loss: 0.01 };
        let loss = |device: &Device, options| {
            let logits = Tensor::<2>::from_floats([[1.0, 2.0, 0.5], [0.0, -1.0, 3.0]], device);
            let targets = Tensor::<1, Int>::from_ints([1, 0], device);
            let (loss, correct) = Logits::Whole(logits).cross_entropy_with(targets, None, options, 1);
            [loss, correct].map(|sum| sum.into_data().iter::<f32>().next().unwrap())
        };
        let usual = loss(&plain, LossOptions::default());
        assert_eq!(loss(&plain, options), usual);
        let trained = loss(&plain.clone().autodiff(), options);
        assert_eq!(trained[1], usual[1]);
        // Of each row: what the target lacks of the mean logit, and the squared logarithm of the denominator.
        let rows = [([1.0f64, 2.0, 0.5], 1), ([0.0, -1.0, 3.0], 0)];
        let expected: f64 = rows
            .iter()
            .map(|(row, target)| {
                let log = row.iter().map(|logit| logit.exp()).sum::<f64>().ln();
                let mean = row.iter().sum::<f64>() / 3.0;
                log - 0.9 * row[*target] - 0.1 * mean + 0.01 * log * log
            })
            .sum();
        assert!((f64::from(trained[0]) - expected).abs() < 1e-5, "{} {expected}", trained[0]);
    }
}
