//! How the ranks of a group are placed on hosts, and which levels their collectives use.

use crate::op::algorithm::{Algorithm, AlgorithmRow};
use crate::op::call::{Call, OpType};
use crate::op::dtype::DType;
use crate::op::plan::levels::Levels;

/// What the plans of a group depend on besides the call. The same on all of its ranks.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    direct: Levels,
    chosen: Levels,
    algorithm: Algorithm,
    /// Neighbours on a host that add up first, where `chosen` is inside hosts first.
    neighbours: Option<usize>,
    /// What calls use instead of `chosen`: the first row that fits.
    table: Vec<(AlgorithmRow, Levels)>,
    warning: Option<String>,
}

/// How ranks are placed on hosts.
#[derive(Debug, PartialEq, Eq)]
enum Hosts {
    /// All on one, or each on its own.
    Flat,
    /// So many neighbours on each of several.
    Even(usize),
    /// In another way; so many divide all rows of neighbours on a host.
    Uneven(usize),
}

impl Layout {
    /// The layout of a group whose rank r is on host `hosts[r]`.
    pub(crate) fn new(hosts: &[usize], algorithm: Algorithm) -> Self {
        let ranks = hosts.len();
        let on_hosts = Hosts::of(hosts);
        // Ranks of a host that add up first; their level is none if it has one rank.
        let neighbours = match (algorithm, &on_hosts) {
            (Algorithm::Auto, hosts) => hosts.aligned(),
            (Algorithm::Hierarchical, Hosts::Even(ranks) | Hosts::Uneven(ranks)) => *ranks,
            _ => 1,
        };
        let chosen = match algorithm {
            Algorithm::Halving => Levels::halving(ranks),
            _ => Levels::hierarchical(ranks, neighbours),
        };
        let warning = (algorithm == Algorithm::Hierarchical).then(|| on_hosts.warning()).flatten();
        let neighbours = (neighbours > 1).then_some(neighbours);
        let algorithm = match algorithm {
            Algorithm::Halving => Algorithm::Halving,
            _ if chosen == Levels::flat(ranks) => Algorithm::Flat,
            _ => Algorithm::Hierarchical,
        };
        let direct = Levels::direct(ranks);
        Self { direct, chosen, algorithm, neighbours, table: Vec::new(), warning }
    }

    /// With a table of algorithms, for a group of ranks on these hosts.
    pub(crate) fn with_table(self, hosts: &[usize], rows: &[AlgorithmRow]) -> Self {
        let ranks = hosts.len();
        let levels = |row: &AlgorithmRow| match (row.algorithm, Hosts::of(hosts)) {
            (Algorithm::Halving, _) => Levels::halving(ranks),
            (Algorithm::Hierarchical, hosts) => Levels::hierarchical(ranks, hosts.aligned()),
            (Algorithm::Auto, _) => self.chosen.clone(),
            _ => Levels::flat(ranks),
        };
        let table = rows.iter().map(|row| (row.clone(), levels(row))).collect();
        Self { table, ..self }
    }

    /// The layout of a group on one host.
    pub(crate) fn on_one_host(ranks: usize) -> Self {
        Self::new(&vec![0; ranks], Algorithm::Auto)
    }

    /// The algorithm that is used, which is not `Auto`.
    pub(crate) fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// How many neighbours on a host add up first, where that is what makes levels.
    pub(crate) fn neighbours(&self) -> Option<usize> {
        self.neighbours
    }

    /// What the user should know, where the algorithm that was asked for cannot be used, or changes the bits.
    pub(crate) fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// Bytes that a barrier passes on, where its phases need some to wait for each other.
    pub(crate) fn barrier_bytes(&self) -> usize {
        self.chosen.largest_after_first()
    }

    pub(super) fn levels(&self, call: &Call) -> &Levels {
        let halves = matches!(call.dtype, DType::Bf16 | DType::F16) && call.reduce.is_some();
        let is_direct = halves || matches!(call.operation, OpType::Gather | OpType::AllToAll);
        let row = || self.table.iter().find(|(row, _)| row.fits(call.operation, call.bytes));
        match is_direct {
            true => &self.direct,
            false => row().map_or(&self.chosen, |(_, levels)| levels),
        }
    }
}

impl Hosts {
    fn of(hosts: &[usize]) -> Self {
        let rows: Vec<&[usize]> = hosts.chunk_by(|a, b| a == b).collect();
        let mut begun: Vec<usize> = rows.iter().map(|row| row[0]).collect();
        begun.sort_unstable();
        begun.dedup();
        let common = rows.iter().fold(0, |common, row| greatest_common_divisor(common, row.len()));
        match begun.len() {
            different if different == hosts.len() || different <= 1 => Self::Flat,
            different if different == rows.len() && rows.iter().all(|row| row.len() == common) => {
                Self::Even(common)
            }
            _ => Self::Uneven(common),
        }
    }

    /// What the user should know of a hierarchy on them.
    fn warning(&self) -> Option<String> {
        const OTHER_BITS: &str = "differ in the last bits from those of other meshes, because";
        match *self {
            Self::Even(ranks) if !ranks.is_power_of_two() => Some(format!(
                "sums are made host by host, of {ranks} ranks each: they {OTHER_BITS} {ranks} is not a power of two"
            )),
            Self::Flat | Self::Even(_) => None,
            Self::Uneven(1) => Some(
                "its hosts have different numbers of consecutive ranks, without a common divisor: its collectives are flat"
                    .into(),
            ),
            Self::Uneven(common) => {
                let bits = match common.is_power_of_two() {
                    true => String::new(),
                    false => format!(", and {OTHER_BITS} {common} is not a power of two"),
                };
                Some(format!(
                    "its hosts have different numbers of ranks: sums are made among {common} ranks of a host first, so a byte \
                     crosses the network once for each {common} ranks{bits}"
                ))
            }
        }
    }

    /// The largest power of two of neighbours that divides all hosts: sums of as many are nodes of the pairwise tree.
    fn aligned(&self) -> usize {
        match self {
            Self::Flat => 1,
            Self::Even(ranks) | Self::Uneven(ranks) => 1 << ranks.trailing_zeros(),
        }
    }
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if a == 0 { b } else { greatest_common_divisor(b % a, a) }
}
