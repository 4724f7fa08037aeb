//! How long collectives take: latency and bandwidth of rings, trees and hierarchies of nodes.
//!
//! The costs are those of Thakur et al. 2005, "Optimization of collective communication operations in MPICH", section 3, with the double binary trees of
//! Sanders et al. 2009, whose bandwidth is a ring's.

use brigade_sorted::SortedSet;
use serde::Serialize;

use crate::cluster::{Cluster, Collective, MeasuredLinks};

/// How ranks of a collective talk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PlannedAlgorithm {
    /// On GPUs as NCCL chooses: of rings and trees what is faster for the size. All-gathers and reduce-scatters have rings only, whose latency grows with the
    /// ranks. On processors as Brigade's own: hierarchical over several nodes, else flat.
    Auto,
    /// Every rank to the next.
    Ring,
    /// Two binary trees over the nodes.
    Tree,
    /// First within nodes, then between them on what each rank has, then within again.
    Hierarchical,
    /// Every rank with every other at once.
    Flat,
    /// Pairs, pairs of pairs and so on: recursive halving and doubling.
    Halving,
}

impl PlannedAlgorithm {
    /// All but [`Auto`](Self::Auto).
    pub const ALL: [Self; 5] = [Self::Ring, Self::Tree, Self::Hierarchical, Self::Flat, Self::Halving];

    /// The name in flags.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Ring => "ring",
            Self::Tree => "tree",
            Self::Hierarchical => "hierarchical",
            Self::Flat => "flat",
            Self::Halving => "halving",
        }
    }
}

/// Ranks of a group, and their placement on nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct GroupPlacement {
    /// All of them.
    pub size: usize,
    /// Those on one node; on the one with the fewest, where nodes have different numbers.
    pub per_node: usize,
    /// Nodes that they are on.
    pub nodes: usize,
}

/// The links of a cluster, and how collectives use them.
#[derive(Debug, Clone)]
pub struct Network<'a> {
    cluster: &'a Cluster,
    algorithm: PlannedAlgorithm,
}

impl<'a> Network<'a> {
    /// With collectives as this algorithm runs them.
    pub fn new(cluster: &'a Cluster, algorithm: PlannedAlgorithm) -> Self {
        Self { cluster, algorithm }
    }

    /// The ranks of a group of `size` whose members are `stride` ranks apart: of the groups that the ranks of the cluster are divided into, the one on the most
    /// nodes.
    pub fn ranks(&self, size: usize, stride: usize) -> GroupPlacement {
        let (size, stride, devices) = (size.max(1), stride.max(1), self.cluster.devices_per_node.max(1));
        if stride >= devices {
            return GroupPlacement { size, per_node: 1, nodes: size };
        }
        // Where groups begin on their first nodes.
        let span = size * stride;
        let groups = (self.cluster.devices() / span).clamp(1, devices);
        let starts: SortedSet<usize> = (0..groups).map(|group| group * span % devices).collect();
        let offsets = starts.into_iter().flat_map(|start| start..start + stride);
        let placed = offsets.map(|start| placed(start, size, stride, devices));
        let worst = placed.max_by_key(|placed| (placed.nodes, std::cmp::Reverse(placed.per_node)));
        worst.unwrap_or(GroupPlacement { size, per_node: 1, nodes: size })
    }

    /// Seconds of a message of this many bytes from each of `ranks` neighbours, beginning with `from`, to those that begin with `to`: each has its own share of the
    /// node's links, and the slowest holds all up.
    pub fn message(&self, bytes: f64, from: usize, to: usize, ranks: usize) -> f64 {
        let node = |rank: usize| rank / self.cluster.devices_per_node.max(1);
        let last = ranks.saturating_sub(1);
        let crosses = node(from) != node(to) || node(from + last) != node(to + last);
        let link = if crosses { self.cluster.inter_node } else { self.cluster.intra_node };
        link.latency + bytes / (link.bandwidth * self.cluster.device.efficiency.links)
    }

    /// Seconds of a collective over `bytes` of each rank's whole buffer.
    pub fn collective(&self, collective: Collective, bytes: f64, ranks: GroupPlacement) -> f64 {
        if ranks.size <= 1 || bytes <= 0.0 {
            return 0.0;
        }
        if let Some(measured) = self.measured(collective, bytes, ranks) {
            return measured;
        }
        match self.algorithm {
            PlannedAlgorithm::Auto if self.cluster.is_cpu() => {
                let is_level = ranks.nodes > 1 && ranks.per_node > 1;
                let own = if is_level { PlannedAlgorithm::Hierarchical } else { PlannedAlgorithm::Flat };
                self.by(own, collective, bytes, ranks)
            }
            PlannedAlgorithm::Auto => {
                let [ring, tree] = [PlannedAlgorithm::Ring, PlannedAlgorithm::Tree];
                self.by(ring, collective, bytes, ranks).min(self.by(tree, collective, bytes, ranks))
            }
            algorithm => self.by(algorithm, collective, bytes, ranks),
        }
    }

