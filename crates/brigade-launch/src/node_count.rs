//! How many nodes a world has.

use std::fmt;

/// How many nodes a world has: the same number throughout, or, in an elastic world, as many as there are within bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeCount {
    /// The fewest nodes that the world continues with.
    pub least: usize,
    /// It has no more.
    pub most: usize,
}

impl From<usize> for NodeCount {
    fn from(nodes: usize) -> Self {
        Self { least: nodes, most: nodes }
    }
}

impl fmt::Display for NodeCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.least == self.most {
            true => write!(f, "{}", self.most),
            false => write!(f, "{}:{}", self.least, self.most),
        }
    }
}
