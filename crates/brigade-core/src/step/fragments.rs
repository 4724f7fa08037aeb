//! Outer steps of one fragment of the model after the other, while the worker makes inner steps.

use std::collections::BTreeMap;
use std::time::Instant;

use burn::tensor::Tensor;

use crate::dist::PendingTensor;
use crate::error::Result;
use crate::metrics::Clock;
use crate::model::activation::Activation;
use crate::step::engine::Engine;
use crate::step::strategy::Due;

/// The outer step of a fragment that is under way.
#[derive(Default)]
pub(crate) struct OuterInFlight {
    /// By unit, the sums over the workers.
    sums: Vec<(usize, PendingTensor)>,
    /// Bytes that this rank had sent to other workers before.
    sent_before: u64,
}

impl<I, O, T> Engine<I, O, T>
where
    I: Activation + Clone,
    O: Activation,
    T: Clone,
{
    /// Does what is due of the outer steps of fragments after an update of this worker alone.
    pub(crate) fn step_fragments(&mut self, clock: &mut Clock) -> Result<()> {
        let strategy = self.settings.strategy.clone();
        let Some((fragments, inner_steps)) = strategy.fragments().zip(strategy.inner_steps()) else {
            return Ok(());
        };
        let began = Instant::now();
        for due in fragments.due(self.step, inner_steps) {
            match due {
                Due::Begin(fragment) => self.begin_fragment(fragment, fragments.count)?,
                Due::NextPhase => {
                    let sums = std::mem::take(&mut self.in_flight.sums);
                    let next = |(unit, sum): (usize, PendingTensor)| {
                        Ok((unit, clock.waiting("outer_step", || sum.next_phase())?))
                    };
                    self.in_flight.sums = sums.into_iter().map(next).collect::<Result<_>>()?;
                }
                Due::End => self.end_fragment(clock)?,
            }
        }
        self.inner_steps.outer_time += began.elapsed();
        Ok(())
    }

    /// Begins to add up what each worker gives for the outer step of a fragment.
    fn begin_fragment(&mut self, fragment: usize, count: usize) -> Result<()> {
        let workers = self.store.groups.workers.clone();
        self.in_flight.sent_before = self.sent_to_workers();
        for unit in 0..self.store.units.len() {
            let stored = &self.store.units[unit];
            if stored.is_updated() && stored.unit.home % count == fragment {
                let values = self.store.own_values(unit)?;
                let sum = self.update.begin_outer_step(unit, values, &workers);
                self.in_flight.sums.extend(sum.map(|sum| (unit, sum)));
            }
        }
        Ok(())
    }

    /// Ends the outer step under way.
    fn end_fragment(&mut self, clock: &mut Clock) -> Result<()> {
        let OuterInFlight { sums, sent_before } = std::mem::take(&mut self.in_flight);
        let workers = self.store.groups.workers.size();
        let mut values = BTreeMap::new();
        for (unit, sum) in sums {
            let sum = clock.waiting("outer_step", || sum.wait())?;
            let own = self.store.own_values(unit)?;
            values.insert(unit, self.update.end_outer_step(unit, own, sum, workers));
        }
        self.inner_steps.sent += self.sent_to_workers() - sent_before;
        self.replace_values(values, clock)
    }

    fn sent_to_workers(&self) -> u64 {
        self.store.groups.workers.traffic().values().map(|(_, bytes)| bytes).sum()
    }

    /// The own elements of a unit as the model has them: those that all workers have in common.
    pub(crate) fn model_values(&self, unit: usize) -> Result<Tensor<1>> {
        self.update.common_values(unit).map_or_else(|| self.store.own_values(unit), Ok)
    }

    /// Runs something with the values that all workers have in common, after which this worker has its own again.
    pub(crate) fn with_model_values<R>(&mut self, run: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        if self.settings.strategy.fragments().is_none() {
            return run(self);
        }
        let (mut common, mut own) = (BTreeMap::new(), BTreeMap::new());
        for unit in (0..self.store.units.len()).filter(|unit| self.store.units[*unit].is_updated()) {
            common.insert(unit, self.model_values(unit)?);
            own.insert(unit, self.store.own_values(unit)?);
        }
        self.replace_values(common, &mut Clock::default())?;
        let result = run(self);
        self.replace_values(own, &mut Clock::default())?;
        result
    }

    /// Gives some of the units that this rank updates other values of the own elements, and the others what they need of them. All ranks of a
    /// worker call it together, for the same units.
    pub(crate) fn replace_values(
        &mut self,
        values: BTreeMap<usize, Tensor<1>>,
        clock: &mut Clock,
    ) -> Result<()> {
        let mut sent = Vec::new();
        for unit in 0..self.store.units.len() {
            if !self.store.units[unit].is_updated() {
                continue;
            }
            // Stages that read tied weights wait for all of them.
            let now = values.get(&unit).cloned().map_or_else(|| self.store.own_values(unit), Ok)?;
            sent.extend(self.store.send_tied_weights(unit, &now));
            if values.contains_key(&unit) {
                self.store.set_own_values(unit, now);
            }
        }
        self.give_new_values(sent, clock)
    }
}