    /// By the measured bus bandwidth: an all-reduce of S bytes over n ranks takes 2 (n-1)/n S / bandwidth, the others half of it. That was one message over whole nodes. What
    /// the links alone would not take of it is shared out over the steps of a ring, of which other groups have more or fewer; the rest grows with the bytes, and ranks that are
    /// a part of their nodes have that part of the links.
    fn measured(&self, collective: Collective, bytes: f64, ranks: GroupPlacement) -> Option<f64> {
        let measured = self.cluster.measured.as_ref()?;
        let (n, nodes, devices) = (ranks.size as f64, ranks.nodes, self.cluster.devices_per_node);
        let bus = self.measured_bandwidth(measured, collective, nodes)?;
        let passes = if collective == Collective::AllReduce { 2.0 } else { 1.0 };
        let links = self.ring_bandwidth(self.whole_nodes(nodes)).max(bus);
        let step = measured.message * (1.0 / bus - 1.0 / links) / (nodes * devices) as f64;
        let share = if nodes > 1 { ranks.per_node as f64 / devices as f64 } else { 1.0 };
        Some(passes * ((n - 1.0) * step + (n - 1.0) / n * bytes / (links * share)))
    }

    /// The measured bus bandwidth over this many nodes. Where only others were measured, the nearest value changes as a ring's over the links does, and is at most that.
    fn measured_bandwidth(
        &self,
        measured: &MeasuredLinks,
        collective: Collective,
        nodes: usize,
    ) -> Option<f64> {
        let (there, bus) = measured.nearest(collective, nodes)?;
        if there == nodes {
            return Some(bus);
        }
        let ring = |nodes: usize| {
            let whole = self.whole_nodes(nodes);
            let steps = whole.size as f64 * self.latency(whole);
            measured.message / (steps + measured.message / self.ring_bandwidth(whole))
        };
        Some((bus * ring(nodes) / ring(there)).min(ring(nodes)))
    }

    /// All ranks of this many nodes.
    fn whole_nodes(&self, nodes: usize) -> GroupPlacement {
        let per_node = self.cluster.devices_per_node;
        GroupPlacement { size: nodes * per_node, per_node, nodes }
    }

    /// Bytes a second of a ring: what leaves a node does so over the links of all its ranks in the group.
    fn ring_bandwidth(&self, ranks: GroupPlacement) -> f64 {
        let links = self.cluster.device.efficiency.links;
        let (inside, outside) =
            (self.cluster.intra_node.bandwidth * links, self.cluster.inter_node.bandwidth * links);
        if ranks.nodes > 1 { inside.min(outside * ranks.per_node as f64) } else { inside }
    }

    fn latency(&self, ranks: GroupPlacement) -> f64 {
        let crosses = ranks.nodes > 1;
        if crosses { self.cluster.inter_node.latency } else { self.cluster.intra_node.latency }
    }

    fn by(
        &self,
        algorithm: PlannedAlgorithm,
        collective: Collective,
        bytes: f64,
        ranks: GroupPlacement,
    ) -> f64 {
        let links = self.cluster.device.efficiency.links;
        let (intra, inter) = (self.cluster.intra_node, self.cluster.inter_node);
        let [n, k, nodes] = [ranks.size, ranks.per_node, ranks.nodes].map(|number| number as f64);
        let passes = if collective == Collective::AllReduce { 2.0 } else { 1.0 };
        let (inside, outside) = (intra.bandwidth * links, inter.bandwidth * links);
        let ring = self.ring_bandwidth(ranks);
        match algorithm {
            PlannedAlgorithm::Tree if collective == Collective::AllReduce => {
                let depth = nodes.log2().ceil() * inter.latency + (k - 1.0) * intra.latency;
                2.0 * depth + 2.0 * bytes / ring
            }
            PlannedAlgorithm::Hierarchical if nodes > 1.0 && k > 1.0 => {
                let within = (k - 1.0) * intra.latency + (k - 1.0) / k * bytes / inside;
                let between = (nodes - 1.0) * inter.latency + (nodes - 1.0) / nodes * (bytes / k) / outside;
                passes * (within + between)
            }
            PlannedAlgorithm::Flat => {
                // What goes to ranks of other nodes goes there once for each, over the link of the one that sends.
                let (near, far) = ((k - 1.0) / n * bytes / inside, (n - k) / n * bytes / outside);
                passes * (self.latency(ranks) + near.max(far))
            }
            PlannedAlgorithm::Halving => {
                // Neighbours come first, so that only what a node's ranks have summed leaves it.
                let within = (k - 1.0) / k * bytes / inside;
                let between = (nodes - 1.0) / nodes * (bytes / k) / outside;
                passes * (n.log2().ceil() * self.latency(ranks) + within + between)
            }
            _ => passes * ((n - 1.0) * self.latency(ranks) + (n - 1.0) / n * bytes / ring),
        }
    }
}

/// A group of `size` ranks, `stride` apart, that begins at this place on a node of so many devices.
fn placed(start: usize, size: usize, stride: usize, devices: usize) -> GroupPlacement {
    let (mut nodes, mut fewest, mut first) = (0, size, 0);
    while first < size {
        let node = (start + first * stride) / devices;
        // The first of the ranks that is on a later node.
        let next = ((node + 1) * devices - start).div_ceil(stride).min(size);
        let here = next - first;
        // Those after it are the same while whole nodes follow.
        let alike = if devices.is_multiple_of(stride) && first > 0 { (size - first) / here } else { 1 };
        (nodes, fewest, first) = (nodes + alike, fewest.min(here), first + alike * here);
    }
    GroupPlacement { size, per_node: fewest, nodes }
}
