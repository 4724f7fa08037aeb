//! What a block's backward finds at once, and what is left for its second half.

use brigade_kernels::DeferredGradient;
use brigade_sorted::SortedMap;
use burn::tensor::Tensor;

use super::tape::Upstream;
use crate::error::{Error, Result};
use crate::model::activation::{Part, Parts};
use crate::model::split_forward::{ErasedBackwardWeights, ParameterGradients};

/// What a block's backward found for its parameters, by path.
#[derive(Default)]
pub(crate) struct BlockGradients {
    /// What the graph led to.
    pub now: SortedMap<String, Tensor<1>>,
    /// What is still to be computed, where the block offers its backward in two halves, or its operations have left something.
    pub later: Option<SecondHalf>,
    /// Whether it was found in one piece only after operations had left a part of a gradient of which others had found a part.
    pub was_mixed: bool,
}

impl BlockGradients {
    /// Whether operations have left a part of a gradient of which others have found a part.
    pub fn is_mixed(&self) -> bool {
        self.later.iter().flat_map(|later| later.left.keys()).any(|path| self.now.contains_key(path))
    }

    /// What it holds until its second half.
    pub fn bytes(&self) -> u64 {
        let now: usize = self.now.values().map(|flat| flat.dims()[0] * flat.dtype().size()).sum();
        now as u64 + self.later.as_ref().map_or(0, |later| later.bytes)
    }
}

/// The second half of a block's backward, ready to run.
#[derive(Default)]
pub(crate) struct SecondHalf {
    /// What the block offers, and the gradient of its output; none where none flows.
    offered: Option<(ErasedBackwardWeights, Parts)>,
    /// What operations have left.
    left: SortedMap<String, DeferredGradient>,
    /// Of that gradient and of the block's input, and of what operations have left.
    bytes: u64,
}

impl SecondHalf {
    /// Of a block that offers one.
    pub fn offered(
        weights: ErasedBackwardWeights,
        input: &Parts,
        output: &Parts,
        upstream: &Upstream,
    ) -> Self {
        let gradient = |(part, gradient): (&Part, &Option<Tensor<1>>)| match (part, gradient) {
            (Part::Float(_, shape), Some(gradient)) => Part::Float(gradient.clone(), shape.clone()),
            (Part::Float(y, shape), None) => Part::Float(y.clone().inner().zeros_like(), shape.clone()),
            (int, _) => int.clone(),
        };
        let flows = upstream.iter().any(Option::is_some);
        let gradient = flows.then(|| Parts(output.0.iter().zip(upstream).map(gradient).collect()));
        let bytes = input.bytes() + gradient.as_ref().map_or(0, Parts::bytes);
        Self { offered: gradient.map(|gradient| (weights, gradient)), bytes, ..Self::default() }
    }

    /// With what operations have left; none where that is nothing.
    pub fn with(half: Option<Self>, left: SortedMap<String, DeferredGradient>) -> Option<Self> {
        if left.is_empty() {
            return half;
        }
        let half = half.unwrap_or_default();
        let bytes = half.bytes + left.values().map(DeferredGradient::bytes).sum::<u64>();
        Some(Self { left, bytes, ..half })
    }

    /// Computes the gradients. `block`: its name, for errors.
    pub fn run(self, block: &str) -> Result<ParameterGradients> {
        let mut found = ParameterGradients::default();
        if let Some((weights, gradient)) = self.offered {
            let given = gradient.describe();
            found = weights(gradient).ok_or_else(|| {
                Error::Model(format!(
                    "block `{block}` needs the gradient of its output in the second half of its backward, and was given {given}"
                ))
            })?;
        }
        let left = self.left.into_iter();
        Ok(left.fold(found, |found, (path, gradient)| found.with(path, gradient.compute())))
    }
}
