//! Gradients on their way from micro-batches to the optimizer: added up, and summed over the ranks.

use std::collections::VecDeque;

use brigade_plan::REDUCING;
use burn::tensor::{FloatDType, Tensor};

use crate::dist::PendingTensor;
use crate::error::Result;
use crate::metrics::Bytes;
use crate::metrics::Clock;
use crate::sharding::store::{ParameterStore, StoredUnit, cast};
use crate::step::accumulation::PairwiseSum;

/// The gradients of one step on this rank.
pub(crate) struct Gradients {
    slots: Vec<Slot>,
    /// Sums over the ranks on their way, with the slot they are for.
    reducing: VecDeque<(usize, PendingTensor)>,
    bytes: Bytes,
    group: usize,
}

/// The gradient of one unit that is updated here.
struct Slot {
    unit: usize,
    /// What is not summed over the ranks yet, of the whole buffer.
    whole: Grouped,
    /// What is, of the own elements.
    own: PairwiseSum<Tensor<1>>,
    /// Elements of the whole buffer, and of the own part.
    elements: (usize, usize),
}

impl Gradients {
    /// `group`: see [`crate::EngineSettings::sum_group`]. `peak`: of earlier steps.
    pub(crate) fn new(store: &ParameterStore, group: usize, peak: Bytes) -> Self {
        let updated = store.units.iter().enumerate().filter(|(_, stored)| stored.is_updated());
        let slot = |(unit, stored): (usize, &StoredUnit)| Slot {
            unit,
            whole: Grouped::default(),
            own: PairwiseSum::new(),
            elements: (stored.length, stored.own.len()),
        };
        let slots = updated.map(slot).collect();
        Self { slots, reducing: VecDeque::new(), bytes: Bytes { live: 0, ..peak }, group }
    }

    /// Adds one micro-batch's gradient of a unit: a whole buffer.
    pub(crate) fn add(
        &mut self,
        store: &ParameterStore,
        unit: usize,
        gradient: Tensor<1>,
        clock: &mut Clock,
    ) -> Result<()> {
        let Some(index) = self.slots.iter().position(|slot| slot.unit == unit) else { return Ok(()) };
        let gradient = cast(gradient, FloatDType::F32);
        if store.is_sharded() && store.zero.reduces_each_micro_batch() {
            while self.reducing.len() >= REDUCING {
                self.wait_for_oldest(store, clock)?;
            }
            self.reduce(store, index, gradient);
        } else {
            self.slots[index].whole.push(gradient, self.group);
        }
        self.count();
        Ok(())
    }

    /// All micro-batches' gradients of a unit are there.
    pub(crate) fn complete(&mut self, store: &ParameterStore, unit: usize) {
        if let Some(index) = self.slots.iter().position(|slot| slot.unit == unit)
            && let Some(sum) = self.slots[index].whole.finish()
        {
            self.reduce(store, index, sum);
        }
    }

    /// Waits for all sums, and gives the gradient of each unit's own elements; none for units that another
    /// stage owns.
    pub(crate) fn finish(
        mut self,
        store: &ParameterStore,
        clock: &mut Clock,
    ) -> Result<(Vec<Option<Tensor<1>>>, Bytes)> {
        while !self.reducing.is_empty() {
            self.wait_for_oldest(store, clock)?;
        }
        let mut sums: Vec<Option<Tensor<1>>> = store.units.iter().map(|_| None).collect();
        for slot in &mut self.slots {
            sums[slot.unit] = slot.own.finish(|a, b| a + b);
        }
        Ok((sums, self.bytes))
    }

    /// Starts to sum one gradient over the ranks.
    fn reduce(&mut self, store: &ParameterStore, slot: usize, gradient: Tensor<1>) {
        let gradient = cast(gradient, store.precision.reduce.dtype());
        let group = &store.groups.dp;
        let pending =
            if store.is_sharded() { group.reduce_scatter(gradient) } else { group.all_reduce(gradient) };
        self.reducing.push_back((slot, pending));
    }

    fn wait_for_oldest(&mut self, store: &ParameterStore, clock: &mut Clock) -> Result<()> {
        if let Some((slot, pending)) = self.reducing.pop_front() {
            let what = if store.is_sharded() { "reduce_scatter" } else { "all_reduce" };
            let sum = clock.waiting(what, || pending.wait())?;
            self.slots[slot].own.push(cast(sum, FloatDType::F32), |a, b| a + b);
            self.count();
        }
        Ok(())
    }

    fn count(&mut self) {
        let slots = self.slots.iter();
        let kept: usize = slots.map(|s| s.whole.kept() * s.elements.0 + s.own.kept() * s.elements.1).sum();
        let moving: usize = self.reducing.iter().map(|(slot, _)| self.slots[*slot].elements.0).sum();
        self.bytes.set(4 * (kept + moving) as u64);
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
        self.sums.finish(|a, b| a + b)
    }

    fn kept(&self) -> usize {
        self.sums.kept() + self.group.kept()
    }
}
