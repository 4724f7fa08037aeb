//! Whether blocks are functions of what they are given.

/// Which forwards of blocks are run twice, and their outputs compared in bytes: a block must be a function of its input, its
/// parameters and its context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckBlocks {
    /// None.
    Never,
    /// Those of each rank's first micro-batch of a run. It asks for a device whose operations give the same bits again.
    First,
    /// All.
    Always,
}

impl Default for CheckBlocks {
    /// The first in debug builds, else none.
    fn default() -> Self {
        if cfg!(debug_assertions) { Self::First } else { Self::Never }
    }
}
