//! How many ranks a command line makes.

/// The ranks that a command line makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ranks {
    /// Nodes.
    pub nodes: usize,
    /// Ranks on each.
    pub per_node: usize,
    /// Whether this process starts them; otherwise it is one of them.
    pub is_launcher: bool,
}

impl Ranks {
    /// All of them.
    pub fn world(&self) -> usize {
        self.nodes.saturating_mul(self.per_node)
    }
}
