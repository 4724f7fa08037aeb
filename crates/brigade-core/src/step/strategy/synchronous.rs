//! Synchronous data parallelism, with ZeRO's sharding of gradients.

use std::collections::VecDeque;
use std::ops::Range;

use brigade_plan::REDUCING;
use burn::tensor::Tensor;

use crate::dist::PendingTensor;
use crate::error::Result;
use crate::metrics::{Bytes, Clock};
use crate::optim::SavedState;
use crate::step::gradients::accumulation::PairwiseSum;
use crate::step::strategy::rank_sums::{Exact, InFlight, RankSums, held};
use crate::step::strategy::{DataParallel, ReducedUnit, Reduction, ReductionState, Strategy};

/// All ranks reduce their gradients together, and all make the same update: plain data parallelism, ZeRO, and hybrid sharding.
///
/// A gradient is reduce-scattered over the ranks that it is sharded over, then all-reduced over those that have the same
/// elements; without ZeRO there is no reduce-scatter, without replicas no all-reduce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Synchronous {
    /// Only once in this many steps; in the others a rank adds gradients up without telling other replicas, as in PyTorch's `no_sync`.
    /// (ZeRO-2 and ZeRO-3 still reduce-scatter, if they [reduce](crate::ReduceEvery) each micro-batch, and ZeRO-3 gathers
    /// parameters in every step.) The update is that of all these steps' micro-batches.
    pub every: usize,
}

impl Default for Synchronous {
    fn default() -> Self {
        Self { every: 1 }
    }
}

impl Strategy for Synchronous {
    fn synchronizes(&self, step: u64) -> bool {
        step.is_multiple_of(self.period() as u64)
    }

    fn period(&self) -> usize {
        self.every.max(1)
    }

    fn reduction(&self, units: Vec<ReducedUnit>, data: DataParallel) -> Box<dyn Reduction> {
        Box::new(AllReduce::new(units, data.clone(), Box::new(Exact(data))))
    }
}

/// The gradients since the last update, which are added up on the rank and then over the ranks.
pub(super) struct AllReduce {
    slots: Vec<Slot>,
    data: DataParallel,
    sums: Box<dyn RankSums>,
    /// Reduce-scatters on their way, with the slots they are for.
    scattering: VecDeque<(usize, InFlight)>,
    /// All-reduces over the replicas.
    reducing: VecDeque<(usize, InFlight)>,
    /// The last operations of either, with their bytes.
    ending: VecDeque<(usize, PendingTensor, u64)>,
    bytes: Bytes,
}

/// The gradient of one unit.
struct Slot {
    unit: ReducedUnit,
    /// What has not been scattered yet, of the whole buffer.
    whole: Grouped,
    /// What has, of the own elements.
    own: PairwiseSum<Tensor<1>>,
    /// Whether nothing will be added before the update.
    complete: bool,
}

impl Reduction for AllReduce {
    fn begin(&mut self, step: u64) {
        self.sums.begin(step);
    }

    fn add(&mut self, unit: usize, gradient: Tensor<1>, clock: &mut Clock) -> Result<()> {
        if !self.slots[unit].unit.is_updated {
            return Ok(());
        }
        debug_assert!(!self.slots[unit].complete, "the sum of unit {unit} is already on its way");
        let gradient = held(gradient);
        if self.data.shard.size() > 1 && self.data.zero.reduces_each_micro_batch() {
            while self.scattering.len() >= REDUCING {
                let oldest = self.scattering.pop_front();
                self.end(oldest, SCATTER, clock)?;
                self.wait_for_ends(SCATTER, clock)?;
            }
            self.scatter(unit, gradient);
        } else {
            self.slots[unit].whole.push(gradient, self.data.sum_group);
        }
        self.count();
        Ok(())
    }

    fn complete(&mut self, unit: usize) {
        if std::mem::replace(&mut self.slots[unit].complete, true) {
            return;
        }
        let Some(sum) = self.slots[unit].whole.finish() else { return };
        match self.data.shard.size() {
            1 => self.reduce(unit, sum),
            _ => self.scatter(unit, sum),
        }
        self.count();
    }

    fn finish(&mut self, clock: &mut Clock) -> Result<Vec<Option<Tensor<1>>>> {
        for scattered in std::mem::take(&mut self.scattering) {
            self.end(Some(scattered), SCATTER, clock)?;
        }
        self.wait_for_ends(SCATTER, clock)?;
        if self.data.replicate.size() > 1 && self.data.shard.size() > 1 {
            for unit in 0..self.slots.len() {
                if let Some(sum) = self.slots[unit].own.finish(|a, b| a + b) {
                    self.reduce(unit, sum);
                    self.count();
                }
            }
        }
        for reduced in std::mem::take(&mut self.reducing) {
            self.end(Some(reduced), REDUCE, clock)?;
        }
        self.wait_for_ends(REDUCE, clock)?;
        self.bytes.set(self.live());
        let sums = self.slots.iter_mut().map(|slot| {
            slot.complete = false;
            slot.own.finish(|a, b| a + b)
        });
        Ok(sums.collect())
    }

