//! Where in a run a block's forward pass stands.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use brigade_random::keyed_seed;

/// What a block may know of the forward pass that it is run in, beside its input: see
/// [`Block::forward_with`](crate::Block::forward_with).
///
/// It is a function of the place in training alone: the same on every mesh and schedule, when the block is run again in the
/// backward pass (activation checkpointing), and after a resume.
///
/// ```
/// use brigade_core::ForwardContext;
///
/// let context = ForwardContext { seed: 7, step: 3, micro_batch: 2, block: "layers.0", training: true };
/// assert_eq!(context.random_seed(), ForwardContext { ..context }.random_seed());
/// assert_ne!(context.random_seed(), ForwardContext { step: 4, ..context }.random_seed());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForwardContext<'a> {
    /// The seed of the run.
    pub seed: u64,
    /// The step, counted from 1: where an update has several steps, the last of them; in an evaluation that of the last step.
    pub step: u64,
    /// The number of the micro-batch among those of the update (the global batch, or several), counted from 0; in an evaluation within all ranks'
    /// micro-batches.
    pub micro_batch: usize,
    /// The name of the block.
    pub block: &'a str,
    /// Whether a backward pass follows. It does not in an evaluation or a prediction.
    pub training: bool,
}

/// What to do about tensors of two number types in one operation.
const MIXED_TYPES: &str = "; parameters and inputs of a block have the type of compute.dtype: cast tensors that the block makes or holds itself to the type of \
                           its input, or set compute.dtype = \"fp32\"";

/// Whether the text of a panic in Burn is about an operation on numbers in bf16 and others.
fn is_of_number_types(text: &str) -> bool {
    text.contains("mismatch") && text.contains("BF16")
}

impl<'a> ForwardContext<'a> {
    /// The context of a prediction.
    pub(crate) fn inference(block: &'a str) -> Self {
        Self { seed: 0, step: 0, micro_batch: 0, block, training: false }
    }

    /// Runs a forward or backward; a panic in it then names the block, which Burn's text does not.
    pub(crate) fn naming<T>(&self, run: impl FnOnce() -> T) -> T {
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let Some(text) = text.or_else(|| panic.downcast_ref::<String>().cloned()) else {
                resume_unwind(panic)
            };
            let Self { block, step, micro_batch, .. } = self;
            let when = if self.training {
                format!(", step {step}, micro-batch {micro_batch}")
            } else {
                String::new()
            };
            let hint = if is_of_number_types(&text) { MIXED_TYPES } else { "" };
            resume_unwind(Box::new(format!("{text} (in block `{block}`{when}){hint}")))
        })
    }

    /// The seed of what the block draws in this pass: it differs in each step, micro-batch and block. Burn's own generator begins
    /// with it ([`with_seed`](crate::with_seed)), so that `nn::Dropout` and all else that draws from that generator is a function of
    /// it, too.
    pub fn random_seed(&self) -> u64 {
        keyed_seed(self.seed, &format!("{}/{}/{}", self.block, self.step, self.micro_batch))
    }
}
