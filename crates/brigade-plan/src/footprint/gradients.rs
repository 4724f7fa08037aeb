//! Gradients on their way from micro-batches to the optimizer, as numbers of buffers.

use std::collections::VecDeque;

use super::holding::Holding;
use crate::schedule::Action;

/// Most sums over the ranks that are on their way at once where each micro-batch is summed.
const IN_FLIGHT: usize = 2;

/// Bytes of an element of a gradient that is held.
const BYTES: u64 = 4;

/// One block's gradient for one unit.
#[derive(Clone, Copy)]
struct Slot {
    /// Bytes of the whole buffer.
    whole: u64,
    /// Bytes of a rank's own part of it.
    own: u64,
    /// Micro-batches in the sum of whole buffers, which no other rank has a part in yet.
    terms: usize,
    /// Terms in the sum of own parts, which are sums over the ranks.
    own_terms: usize,
}

/// A block, and which of its slots.
type Place = (usize, usize);

struct Gradients {
    /// For each block of the model, one slot for each unit that it reads.
    slots: Vec<Vec<Slot>>,
    /// Where sums over the ranks that are on their way belong, oldest first.
    reducing: VecDeque<Place>,
    live: u64,
    peak: u64,
}

/// Bytes of gradients on a rank: when all are summed, and at most.
pub(super) fn gradients(holding: &Holding<'_>) -> (u64, u64) {
    let mut gradients = Gradients::new(holding);
    for action in &holding.program.actions {
        let Action::Backward(task) = action else { continue };
        for block in holding.stage.blocks(task.chunk).rev() {
            for place in (0..holding.by_block[block].len()).map(|slot| (block, slot)) {
                if holding.configuration.sums_each_micro_batch() {
                    gradients.reduce_at_once(place);
                } else {
                    gradients.add(place, holding.configuration.micro_batches);
                }
            }
        }
    }
    while let Some(oldest) = gradients.reducing.pop_front() {
        gradients.settle(oldest);
    }
    (gradients.live, gradients.peak)
}

impl Gradients {
    fn new(holding: &Holding<'_>) -> Self {
        let slot = |unit: &usize| {
            let held = &holding.units[*unit];
            Slot { whole: BYTES * held.length as u64, own: BYTES * held.own as u64, terms: 0, own_terms: 0 }
        };
        let slots = holding.by_block.iter().map(|units| units.iter().map(slot).collect()).collect();
        Self { slots, reducing: VecDeque::new(), live: 0, peak: 0 }
    }

    /// A micro-batch's gradient goes to the other ranks, as soon as there is room on the way.
    fn reduce_at_once(&mut self, place: Place) {
        while self.reducing.len() >= IN_FLIGHT
            && let Some(oldest) = self.reducing.pop_front()
        {
            self.settle(oldest);
        }
        self.reducing.push_back(place);
        self.grow(self.slot(place).whole, 0);
    }

    /// A micro-batch's gradient is added up; the last one's sum goes to the other ranks.
    fn add(&mut self, place: Place, micro_batches: usize) {
        let Slot { whole, terms, .. } = self.slot(place);
        self.slots[place.0][place.1].terms += 1;
        self.grow(whole * partial_sums(terms + 1), whole * partial_sums(terms));
        if terms + 1 == micro_batches {
            self.reducing.push_back(place);
            self.grow(whole, whole * partial_sums(micro_batches));
        }
    }

    /// A sum over the ranks has come.
    fn settle(&mut self, place: Place) {
        let Slot { whole, own, own_terms, .. } = self.slot(place);
        self.slots[place.0][place.1].own_terms += 1;
        self.grow(own * partial_sums(own_terms + 1), whole + own * partial_sums(own_terms));
    }

    fn slot(&self, (block, slot): Place) -> Slot {
        self.slots[block][slot]
    }

    fn grow(&mut self, by: u64, less: u64) {
        self.live = self.live + by - less;
        self.peak = self.peak.max(self.live);
    }
}

/// The buffers that a pairwise sum of so many terms keeps: sums of 1, 2, 4, ... terms, as in the binary number.
fn partial_sums(terms: usize) -> u64 {
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
