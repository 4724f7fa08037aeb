//! What a classifier gives: its logits, or what they are the product of.

use std::vec::IntoIter;

use brigade_core::{Activation, Part};
use brigade_kernels::{CrossEntropyConfig, cross_entropy, is_fused, linear_cross_entropy};
use burn::tensor::{DType, FloatDType, Int, Tensor};

/// Logits of some rows, whose loss is fp32 whatever type they have. Where the loss can be computed without all of them in memory at once, they are not computed before.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "a micro-batch has one of them")]
pub enum Logits {
    /// `[rows, classes]`.
    Whole(Tensor<2>),
    /// `x · weightᵀ`.
    Product {
        /// `[rows, width]`.
        x: Tensor<2>,
        /// `[classes, width]`.
        weight: Tensor<2>,
    },
}

impl Logits {
    /// `x · weightᵀ`, now or later. `x`: `[rows, width]`; `weight`: `[classes, width]`.
    pub fn new(x: Tensor<2>, weight: Tensor<2>) -> Self {
        match is_fused(&x) && is_fused(&weight) {
            true => Self::Product { x, weight },
            false => Self::Whole(x.matmul(weight.transpose())),
        }
    }

    /// All of them, `[rows, classes]`, in fp32 where blocks compute in bf16.
    pub fn whole(self) -> Tensor<2> {
        match self {
            Self::Whole(logits) => wide(logits),
            Self::Product { x, weight } => product(x, weight),
        }
    }

    /// Those of `count` rows from `start` on, `[count, classes]`.
    pub fn rows(self, start: usize, count: usize) -> Tensor<2> {
        match self {
            Self::Whole(logits) => logits.narrow(0, start, count),
            Self::Product { x, weight } => product(x.narrow(0, start, count), weight),
        }
    }

    /// The sum of the cross entropy of all rows, in nats, and the number of rows whose target has the highest logit, each of shape `[1]`. `targets`, and
    /// `weights` that multiply both: `[rows]`.
    pub fn cross_entropy(
        self,
        targets: Tensor<1, Int>,
        weights: Option<Tensor<1>>,
    ) -> (Tensor<1>, Tensor<1>) {
        self.cross_entropy_in(targets, weights, 1)
    }

    /// [`cross_entropy`](Self::cross_entropy), with fewer logits in memory at a time.
    pub(crate) fn cross_entropy_in(
        self,
        targets: Tensor<1, Int>,
        weights: Option<Tensor<1>>,
        rows_divisor: usize,
    ) -> (Tensor<1>, Tensor<1>) {
        let config = CrossEntropyConfig { rows_divisor, ..CrossEntropyConfig::default() };
        match self {
            Self::Whole(logits) => cross_entropy(logits, targets, weights, config),
            Self::Product { x, weight } if x.dtype() == weight.dtype() => {
                linear_cross_entropy(x, weight, targets, weights, config)
            }
            Self::Product { x, weight } => {
                let [x, weight] = [x, weight].map(wide);
                linear_cross_entropy(x, weight, targets, weights, config)
            }
        }
    }
}

fn product(x: Tensor<2>, weight: Tensor<2>) -> Tensor<2> {
    wide(x).matmul(wide(weight).transpose())
}

/// In fp32 at least.
fn wide(tensor: Tensor<2>) -> Tensor<2> {
    if tensor.dtype() == DType::BF16 { tensor.cast(FloatDType::F32) } else { tensor }
}

/// One tensor or two, so in a tuple or a structure it must be the last.
impl Activation for Logits {
    fn into_parts(self, parts: &mut Vec<Part>) {
        match self {
            Self::Whole(logits) => logits.into_parts(parts),
            Self::Product { x, weight } => {
                x.into_parts(parts);
                weight.into_parts(parts);
            }
        }
    }

    fn from_parts(parts: &mut IntoIter<Part>) -> Option<Self> {
        let first = Tensor::from_parts(parts)?;
        match parts.len() {
            0 => Some(Self::Whole(first)),
            _ => Some(Self::Product { x: first, weight: Tensor::from_parts(parts)? }),
        }
    }

    fn is_widened_for_loss() -> bool {
        false
    }

    fn describe() -> String {
        "logits: a float tensor of rank 2, or two that they are the product of".into()
    }
}
