//! The choice of who talks to whom in a collective.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Who talks to whom in a collective. Which one is used makes no difference to the bits, with the exception that
/// [`Hierarchical`](Self::Hierarchical) names.
///
/// There is no ring: it adds in the order of the ranks, not pairwise, sends as many bytes as the direct algorithm, and takes
/// as many rounds as there are ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// [`Hierarchical`](Self::Hierarchical) if ranks are on several hosts, each with the same power of two of
    /// consecutive ranks; otherwise [`Flat`](Self::Flat).
    #[default]
    Auto,
    /// Every rank with every other, whatever their hosts; along the rows and columns of a grid in groups of more than 32.
    Flat,
    /// Recursive halving and doubling; a broadcast is a binomial tree. Pairs of neighbours, pairs of pairs and so on, as far as
    /// two divides the number of ranks: as few messages as possible, in more rounds.
    Halving,
    /// Inside each host first and last, and in between among ranks of different hosts, so that each byte crosses the network
    /// once per host instead of once per rank. If hosts have the same number of consecutive ranks, but not a power of two, sums
    /// have a different order, and a warning says so; with unequal numbers it is [`Flat`](Self::Flat), with a warning.
    Hierarchical,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Algorithm; 4] =
        [Algorithm::Auto, Algorithm::Flat, Algorithm::Halving, Algorithm::Hierarchical];

    /// The lower-case name, as in `halving`.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Auto => "auto",
            Algorithm::Flat => "flat",
            Algorithm::Halving => "halving",
            Algorithm::Hierarchical => "hierarchical",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
