//! How the ranks of a group are placed on hosts, and which levels their collectives use.

use crate::algorithm::{Algorithm, AlgorithmRow};
use crate::op::call::{Call, OpType};
use crate::op::dtype::DType;
use crate::op::plan::levels::Levels;

/// What the plans of a group depend on besides the call. The same on all of its ranks.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    direct: Levels,
    chosen: Levels,
    algorithm: Algorithm,
    /// Neighbours on each host, where `chosen` is inside hosts first.
    ranks_per_host: Option<usize>,
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
    /// In another way.
    Uneven,
}

impl Layout {
    /// The layout of a group whose rank r is on host `hosts[r]`.
    pub(crate) fn new(hosts: &[usize], algorithm: Algorithm) -> Self {
        let ranks = hosts.len();
        let on_hosts = Hosts::of(hosts);
        let flat = || Levels::flat(ranks);
        let mut warning = None;
        let chosen = match (algorithm, on_hosts) {
            (Algorithm::Flat, _) | (_, Hosts::Flat) if algorithm != Algorithm::Halving => flat(),
            (Algorithm::Halving, _) => Levels::halving(ranks),
            (_, Hosts::Even(per_host)) if per_host.is_power_of_two() => Levels::hierarchical(ranks, per_host),
            (Algorithm::Hierarchical, Hosts::Even(per_host)) => {
                warning = Some(format!(
                    "sums are made host by host, of {per_host} ranks each: they differ in the last bits from those of \
                    other meshes, because {per_host} is not a power of two"
                ));
                Levels::hierarchical(ranks, per_host)
            }
            (Algorithm::Hierarchical, _) => {
                warning = Some(
                    "its hosts do not have the same number of consecutive ranks: its collectives are flat"
                        .into(),
                );
                flat()
            }
            _ => flat(),
        };
        let ranks_per_host = match (algorithm, Hosts::of(hosts)) {
            (Algorithm::Auto, Hosts::Even(per_host)) if per_host.is_power_of_two() => Some(per_host),
            (Algorithm::Hierarchical, Hosts::Even(per_host)) => Some(per_host),
            _ => None,
        };
        let algorithm = match algorithm {
            Algorithm::Halving => Algorithm::Halving,
            _ if chosen == flat() => Algorithm::Flat,
            _ => Algorithm::Hierarchical,
        };
        let direct = Levels::direct(ranks);
        Self { direct, chosen, algorithm, ranks_per_host, table: Vec::new(), warning }
    }

    /// With a table of algorithms, for a group of ranks on these hosts.
    pub(crate) fn with_table(self, hosts: &[usize], rows: &[AlgorithmRow]) -> Self {
        let ranks = hosts.len();
        let levels = |row: &AlgorithmRow| match (row.algorithm, Hosts::of(hosts)) {
            (Algorithm::Halving, _) => Levels::halving(ranks),
            (Algorithm::Hierarchical, Hosts::Even(per_host)) if per_host.is_power_of_two() => {
                Levels::hierarchical(ranks, per_host)
            }
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

    /// How many neighbours are on each host, where that is what makes levels.
    pub(crate) fn ranks_per_host(&self) -> Option<usize> {
        self.ranks_per_host
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
        let first = |rank: usize| rank == 0 || hosts[rank] != hosts[rank - 1];
        let per_host = (1..hosts.len()).find(|rank| first(*rank)).unwrap_or(hosts.len());
        let mut begun: Vec<usize> =
            (0..hosts.len()).filter(|rank| first(*rank)).map(|rank| hosts[rank]).collect();
        let runs = begun.len();
        begun.sort_unstable();
        begun.dedup();
        let is_even = hosts.len().is_multiple_of(per_host.max(1))
            && (0..hosts.len()).all(|rank| first(rank) == rank.is_multiple_of(per_host));
        match runs {
            _ if begun.len() == hosts.len() || begun.len() <= 1 => Self::Flat,
            _ if is_even && begun.len() == runs => Self::Even(per_host),
            _ => Self::Uneven,
        }
    }
}
