//! Bytes that a rank holds, by what they are for.

/// Live bytes of one kind, and their peak.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bytes {
    /// At the end of the last step.
    pub live: u64,
    /// The peak since the engine was created.
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
/// This counts the tensors that the engine holds. It counts neither temporary tensors of operations nor, under activations, what
/// the autodiff graph of a block keeps besides the block's input and output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// Parameters: whole buffers, shards, gathered buffers, fp32 masters.
    pub parameters: Bytes,
    /// Gradients: being accumulated, being reduced, and reduced.
    pub gradients: Bytes,
    /// The optimizer's state.
    pub optimizer: Bytes,
    /// Boundary activations of micro-batches in flight.
    pub activations: Bytes,
}
