//! Outer steps of one fragment of the model after the other, while the worker makes inner steps.

use std::time::Instant;

use brigade_sorted::SortedMap;
use burn::tensor::Tensor;

use crate::dist::PendingTensor;
use crate::error::Result;
use crate::metrics::Clock;
use crate::sharding::unit::Unit;
use crate::step::engine::UntypedEngine;
use crate::step::engine::workers::outer_in_flight::OuterInFlight;
use crate::step::strategy::Due;

impl UntypedEngine {
    /// Does what is due of the outer steps of fragments after an update of this worker alone.
    pub(crate) fn step_fragments(&mut self, clock: &mut Clock) -> Result<()> {
        let strategy = self.settings.strategy.clone();
        let Some((fragments, inner_steps)) = strategy.fragments().zip(strategy.inner_steps()) else {
            return Ok(());
        };
        let began = Instant::now();
        for due in fragments.due(self.step, inner_steps) {
            match due {
                Due::Begin(fragment) => {
                    self.begin_fragment((fragment, fragments.count))?;
                    let bytes = if fragments.overlap > 0 { self.outer_in_flight_bytes() } else { 0 };
                    self.memory.optimizer.set(self.update.state_bytes() + bytes);
                }
                Due::NextPhase => {
                    let sums = std::mem::take(&mut self.in_flight.sums);
                    let next = |(unit, sum): (usize, PendingTensor)| {
                        Ok((unit, clock.waiting("outer_step", || sum.next_phase())?))
                    };
                    self.in_flight.sums = sums.into_iter().map(next).collect::<Result<_>>()?;
                    self.store.groups.workers.flush();
                }
                Due::End => self.end_fragment(clock)?,
            }
        }
        self.inner_steps.outer_time += began.elapsed();
        Ok(())
    }

    /// Begins to add up what each worker gives for the outer step of a fragment, and how many updates each has made in this round.
    fn begin_fragment(&mut self, fragment: (usize, usize)) -> Result<()> {
        let workers = self.store.groups.workers.clone();
        self.in_flight.sent_before = self.sent_to_workers();
        self.in_flight.fragment = fragment;
        self.in_flight.made = Some(workers.all_gather_scalars(vec![self.inner_steps.made()]));
        for unit in 0..self.store.units.len() {
            let stored = &self.store.units[unit];
            if stored.is_updated() && is_of(fragment, &stored.unit) {
                let values = self.store.own_values(unit)?;
                let sum = self.update.begin_outer_step(unit, values, &workers);
                self.in_flight.sums.extend(sum.map(|sum| (unit, sum)));
            }
        }
        workers.flush();
        Ok(())
    }

    /// Ends the outer step under way: it is left out if no worker had made an update in this round before it began, as an outer step of the
    /// whole model is, since its momentum would move the parameters all the same.
    fn end_fragment(&mut self, clock: &mut Clock) -> Result<()> {
        let OuterInFlight { made, sums, fragment, sent_before, .. } = std::mem::take(&mut self.in_flight);
        let workers = self.store.groups.workers.size();
        let made = made.map(|made| clock.waiting("outer_step", || made.wait())).transpose()?;
        let any_made = made.into_iter().flatten().flatten().any(|made| made > 0.0);
        let mut values = SortedMap::new();
        for (unit, sum) in sums {
            let sum = clock.waiting("outer_step", || sum.wait())?;
            if any_made {
                let own = self.store.own_values(unit)?;
                values.insert(unit, self.update.end_outer_step(unit, own, sum, workers));
            }
        }
        self.inner_steps.sent += self.sent_to_workers() - sent_before;
        if any_made {
            self.replace_values(values, &|unit| is_of(fragment, unit), clock)?;
        }
        self.memory.optimizer.set(self.update.state_bytes());
        Ok(())
    }

