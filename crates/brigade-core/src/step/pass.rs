//! One pass of all ranks over the global batch, also again to find what is not finite.

use std::sync::Arc;

use brigade_plan::{Pipeline, StageSchedule};

use crate::error::{Error, Result};
use crate::metrics::Clock;
use crate::model::batch::TargetSum;
use crate::step::engine::{Sums, UntypedEngine};
use crate::step::forward_backward::check_blocks::CheckBlocks;
use crate::step::forward_backward::interpreter::{Interpreter, PassMode, State, TargetWeight};
use crate::step::forward_backward::micro_batches::MicroBatches;
use crate::step::forward_backward::non_finite::{NonFiniteCheck, first};
use crate::step::running_state::bind_running;
use crate::step::strategy::Reduction;
use crate::step::window::Window;

impl UntypedEngine {
    /// What this rank does with `count` micro-batches.
    pub(crate) fn schedule(&mut self, count: usize, trains: bool) -> Result<Arc<StageSchedule>> {
        if let Some(schedule) = self.schedules.get(&(count, trains)) {
            return Ok(schedule.clone());
        }
        let (stages, chunks) = (self.stage.stages, self.stage.chunks());
        let pipeline = match trains {
            true if stages * chunks == 1 => Pipeline::new(Default::default(), 1, 1, count),
            true => Pipeline::new(self.settings.schedule, stages, chunks, count),
            false => Ok(Pipeline::forward_only(self.stage.placement, stages, chunks, count)),
        };
        let pipeline = pipeline.map_err(|error| Error::Model(error.to_string()))?;
        let schedule = Arc::new(self.stage_schedule(&pipeline));
        self.schedules.insert((count, trains), schedule.clone());
        Ok(schedule)
    }

    /// This rank's part of a pipeline.
    pub(crate) fn stage_schedule(&self, pipeline: &Pipeline) -> StageSchedule {
        let (stages, trains) = (self.stage.stages, pipeline.trains());
        let policy = match trains {
            true => self.settings.zero.reshard_policy(stages),
            false => brigade_plan::ReshardPolicy::AfterUseUnlessNext,
        };
        let units = if self.store.unshards_on_use() {
            &self.store.by_block
        } else {
            &vec![Vec::new(); self.shapes.len()]
        };
        // An evaluation gathers no more at once than a step, whose first and last blocks are never needed together.
        let prefetch = if trains { self.settings.zero.prefetch } else { 0 };
        StageSchedule::new(&self.stage, pipeline, units, policy, prefetch)
    }

