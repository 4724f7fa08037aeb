//! Bytes of error feedback: what compressed gradients leave out is kept for the next update.

use brigade_compress::{Compression, Matrix};

use super::stage::Sharding;

/// What a rank keeps of gradients that travel as codes, in bytes of an element. The default keeps nothing: gradients travel as they are, or in codes that
/// need no error feedback.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct KeptBytes {
    /// For each element of its own gradient, all of which it codes for the others.
    pub gradient: f64,
    /// For each element of its part of the sum, where it sends that to all others as codes, too.
    pub sum: f64,
}

impl KeptBytes {
    /// Of this compression, for square matrices as wide as the model where that makes a difference.
    pub fn of(compression: &Compression, hidden: usize) -> Self {
        let numbers = hidden * hidden;
        let matrices = [Matrix { start: 0, rows: hidden, columns: hidden }];
        let kept = |sends_sums| {
            let cost = compression.cost(1, (numbers, numbers), sends_sums, &matrices);
            cost.map_or(0.0, |cost| cost.kept as f64 / numbers.max(1) as f64)
        };
        let gradient = kept(false);
        Self { gradient, sum: kept(true) - gradient }
    }
}

/// What a rank keeps of a stage of which it steps this many elements: all of what it adds to others' gradients, whichever part of the sum it needs.
pub(super) fn kept(sharding: &Sharding, stepped: u64) -> u64 {
    let Sharding { zero, shards, replicas, kept: KeptBytes { gradient, sum }, .. } = *sharding;
    let (shards, replicas) = (shards.max(1) as u64, replicas.max(1) as u64);
    let is_sharded = zero > 0 && shards > 1;
    // Replicas of shards add up shards; others whole gradients, and without ZeRO they need the whole sum.
    let (elements, ranks, sends_sums) = match is_sharded {
        _ if replicas > 1 => (if is_sharded { stepped.div_ceil(shards) } else { stepped }, replicas, true),
        true => (stepped, shards, false),
        false => (stepped, shards, true),
    };
    let own = gradient * elements as f64;
    match (ranks, sends_sums) {
        (1, _) => 0,
        (_, false) => own as u64,
        (_, true) => (own + sum * elements.div_ceil(ranks) as f64) as u64,
    }
}