    /// Bytes of the outer gradients under way, as if they were fp32.
    fn outer_in_flight_bytes(&self) -> u64 {
        let own = |(unit, _): &(usize, PendingTensor)| {
            let stored = &self.store.units[*unit];
            stored.own.end.min(stored.unit.layout.len()).saturating_sub(stored.own.start)
        };
        4 * self.in_flight.sums.iter().map(own).sum::<usize>() as u64
    }

    fn sent_to_workers(&self) -> u64 {
        self.store.groups.workers.traffic().values().map(|(_, bytes)| bytes).sum()
    }

    /// The own elements of a unit as the model has them: those that all workers have in common.
    pub(crate) fn model_values(&self, unit: usize) -> Result<Tensor<1>> {
        self.update.common_values(unit).map_or_else(|| self.store.own_values(unit), Ok)
    }

    /// Runs something with the values that all workers have in common, after which this worker has its own again. If it fails, others may not
    /// have: nothing is sent then, and this worker takes its own values back when it computes the next time.
    pub(crate) fn with_model_values<R>(&mut self, run: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        if self.settings.strategy.fragments().is_none() {
            return run(self);
        }
        self.put_model_values()?;
        let result = run(self)?;
        self.take_back_own_values()?;
        Ok(result)
    }

    /// Continues with the values that all workers have in common, where this one has others
    /// ([`Fragments`](crate::Fragments)): then its blocks have the model's values when training has ended. All ranks call it together.
    ///
    /// # Errors
    /// If a collective fails.
    pub fn keep_model_values(&mut self) -> Result<()> {
        if self.settings.strategy.fragments().is_some() {
            self.put_model_values()?;
            self.in_flight.own.clear();
        }
        Ok(())
    }

    /// Puts the values in common in the place of this worker's own, which are kept.
    fn put_model_values(&mut self) -> Result<()> {
        let mut common = SortedMap::new();
        for unit in (0..self.store.units.len()).filter(|unit| self.store.units[*unit].is_updated()) {
            common.insert(unit, self.model_values(unit)?);
            let own = self.store.own_values(unit)?;
            self.in_flight.own.entry(unit).or_insert(own);
        }
        self.replace_values(common, &|_| true, &mut Clock::default())
    }

    /// Takes this worker's own values back, if the engine has those in common.
    pub(crate) fn take_back_own_values(&mut self) -> Result<()> {
        match self.in_flight.own.is_empty() {
            true => Ok(()),
            false => {
                let own = std::mem::take(&mut self.in_flight.own);
                self.replace_values(own, &|_| true, &mut Clock::default())
            }
        }
    }

    /// The own elements of a unit that this worker alone has, where it has others than all have in common.
    pub(crate) fn local_values(&self, unit: usize) -> Result<Option<Tensor<1>>> {
        match (self.update.common_values(unit), self.in_flight.own.get(&unit)) {
            (None, _) => Ok(None),
            (_, Some(own)) => Ok(Some(own.clone())),
            _ => self.store.own_values(unit).map(Some),
        }
    }

    /// Gives the units of a kind that this rank updates other values of the own elements, and the others what they need of them. All ranks
    /// of a worker call it together, for the same kind.
    pub(crate) fn replace_values(
        &mut self,
        mut values: SortedMap<usize, Tensor<1>>,
        is_of: &dyn Fn(&Unit) -> bool,
        clock: &mut Clock,
    ) -> Result<()> {
        let mut sent = Vec::new();
        for unit in 0..self.store.units.len() {
            let stored = &self.store.units[unit];
            if !stored.is_updated() || !is_of(&stored.unit) {
                continue;
            }
            // Stages that read tied weights wait for all of the kind.
            let now = values.remove(&unit).map_or_else(|| self.store.own_values(unit), Ok)?;
            sent.extend(self.store.send_tied_weights(unit, &now));
            self.store.set_own_values(unit, now);
        }
        self.give_new_values(sent, is_of, clock)
    }
}

/// Whether a unit belongs to a fragment, of this many.
fn is_of((fragment, count): (usize, usize), unit: &Unit) -> bool {
    unit.owner_block % count.max(1) == fragment
}
