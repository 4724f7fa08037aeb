//! The choice of who talks to whom in a collective.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::op::call::OpType;

/// Who talks to whom in a collective. Which one is used makes no difference to the bits, with the exception that
/// [`Hierarchical`](Self::Hierarchical) names.
///
/// There is no ring: it adds in the order of the ranks, not pairwise, sends as many bytes as the direct algorithm, and takes
/// as many rounds as there are ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// [`Hierarchical`](Self::Hierarchical) if ranks are on several hosts, with levels of the largest power of two of consecutive
    /// ranks that divides all hosts; [`Flat`](Self::Flat) if that is 1.
    #[default]
    Auto,
    /// Every rank with every other, whatever their hosts; along the rows and columns of a grid in groups of more than 32.
    Flat,
    /// Recursive halving and doubling; a broadcast is a binomial tree. Pairs of neighbours, pairs of pairs and so on, as far as
    /// two divides the number of ranks: as few messages as possible, in more rounds.
    Halving,
    /// Inside each host first and last, and in between among ranks of different hosts, so that each byte crosses the network
    /// once per host instead of once per rank. If hosts have the same number of consecutive ranks, but not a power of two, sums
    /// have a different order, and a warning says so. With unequal numbers, the greatest common divisor takes the place of the
    /// number, with a warning; if that is 1, it is [`Flat`](Self::Flat).
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

/// A row of a table of algorithms: what a collective of some size uses where nothing else was asked for. The first row that fits counts.
/// No row changes the bits: [`Algorithm::Hierarchical`] is flat here where it would.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlgorithmRow {
    /// `all_reduce`, `reduce_scatter`, `all_gather` or `broadcast`.
    pub collective: OpType,
    /// The largest buffer that it is for, in bytes; none for any size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to: Option<u64>,
    /// The algorithm.
    pub algorithm: Algorithm,
}

impl AlgorithmRow {
    /// The collectives that have several algorithms.
    pub const COLLECTIVES: [OpType; 4] =
        [OpType::AllReduce, OpType::ReduceScatter, OpType::AllGather, OpType::Broadcast];

    /// Whether it is for buffers of this many bytes in a collective.
    pub(crate) fn fits(&self, collective: OpType, bytes: u64) -> bool {
        self.collective == collective && self.up_to.is_none_or(|most| bytes <= most)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