    /// Runs a schedule; this rank had `before` micro-batches since the last update.
    pub(crate) fn run<'s>(
        &'s mut self,
        batches: &'s mut (dyn MicroBatches + 's),
        schedule: &StageSchedule,
        mode: impl FnOnce(&'s mut dyn Reduction) -> PassMode<'s>,
        total: TargetWeight,
        before: usize,
        clock: &'s mut Clock,
    ) -> Result<State> {
        let of_update = self.step_of_update(self.step);
        let (worker, data_ranks) = (self.settings.worker.unwrap_or(0), self.store.groups.data.size());
        let (period, mode) = (self.settings.strategy.period(), mode(&mut *self.reduction));
        let step = if mode.has_backward() { of_update } else { self.step };
        let mut interpreter = Interpreter {
            blocks: &mut self.chain.blocks,
            store: &mut self.store,
            stage: &self.stage,
            objective: &self.objective,
            first_trained: self.first_trained,
            recompute: self.settings.recompute,
            tied_gradients: self.settings.tied_gradients,
            checks: match self.settings.check_blocks {
                CheckBlocks::First if of_update > period as u64 => CheckBlocks::Never,
                checks => checks,
            },
            running: &mut self.running,
            seed: self.seed,
            step,
            per_update: period * batches.count(),
            before,
            before_worker: worker * data_ranks * period * batches.count(),
            first: self.first_micro_batch,
            batches,
            mode,
            clock,
            state: State::new(total),
        };
        interpreter.run(schedule)?;
        Ok(interpreter.state)
    }

    /// Forward and backward over this rank's micro-batches: the first part of the current step. `completes`: whether an update
    /// follows.
    pub(crate) fn pass(
        &mut self,
        batches: &mut dyn MicroBatches,
        completes: bool,
        clock: &mut Clock,
    ) -> Result<()> {
        if self.is_server() {
            return self.pass_of_server(batches.count(), clock);
        }
        let result =
            self.window.check(batches.count()).and_then(|()| self.try_pass(batches, completes, clock));
        if result.is_err() {
            self.forget_accumulated();
            // The next step is the first after an update, as nothing is left of those since.
            while self.step > 0 && !self.settings.strategy.synchronizes(self.step) {
                self.step -= 1;
            }
        }
        result
    }

    /// A server has no micro-batches, and only learns with the others what the targets weigh.
    fn pass_of_server(&self, count: usize, clock: &mut Clock) -> Result<()> {
        if count > 0 {
            let rank = self.store.groups.data.rank();
            let were = if count == 1 { "micro-batch was" } else { "micro-batches were" };
            return Err(Error::Model(format!(
                "{count} {were} given to a step on rank {rank}, which is a server and runs none"
            )));
        }
        let pending = self.store.groups.data.all_gather_scalars(TargetSum::default().to_words());
        clock.waiting("all_gather_scalars", || pending.wait()).map(drop)
    }

    fn try_pass(&mut self, batches: &mut dyn MicroBatches, completes: bool, clock: &mut Clock) -> Result<()> {
        let (count, targets) = (batches.count(), batches.targets());
        let schedule = self.schedule(count, true)?;
        // Over several steps, nobody knows the targets before the last backward.
        let total = match self.stage.is_last() && self.settings.strategy.period() == 1 {
            true => TargetWeight::Pending(self.store.groups.data.all_gather_scalars(targets.to_words())),
            false => TargetWeight::Unasked,
        };
        let (mode, before) = (|reduction| PassMode::Train { reduction, completes }, self.window.count);
        let state = self.run(batches, &schedule, mode, total, before, clock);
        self.bind_running()?;
        let state = state?;
        let peak = self.memory.activations.peak.max(state.activations.peak);
        self.memory.activations = crate::metrics::Bytes { peak, ..state.activations };
        self.memory.gradients = self.reduction.bytes();
        self.second_halves = state.second_halves;
        self.window.add(count, &targets, state);
        Ok(())
    }

    /// Gives this rank's blocks the running state of the last update.
    pub(crate) fn bind_running(&mut self) -> Result<()> {
        for (index, block) in self.chain.blocks.iter_mut().enumerate() {
            bind_running(index, block, &self.store)?;
        }
        Ok(())
    }

    /// Drops the gradients and losses since the last update.
    pub(crate) fn forget_accumulated(&mut self) {
        self.reduction.reset();
        self.window = Window::default();
    }

    /// Runs the step's micro-batches again, without reducing anything, and agrees with the others on the
    /// first place that is not finite. The weights are still those of the failed step, so the search
    /// sees what the step saw.
    pub(crate) fn not_finite(&mut self, batches: &mut dyn MicroBatches, sums: &Sums) -> Error {
        let (what, value) = match sums.loss.is_finite() {
            true => ("the gradient norm", sums.grad_norm),
            false => ("the loss", sums.loss),
        };
        let mut check = NonFiniteCheck::default();
        if self.is_server() {
            return match self.store.groups.world.all_gather_scalars(check.to_words()).wait() {
                Ok(all) => self.located(&all, what, value),
                Err(error) => error,
            };
        }
        let found = self.schedule(batches.count(), true).and_then(|schedule| {
            let total = match sums.divisor {
                None => TargetWeight::Known(sums.target_weight),
                Some(_) => TargetWeight::Unasked,
            };
            let before = (self.settings.strategy.period() - 1) * batches.count();
            let (found, clock) = (&mut check, &mut Clock::default());
            self.run(batches, &schedule, move |_| PassMode::CheckFinite(found), total, before, clock)?;
            self.bind_running()?;
            self.store.groups.world.all_gather_scalars(check.to_words()).wait()
        });
        match found {
            Ok(all) => self.located(&all, what, value),
            Err(error) => error,
        }
    }

    /// The error of what is not finite, from what all ranks have found.
    fn located(&self, all: &[Vec<f64>], what: &'static str, value: f64) -> Error {
        let names = |block: usize| self.chain.blocks.get(block).map_or_else(String::new, |b| b.name.clone());
        let is_all = self.settings.strategy.period() == 1;
        let mut location = first(all, self.store.groups.mesh(), is_all, names);
        location.rank = location.rank.map(|rank| self.store.groups.rank_of_all(rank));
        Error::NonFinite { step: self.step, what, value, location }
    }
}
