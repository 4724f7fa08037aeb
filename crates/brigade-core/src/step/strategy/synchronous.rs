//! Synchronous data parallelism, with ZeRO's sharding of gradients.

use std::collections::VecDeque;

use brigade_plan::REDUCING;
use burn::tensor::{FloatDType, Tensor};

use crate::dist::PendingTensor;
use crate::error::Result;
use crate::metrics::{Bytes, Clock};
use crate::sharding::store::cast;
use crate::step::accumulation::PairwiseSum;
use crate::step::strategy::{DataParallel, ReducedUnit, Reduction, Strategy};

/// All ranks reduce their gradients together, and all make the same update: plain data parallelism, ZeRO, and hybrid sharding.
///
/// A gradient is reduce-scattered over the ranks that it is divided among, then all-reduced over those that have the same
/// elements; without ZeRO the former is nothing, without replicas the latter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Synchronous {
    /// Only every so many steps; in the others a rank adds gradients up without telling other replicas, as in PyTorch's `no_sync`.
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
        let slot = |unit| Slot { unit, whole: Grouped::default(), own: PairwiseSum::new(), complete: false };
        Box::new(AllReduce {
            slots: units.into_iter().map(slot).collect(),
            data,
            scattering: VecDeque::new(),
            reducing: VecDeque::new(),
            bytes: Bytes::default(),
        })
    }
}

/// The gradients since the last update.
struct AllReduce {
    slots: Vec<Slot>,
    data: DataParallel,
    /// Reduce-scatters on their way, with the slots they are for.
    scattering: VecDeque<(usize, PendingTensor)>,
    /// All-reduces over the replicas.
    reducing: VecDeque<(usize, PendingTensor)>,
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
    fn add(&mut self, unit: usize, gradient: Tensor<1>, clock: &mut Clock) -> Result<()> {
        if !self.slots[unit].unit.is_updated {
            return Ok(());
        }
        let gradient = cast(gradient, FloatDType::F32);
        if self.data.shard.size() > 1 && self.data.zero.reduces_each_micro_batch() {
            while self.scattering.len() >= REDUCING {
                self.wait_for_scattered(clock)?;
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
    }

    fn finish(&mut self, clock: &mut Clock) -> Result<Vec<Option<Tensor<1>>>> {
        while !self.scattering.is_empty() {
            self.wait_for_scattered(clock)?;
        }
        if self.data.replicate.size() > 1 && self.data.shard.size() > 1 {
            for unit in 0..self.slots.len() {
                if let Some(sum) = self.slots[unit].own.finish(|a, b| a + b) {
                    self.reduce(unit, sum);
                }
            }
        }
        while let Some((unit, pending)) = self.reducing.pop_front() {
            let sum = clock.waiting("all_reduce", || pending.wait())?;
            self.slots[unit].own.push(cast(sum, FloatDType::F32), |a, b| a + b);
            self.count();
        }
        self.bytes.set(self.live());
        let sums = self.slots.iter_mut().map(|slot| {
            slot.complete = false;
            slot.own.finish(|a, b| a + b)
        });
        Ok(sums.collect())
    }

    fn reset(&mut self) {
        // What is on its way is waited for by nobody, but still happens, on all ranks.
        (self.scattering, self.reducing) = (VecDeque::new(), VecDeque::new());
        for slot in &mut self.slots {
            (slot.whole, slot.own, slot.complete) = (Grouped::default(), PairwiseSum::new(), false);
        }
    }

    fn bytes(&self) -> Bytes {
        self.bytes
    }
}

impl AllReduce {
    fn scatter(&mut self, unit: usize, gradient: Tensor<1>) {
        let gradient = cast(gradient, self.data.dtype);
        self.scattering.push_back((unit, self.data.shard.reduce_scatter(gradient)));
    }

    fn reduce(&mut self, unit: usize, gradient: Tensor<1>) {
        let gradient = cast(gradient, self.data.dtype);
        self.reducing.push_back((unit, self.data.replicate.all_reduce(gradient)));
    }

    fn wait_for_scattered(&mut self, clock: &mut Clock) -> Result<()> {
        if let Some((unit, pending)) = self.scattering.pop_front() {
            let sum = clock.waiting("reduce_scatter", || pending.wait())?;
            self.slots[unit].own.push(cast(sum, FloatDType::F32), |a, b| a + b);
            self.count();
        }
        Ok(())
    }

    fn live(&self) -> u64 {
        let kept =
            |slot: &Slot| slot.whole.kept() * slot.unit.elements + slot.own.kept() * slot.unit.own.len();
        let kept: usize = self.slots.iter().map(kept).sum();
        let moving = self.scattering.iter().map(|(unit, _)| self.slots[*unit].unit.elements);
        let reducing = self.reducing.iter().map(|(unit, _)| self.slots[*unit].unit.own.len());
        4 * (kept + moving.chain(reducing).sum::<usize>()) as u64
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
