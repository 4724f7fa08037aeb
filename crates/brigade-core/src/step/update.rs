//! The third part of a step: new values of what this rank owns, by the optimizer and in outer steps.

use std::sync::Arc;
use std::time::Instant;

use brigade_random::keyed_seed;
use brigade_sorted::SortedMap;
use burn::tensor::Tensor;

use crate::dist::{Collectives, Pending, PendingTensor, WORKERS};
use crate::error::Result;
use crate::metrics::{Activity, Clock};
use crate::model::random_state::with_seed;
use crate::sharding::store::StoredUnit;
use crate::sharding::unit::Unit;
use crate::step::engine::UntypedEngine;

impl UntypedEngine {
    /// Steps what this rank owns, and gives the others what they need of it.
    pub(crate) fn update(
        &mut self,
        gradients: Vec<Option<Tensor<1>>>,
        learning_rate: f64,
        scale: Option<f64>,
        clock: &mut Clock,
    ) -> Result<()> {
        let started = Instant::now();
        let waited = clock.comm_wait();
        let (mut sent, mut begun) = (Vec::new(), false);
        for (unit, gradient) in gradients.into_iter().enumerate() {
            let Some(gradient) = gradient else {
                // Servers tell the others of what they update.
                if self.store.is_served(&self.store.units[unit].unit) {
                    self.store.gather_served(unit);
                }
                continue;
            };
            let values = self.store.own_values(unit)?;
            let (device, seed) = (values.device(), self.optimizer_seed(unit));
            let step = || self.update.step(unit, learning_rate, values, gradient, scale);
            let Some(values) = with_seed(&device, seed, step) else { continue };
            let values = clock.waiting("all_reduce", || values.wait())?;
            sent.extend(self.store.send_tied_weights(unit, &values));
            self.store.set_own_values(unit, values);
            // The device has waited for the gradient norm, so it gets its work as soon as there is any.
            if !std::mem::replace(&mut begun, true) {
                self.store.flush()?;
            }
        }
        self.store.flush()?;
        self.give_new_values(sent, &|_| true, clock)?;
        if self.memory.optimizer.live == 0 {
            self.memory.optimizer.set(self.update.state_bytes());
        }
        clock.optimizer += started.elapsed().saturating_sub(clock.comm_wait() - waited);
        clock.record(Activity::Phase("optimizer"), Some(started));
        Ok(())
    }

    /// The seed of what a unit's optimizer draws: ranks of a worker that step the same elements draw the same.
    pub(crate) fn optimizer_seed(&self, unit: usize) -> u64 {
        let StoredUnit { unit: Unit { name, .. }, own, .. } = &self.store.units[unit];
        keyed_seed(self.worker_seed(), &format!("optimizer/{name}/{}/{}", self.step, own.start))
    }

    /// The run's seed, or one of this worker's own where there are several.
    pub(crate) fn worker_seed(&self) -> u64 {
        let all = self.store.groups.all();
        let coordinate = || all.mesh().coordinate(all.world().rank(), WORKERS);
        match self.settings.worker.unwrap_or_else(coordinate) {
            0 => self.seed,
            worker => keyed_seed(self.seed, &format!("worker/{worker}")),
        }
    }

    /// Adds up what each of the `workers` gives for an outer step: by unit, where this rank updates it, or it is running state. It changes
    /// nothing, so it can be begun again with others.
    pub(crate) fn add_over_workers(
        &mut self,
        workers: &Arc<dyn Collectives>,
        clock: &mut Clock,
    ) -> Result<Vec<(usize, Tensor<1>)>> {
        let mut pending = Vec::new();
        for unit in 0..self.store.units.len() {
            let stored = &self.store.units[unit];
            let begun = match () {
                // Fragments have outer steps of their own.
                () if stored.is_updated() && self.settings.strategy.fragments().is_some() => None,
                () if stored.is_updated() => {
                    let values = self.store.own_values(unit)?;
                    self.update.begin_outer_step(unit, values, workers)
                }
                () if stored.unit.running && workers.size() > 1 => {
                    Some(workers.all_reduce(self.store.own_values(unit)?))
                }
                () => None,
            };
            pending.extend(begun.map(|sum| (unit, sum)));
        }
        let next = |(unit, sum): (usize, PendingTensor)| {
            Ok((unit, clock.waiting("outer_step", || sum.next_phase())?))
        };
        let pending: Vec<_> = pending.into_iter().map(next).collect::<Result<_>>()?;
        let wait =
            |(unit, sum): (usize, PendingTensor)| Ok((unit, clock.waiting("outer_step", || sum.wait())?));
        pending.into_iter().map(wait).collect()
    }

    /// Makes an outer step: all workers continue from the same values, and from the mean of their running state.
    pub(crate) fn update_over_workers(
        &mut self,
        sums: Vec<(usize, Tensor<1>)>,
        workers: usize,
        clock: &mut Clock,
    ) -> Result<()> {
        let mut new = SortedMap::new();
        for (unit, sum) in sums {
            if self.store.units[unit].unit.running {
                self.store.set_running(unit, sum.div_scalar(workers as f64));
                continue;
            }
            let own = self.store.own_values(unit)?;
            new.insert(unit, self.update.end_outer_step(unit, own, sum, workers));
        }
        if self.settings.strategy.fragments().is_none() {
            self.replace_values(new, &|_| true, clock)?;
        }
        self.bind_running()?;
        self.memory.optimizer.set(self.update.state_bytes());
        Ok(())
    }

    /// Gives the blocks of this stage, and those of others that read them, the new values of the units of a kind that this rank owns.
    pub(crate) fn give_new_values(
        &mut self,
        sent: Vec<Pending<()>>,
        is_of: &dyn Fn(&Unit) -> bool,
        clock: &mut Clock,
    ) -> Result<()> {
        self.store.receive_tied_weights(is_of, clock)?;
        for pending in sent {
            clock.waiting("pipeline", || pending.wait())?;
        }
        if !self.store.unshards_on_use() {
            for index in (0..self.chain.blocks.len()).filter(|index| self.stage.holds(*index)) {
                self.store.wait_all_gather(index, clock)?;
                self.store.bind_parameters(index, &mut self.chain.blocks[index]);
            }
        }
        Ok(())
    }
}
