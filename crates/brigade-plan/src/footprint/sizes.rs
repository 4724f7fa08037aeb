//! Sizes of a model's parts, and of what a rank holds.

use brigade_compress::Matrix;

/// Parameters in one flat buffer: those of a block, or one that several blocks share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitSize {
    /// Number of elements, without padding.
    pub elements: usize,
    /// The block that owns the parameters; its stage sums their gradients and steps them.
    pub owner_block: usize,
    /// The blocks that read the parameters, in order; the owner is the first of them.
    pub users: Vec<usize>,
    /// Whether training changes the parameters. If not, they have neither gradients nor optimizer state.
    pub trainable: bool,
    /// Whether they are fp32 in forward and backward, whatever [`Configuration::compute_bytes`](super::Configuration::compute_bytes) is.
    pub keep_in_f32: bool,
    /// Where its parameters of two dimensions or more are; needed where gradients travel as factors.
    pub matrices: Vec<Matrix>,
}

impl UnitSize {
    /// Trained parameters that these blocks, at least one, read in the type of the computation.
    pub fn trained(elements: usize, users: Vec<usize>) -> Self {
        let owner_block = users.first().copied().unwrap_or(0);
        Self { elements, owner_block, users, trainable: true, keep_in_f32: false, matrices: Vec::new() }
    }
}

/// One tensor of the activation between two blocks, for one micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BoundaryTensor {
    /// Its size in bytes.
    pub bytes: u64,
    /// Its number of dimensions.
    pub dimensions: usize,
    /// Whether a gradient of the same size flows back through it; false for integers.
    pub has_gradient: bool,
}

/// What a block, or the loss, needs for one micro-batch in addition to its input and its parameters, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SavedActivations {
    /// What its autodiff graph keeps from its forward to its backward, without its output.
    pub saved: u64,
    /// Its peak, in its forward or its backward: what is saved, the gradients of its output, of its input and of its parameters, and
    /// temporary tensors of its operations.
    pub peak: u64,
    /// Its output. If the block is recomputed, there are two of it.
    pub output: u64,
    /// What it holds between the halves of its backward, under a schedule that splits it; 0 where it computes all gradients in
    /// the first.
    pub deferred: u64,
}

/// Bytes of one kind on one rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    /// The plain formula: no padding, no operations in flight, the stage's parameters divided evenly over the ranks.
    pub formula: u64,
    /// At the end of a step.
    pub live: u64,
    /// At the peak.
    pub peak: u64,
}

impl Amount {
    /// The peak minus the formula.
    pub fn working_set(&self) -> u64 {
        self.peak.saturating_sub(self.formula)
    }
}
