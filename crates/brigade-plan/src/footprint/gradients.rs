//! Gradients between the micro-batches and the optimizer, as numbers of buffers.

use std::collections::VecDeque;

use super::configuration::Configuration;
use super::stage_units::{StageUnit, StageUnits};

/// How many reductions are in flight at once if each micro-batch is reduced: each holds a whole gradient of one unit.
pub const REDUCING: usize = 2;

/// Bytes of an element of a gradient that is held.
const BYTES: u64 = 4;

/// The gradient of one unit.
#[derive(Clone, Copy)]
struct Slot {
    /// Bytes of the whole buffer.
    whole: u64,
    /// Bytes of a rank's own part of it.
    own: u64,
    /// Bytes while it is summed over the ranks, and while the own part is summed over replicas of shards.
    moving: [u64; 2],
    /// Micro-batches in this rank's sum of whole buffers.
    terms: usize,
    /// Terms in the sum of own parts, each of which is a sum over the ranks.
    own_terms: usize,
}

struct Gradients {
    /// One for each unit of the stage; those that it does not step stay empty.
    slots: Vec<Slot>,
    /// The units whose reductions are in flight, oldest first.
    reducing: VecDeque<usize>,
    live: u64,
    peak: u64,
}

/// Bytes of gradients on a rank: when all are reduced, and at the peak.
///
/// A unit's gradient of a micro-batch is complete in the backward of its owner, the first block that reads it.
pub(super) fn gradients(stage_units: &StageUnits<'_>) -> (u64, u64) {
    let mut gradients = Gradients::new(&stage_units.units, stage_units.configuration.replicas);
    let Configuration { micro_batches, sync_every, .. } = *stage_units.configuration;
    for action in (0..sync_every).flat_map(|_| &stage_units.schedule.actions) {
        for block in stage_units.completes(action) {
            let is_complete = |unit: &&usize| {
                let unit = &stage_units.units[**unit];
                unit.is_stepped && unit.owner_block == block
            };
            for unit in stage_units.by_block[block].iter().filter(is_complete) {
                if stage_units.configuration.sums_each_micro_batch() {
                    gradients.reduce_at_once(*unit);
                } else {
                    gradients.add(*unit, micro_batches * sync_every);
                }
            }
        }
    }
    while let Some(oldest) = gradients.reducing.pop_front() {
        gradients.finish_reduction(oldest);
    }
    if stage_units.configuration.replicas > 1 {
        gradients.reduce_over_replicas();
    }
    let codes = stage_units.units.iter().filter(|unit| unit.is_stepped).filter_map(|unit| unit.codes);
    let kept: u64 = codes.map(|codes| codes.kept).sum();
    (gradients.live + kept, gradients.peak + kept)
}

impl Gradients {
    fn new(units: &[StageUnit], replicas: usize) -> Self {
        let slot = |held: &StageUnit| {
            let bytes = |elements: usize| BYTES * elements as u64;
            let (whole, own) = (bytes(held.length), bytes(held.own));
            let moving = match held.codes {
                None => [whole, own],
                Some(codes) if replicas > 1 => [whole, codes.in_flight],
                Some(codes) => [codes.in_flight, own],
            };
            Slot { whole, own, moving, terms: 0, own_terms: 0 }
        };
        Self { slots: units.iter().map(slot).collect(), reducing: VecDeque::new(), live: 0, peak: 0 }
    }

    /// A micro-batch's gradient is reduced, once few enough reductions are in flight.
    fn reduce_at_once(&mut self, unit: usize) {
        while self.reducing.len() >= REDUCING
            && let Some(oldest) = self.reducing.pop_front()
        {
            self.finish_reduction(oldest);
        }
        self.reducing.push_back(unit);
        self.grow(self.slots[unit].moving[0], 0);
    }

    /// A micro-batch's gradient is accumulated; after the last one, the sum is reduced.
    fn add(&mut self, unit: usize, micro_batches: usize) {
        let Slot { whole, terms, .. } = self.slots[unit];
        self.slots[unit].terms += 1;
        self.grow(whole * partial_sums(terms + 1), whole * partial_sums(terms));
        if terms + 1 == micro_batches {
            self.reducing.push_back(unit);
            self.grow(self.slots[unit].moving[0], whole * partial_sums(micro_batches));
        }
    }

    /// A reduction has finished.
    fn finish_reduction(&mut self, unit: usize) {
        let Slot { moving: [moving, _], own, own_terms, .. } = self.slots[unit];
        self.slots[unit].own_terms += 1;
        self.grow(own * partial_sums(own_terms + 1), moving + own * partial_sums(own_terms));
    }

    /// The sums of all own parts are summed over the replicas of the shards, and come back.
    fn reduce_over_replicas(&mut self) {
        let summed = |slot: &&Slot| slot.own_terms > 0;
        let slots: Vec<Slot> = self.slots.iter().filter(summed).copied().collect();
        for Slot { own, own_terms, moving: [_, moving], .. } in &slots {
            self.grow(*moving, own * partial_sums(*own_terms));
        }
        for Slot { own, moving: [_, moving], .. } in &slots {
            self.grow(*own, *moving);
        }
    }

    fn grow(&mut self, by: u64, less: u64) {
        self.live = self.live + by - less;
        self.peak = self.peak.max(self.live);
    }
}

/// How many buffers a pairwise sum of this many terms keeps: sums of 1, 2, 4, … terms, one per binary digit that is 1.
pub(super) fn partial_sums(terms: usize) -> u64 {
    u64::from(terms.count_ones())
}

#[cfg(test)]
mod tests {
    use super::partial_sums;

    #[test]
    fn neighbours_of_the_same_size_are_added() {
        let mut sizes: Vec<usize> = Vec::new();
        for terms in 1..200 {
            let mut size = 1;
            while sizes.pop_if(|last| *last == size).is_some() {
                size *= 2;
            }
            sizes.push(size);
            assert_eq!(partial_sums(terms), sizes.len() as u64);
        }
    }
}
