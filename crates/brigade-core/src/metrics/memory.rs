//! Bytes that a rank holds, by what they are for.

/// Live bytes of one kind, and the most there were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bytes {
    /// At the end of the last step.
    pub live: u64,
    /// The most at any time since the engine began.
    pub peak: u64,
}

impl Bytes {
    pub(crate) fn set(&mut self, live: u64) {
        self.live = live;
        self.peak = self.peak.max(live);
    }
}

/// What a rank's tensors are for, in bytes.
///
/// Counted are the tensors that the engine holds. What an operation needs while it runs is not; nor,
/// under activations, is what the autodiff graph of a block keeps besides the block's input and output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// Parameters: whole buffers, shards, gathered buffers, fp32 masters.
    pub parameters: Bytes,
    /// Gradients: being accumulated, on their way, and reduced.
    pub gradients: Bytes,
    /// The optimizer's state.
    pub optimizer: Bytes,
    /// What micro-batches in flight keep at the cuts between blocks.
    pub activations: Bytes,
}