    fn commit(&mut self, updates: bool) {
        self.sums.commit(updates);
    }

    fn reset(&mut self) {
        // What is on its way is waited for by nobody, but still happens, on all ranks.
        self.data.shard.flush();
        self.data.replicate.flush();
        (self.scattering, self.reducing, self.ending) = Default::default();
        self.sums.commit(false);
        for slot in &mut self.slots {
            (slot.whole, slot.own, slot.complete) = (Grouped::default(), PairwiseSum::new(), false);
        }
    }

    fn bytes(&self) -> Bytes {
        self.bytes
    }

    fn state(&self, unit: usize, share: Range<usize>) -> ReductionState {
        self.sums.state(unit, share)
    }

    fn needs(&self, unit: usize, array: &str, own: Range<usize>) -> Range<usize> {
        self.sums.needs(unit, array, own)
    }

    fn restore(&mut self, unit: usize, saved: &SavedState) -> Result<()> {
        self.sums.restore(unit, saved)
    }
}

/// What waits for either sum are called.
const SCATTER: &str = "reduce_scatter";
const REDUCE: &str = "all_reduce";

impl AllReduce {
    pub(super) fn new(units: Vec<ReducedUnit>, data: DataParallel, sums: Box<dyn RankSums>) -> Self {
        let slot = |unit| Slot { unit, whole: Grouped::default(), own: PairwiseSum::new(), complete: false };
        Self {
            slots: units.into_iter().map(slot).collect(),
            data,
            sums,
            scattering: VecDeque::new(),
            reducing: VecDeque::new(),
            ending: VecDeque::new(),
            bytes: Bytes::default(),
        }
    }

    fn scatter(&mut self, unit: usize, gradient: Tensor<1>) {
        let moving = self.sums.scatter(unit, gradient);
        self.scattering.push_back((unit, moving));
    }

    fn reduce(&mut self, unit: usize, gradient: Tensor<1>) {
        let moving = self.sums.reduce(unit, gradient);
        self.reducing.push_back((unit, moving));
    }

    /// Starts the second operation of a sum, if it has several. All ranks come here for the same sums in the same order.
    fn end(&mut self, sum: Option<(usize, InFlight)>, what: &'static str, clock: &mut Clock) -> Result<()> {
        if let Some((unit, moving)) = sum {
            let bytes = moving.bytes;
            self.ending.push_back((unit, moving.advance(what, clock)?, bytes));
        }
        Ok(())
    }

    fn wait_for_ends(&mut self, what: &'static str, clock: &mut Clock) -> Result<()> {
        // One phase of all sums after the other, so that what they send in each can travel together.
        while self.ending.iter().any(|(_, pending, _)| pending.has_next_phase()) {
            for (unit, pending, bytes) in std::mem::take(&mut self.ending) {
                let pending = clock.waiting(what, || pending.next_phase())?;
                self.ending.push_back((unit, pending, bytes));
            }
        }
        while let Some((unit, pending, _)) = self.ending.pop_front() {
            let sum = clock.waiting(what, || pending.wait())?;
            self.slots[unit].own.push(held(sum), |a, b| a + b);
            self.count();
        }
        Ok(())
    }

    fn live(&self) -> u64 {
        let kept =
            |slot: &Slot| slot.whole.kept() * slot.unit.elements + slot.own.kept() * slot.unit.own.len();
        let kept: usize = self.slots.iter().map(kept).sum();
        let moving = self.scattering.iter().chain(&self.reducing).map(|(_, moving)| moving.bytes);
        let ending = self.ending.iter().map(|(.., bytes)| *bytes);
        4 * kept as u64 + moving.chain(ending).sum::<u64>() + self.sums.kept_bytes()
    }

    fn count(&mut self) {
        self.bytes.set(self.live());
    }
}

/// A pairwise sum of groups of terms that are each summed pairwise: with groups of more than one term, the
/// order in which that many ranks would sum each micro-batch.
#[derive(Default)]
struct Grouped {
    sums: PairwiseSum<Tensor<1>>,
    group: PairwiseSum<Tensor<1>>,
    terms: usize,
}

impl Grouped {
    fn push(&mut self, term: Tensor<1>, size: usize) {
        self.group.push(term, |a, b| a + b);
        self.terms += 1;
        if self.terms.is_multiple_of(size.max(1)) {
            self.close();
        }
    }

    fn close(&mut self) {
        if let Some(sum) = self.group.finish(|a, b| a + b) {
            self.sums.push(sum, |a, b| a + b);
        }
    }

    fn finish(&mut self) -> Option<Tensor<1>> {
        self.close();
        self.terms = 0;
        self.sums.finish(|a, b| a + b)
    }

    fn kept(&self) -> usize {
        self.sums.kept() + self.group.kept()
    }
}
