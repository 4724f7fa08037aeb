//! Activation checkpointing: which blocks are run again in the backward pass.

/// Which blocks are run again in the backward pass instead of keeping their activations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Recompute {
    /// None: each block's graph is kept from forward to backward.
    #[default]
    None,
    /// Every k-th block, beginning with the k-th; 1 is all.
    Every(usize),
}

impl Recompute {
    /// Whether the block of this index is run again.
    pub fn applies_to(self, block: usize) -> bool {
        match self {
            Self::None => false,
            Self::Every(k) => (block + 1).is_multiple_of(k.max(1)),
        }
    }
}
