//! Bytes that a rank holds.

use super::gradients::gradients;
use super::holding::{Held, Holding};
use crate::residency::most_gathered;
use crate::schedule::{Action, formula};

/// Bytes of a master value, and of a gradient.
const FP32: u64 = 4;

/// Bytes of one kind on one rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    /// The plain formula: no padding, nothing on its way, the stage's parameters divided evenly over the ranks.
    pub formula: u64,
    /// At the end of a step.
    pub live: u64,
    /// At most.
    pub peak: u64,
}

impl Amount {
    /// What is held at most beyond the formula.
    pub fn working_set(&self) -> u64 {
        self.peak.saturating_sub(self.formula)
    }
}

/// What a rank's tensors are for, in bytes. Ψ are the elements that the stage's blocks read, each shared parameter
/// once, and Ψₛ those of them that the stage steps: all but shared parameters that another stage owns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryFootprint {
    /// Parameters: whole buffers, shards, gathered buffers, fp32 masters. Formula: `4Ψ`, under ZeRO-3 `4Ψ/dp`; with
    /// 2 bytes in compute `2Ψ + 4Ψₛ`, sharded `2Ψ + 4Ψₛ/dp`, under ZeRO-3 `4Ψₛ/dp` and `2/dp` for the others.
    ///
    /// The peak has besides what is gathered at once.
    pub parameters: Amount,
    /// Gradients, in fp32. Formula: `4Ψ`, or `4Ψ/dp` where each micro-batch's are summed over the ranks.
    ///
    /// The peak has besides the partial sums of a pairwise sum over micro-batches, whole buffers on their way, and one
    /// sum for each of the stage's blocks that read a shared parameter.
    pub gradients: Amount,
    /// The optimizer's state. Formula for 8 bytes an element: `8Ψₛ`, sharded `8Ψₛ/dp`.
    pub optimizer: Amount,
    /// At the cuts between blocks: the inputs of the blocks and the outputs of chunks whose graphs are kept, of all
    /// micro-batches in flight. Its formula is the most in flight times the largest chunk's.
    pub activations: Amount,
}

impl MemoryFootprint {
    /// The peaks together. They need not come at the same time: it is an upper bound.
    pub fn peak(&self) -> u64 {
        let Self { parameters, gradients, optimizer, activations } = self;
        parameters.peak + gradients.peak + optimizer.peak + activations.peak
    }
}
