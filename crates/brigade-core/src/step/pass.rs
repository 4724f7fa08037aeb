//! One pass of all ranks over the global batch, and what they learn from it together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use brigade_plan::Pipeline;
use burn::tensor::Tensor;

use crate::dist::PP;
use crate::error::{BoxError, Error, Result};
use crate::metrics::Clock;
use crate::model::activation::Activation;
use crate::optim::tile;
use crate::optim::{ExactSum, WORDS};
use crate::optim::{exact_sum, squares};
use crate::step::accumulation::PairwiseSum;
use crate::step::engine::{Engine, Sums};
use crate::step::forward_backward::interpreter::{Interpreter, PassMode, State, TargetCount};
use crate::step::forward_backward::micro_batches::Batch;
use crate::step::forward_backward::micro_batches::{Given, Loaded, MicroBatches};
use crate::step::forward_backward::non_finite::{NonFiniteCheck, first};
use crate::step::metric_sums::MetricSums;
use crate::step::report::Evaluation;
use crate::step::strategy::Reduction;
use crate::step::window::{Window, losses};
use brigade_plan::StageSchedule;

impl<I, O, T> Engine<I, O, T>
where
    I: Activation + Clone,
    O: Activation,
    T: Clone,
{
    /// What this rank does with `count` micro-batches.
    pub(crate) fn schedule(&mut self, count: usize, trains: bool) -> Result<Arc<StageSchedule>> {
        if let Some(schedule) = self.schedules.get(&(count, trains)) {
            return Ok(schedule.clone());
        }
        let (stages, chunks) = (self.stage.stages, self.stage.chunks());
        let pipeline = match trains {
            true if stages * chunks == 1 => Pipeline::new(Default::default(), 1, 1, count),
            true => Pipeline::new(self.settings.schedule, stages, chunks, count),
            false => Ok(Pipeline::forward_only(stages, chunks, count)),
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
        batches: &'s mut (dyn MicroBatches<I, T> + 's),
        schedule: &StageSchedule,
        mode: impl FnOnce(&'s mut dyn Reduction) -> PassMode<'s>,
        total: TargetCount,
        before: usize,
        clock: &'s mut Clock,
    ) -> Result<State> {
        let (strategy, mode) = (&self.settings.strategy, mode(&mut *self.reduction));
        let mut steps = self.step..self.step + strategy.period() as u64;
        let step = match mode {
            PassMode::Train { .. } | PassMode::CheckFinite(_) => {
                steps.find(|step| strategy.synchronizes(*step)).unwrap_or(self.step)
            }
            PassMode::Evaluate | PassMode::Predict(_) => self.step,
        };
        let mut interpreter = Interpreter {
            blocks: &mut self.chain.blocks,
            store: &mut self.store,
            stage: &self.stage,
            loss: &self.loss,
            metrics: &self.metrics,
            recompute: self.settings.recompute,
            seed: self.seed,
            step,
            per_update: strategy.period() * batches.count(),
            before,
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
    pub(crate) fn pass(&mut self, batches: &[Batch<I, T>], completes: bool, clock: &mut Clock) -> Result<()> {
        let result = self.window.check(batches.len()).and_then(|()| self.try_pass(batches, completes, clock));
        if result.is_err() {
            self.forget_accumulated();
            // The next step is the first after an update, as nothing is left of those since.
            while self.step > 0 && !self.settings.strategy.synchronizes(self.step) {
                self.step -= 1;
            }
        }
        result
    }

    fn try_pass(&mut self, batches: &[Batch<I, T>], completes: bool, clock: &mut Clock) -> Result<()> {
        let schedule = self.schedule(batches.len(), true)?;
        let valid = batches.iter().map(|batch| batch.valid_targets).sum();
        // Over several steps, nobody knows the number of targets before the last backward.
        let total = match self.stage.is_last() && self.settings.strategy.period() == 1 {
            true => TargetCount::Pending(self.store.groups.data.all_gather_scalars(vec![valid as f64])),
            false => TargetCount::Unasked,
        };
        let (mode, before) = (|reduction| PassMode::Train { reduction, completes }, self.window.count);
        let state = self.run(&mut Given(batches), &schedule, mode, total, before, clock)?;
        let peak = self.memory.activations.peak.max(state.activations.peak);
        self.memory.activations = crate::metrics::Bytes { peak, ..state.activations };
        self.memory.gradients = self.reduction.bytes();
        self.window.add(batches.len(), valid, state);
        Ok(())
    }

    /// Drops the gradients and losses since the last update.
    pub(crate) fn forget_accumulated(&mut self) {
        self.reduction.reset();
        self.window = Window::default();
    }

    /// Forward and backward over this rank's micro-batches, and the sums over all ranks: the first two parts of the current step.
    pub(crate) fn sums(&mut self, batches: &[Batch<I, T>], clock: &mut Clock) -> Result<Sums> {
        self.pass(batches, true, clock)?;
        let window = std::mem::take(&mut self.window);
        let gradients = self.reduction.finish(clock)?;
        self.memory.gradients = self.reduction.bytes();

        let started = Instant::now();
        let at_once = tile(&self.store.device);
        let found =
            gradients.iter().enumerate().filter_map(|(unit, gradient)| Some((unit, gradient.as_ref()?)));
        let chunks = found.flat_map(|(unit, gradient)| squares(&self.counted_once(unit, gradient), at_once));
        let norm = exact_sum(chunks.collect())?;
        clock.optimizer += started.elapsed();

        let mut words = vec![window.valid_targets as f64];
        words.extend(window.losses()?);
        let mut metrics = MetricSums::new(self.metric_names.len());
        metrics.add(&window.metrics)?;
        words.extend(metrics.words());
        words.extend(norm.to_words());
        let pending = self.store.groups.world.all_gather_scalars(words);
        let all = clock.waiting("all_gather_scalars", || pending.wait())?;
        let mut norm = ExactSum::default();
        all.iter().for_each(|words| norm.merge(&ExactSum::from_words(&words[words.len() - WORDS..])));
        let (targets, loss) = self.agreed_loss(&all, window.count);
        let metrics = self.agreed_metrics(&all, window.count, targets);
        let divisor = (self.settings.strategy.period() > 1 && targets > 0.0).then_some(targets);
        let by = divisor.unwrap_or(1.0);
        let (grad_norm, loss) = (norm.value().sqrt() / by, loss / by);
        let in_flight = window.in_flight;
        Ok(Sums { gradients, grad_norm, loss, metrics, targets, divisor, in_flight })
    }

    /// The part of a gradient whose squares this rank counts: what other ranks hold as well, one counts.
    fn counted_once(&self, unit: usize, gradient: &Tensor<1>) -> Tensor<1> {
        let stored = &self.store.units[unit];
        let (own, counted) = (&stored.own, &stored.counted);
        gradient.clone().slice(counted.start - own.start..counted.end - own.start)
    }

    /// Valid targets and the sum of the losses of the global batch, from what each rank of the last stage has.
    fn agreed_loss(&self, all: &[Vec<f64>], count: usize) -> (f64, f64) {
        let (mesh, mut numbered) = (self.store.groups.mesh(), Vec::new());
        let last = self.last_stage(all);
        for (rank, words) in &last {
            for k in 0..count {
                let number = self.settings.zero.micro_batch_number(mesh, *rank, k, count);
                numbered.push((number, words[1 + k] as f32));
            }
        }
        numbered.sort_by_key(|(number, _)| *number);
        let mut loss = PairwiseSum::new();
        numbered.into_iter().for_each(|(_, share)| loss.push(share, |a, b| a + b));
        let targets = last.iter().map(|(_, words)| words[0]).sum();
        (targets, f64::from(loss.finish(|a, b| a + b).unwrap_or(0.0)))
    }

    /// The means of the model's metrics, from what each rank of the last stage has behind its `count` losses.
    fn agreed_metrics(&self, all: &[Vec<f64>], count: usize, targets: f64) -> BTreeMap<String, f64> {
        let mut sums = MetricSums::new(self.metric_names.len());
        let range = 1 + count..1 + count + MetricSums::words_of(self.metric_names.len());
        self.last_stage(all).iter().for_each(|(_, words)| sums.merge(&words[range.clone()]));
        sums.means(self.metric_names.iter().map(String::as_str), targets)
    }

    /// The ranks that hold the model's last block, with their words, in the order of their place along the data axes.
    fn last_stage<'w>(&self, all: &'w [Vec<f64>]) -> Vec<(usize, &'w Vec<f64>)> {
        let (mesh, stage) = (self.store.groups.mesh(), self.stage.holder(self.shapes.len() - 1));
        all.iter().enumerate().filter(|(rank, _)| mesh.coordinate(*rank, PP) == stage).collect()
    }

    /// Loss and metrics over all ranks' batches, without training. All ranks call it together, those of the same pipeline
    /// with the same batches. This rank has `count` of them, or none; `load` makes one of them, shortly before it is used,
    /// and not on stages that need neither inputs nor targets.
    ///
    /// # Errors
    /// As [`Engine::step`], and those of `load`.
    pub fn evaluate(
        &mut self,
        count: usize,
        mut load: impl FnMut(usize) -> Result<Batch<I, T>, BoxError>,
    ) -> Result<Evaluation> {
        let counts = self.store.groups.world.all_gather_scalars(vec![count as f64]).wait()?;
        let most = counts.iter().map(|count| count[0] as usize).max().unwrap_or(0);
        let schedule = self.schedule(most, false)?;
        let mut clock = Clock::default();
        let mut batches = Loaded::new(count, self.stage.is_last(), &mut load);
        let state =
            self.run(&mut batches, &schedule, |_| PassMode::Evaluate, TargetCount::Unasked, 0, &mut clock)?;
        let mut words = vec![batches.valid_targets as f64];
        words.extend(losses(&state.losses, most)?);
        let mut metrics = MetricSums::new(self.metric_names.len());
        metrics.add(&state.metrics)?;
        words.extend(metrics.words());
        let all = self.store.groups.world.all_gather_scalars(words).wait()?;
        let last = self.last_stage(&all);
        let mut sum = PairwiseSum::new();
        for k in 0..most {
            last.iter().for_each(|(_, words)| sum.push(words[1 + k], |a, b| a + b));
        }
        let targets: f64 = last.iter().map(|(_, words)| words[0]).sum();
        let metrics = self.agreed_metrics(&all, most, targets);
        let loss = sum.finish(|a, b| a + b).unwrap_or(0.0) / targets;
        Ok(Evaluation { loss, metrics, targets: targets as u64 })
    }

    /// Runs the step's micro-batches again, without reducing anything, and agrees with the others on the
    /// first place that is not finite. The weights are still those of the failed step, so the search
    /// sees what the step saw.
    pub(crate) fn not_finite(&mut self, batches: &[Batch<I, T>], sums: &Sums) -> Error {
        let (what, value) = match sums.loss.is_finite() {
            true => ("the gradient norm", sums.grad_norm),
            false => ("the loss", sums.loss),
        };
        let mut check = NonFiniteCheck::default();
        let found = self.schedule(batches.len(), true).and_then(|schedule| {
            let total = match sums.divisor {
                None => TargetCount::Known(sums.targets),
                Some(_) => TargetCount::Unasked,
            };
            let before = (self.settings.strategy.period() - 1) * batches.len();
            let (found, clock) = (&mut check, &mut Clock::default());
            let mut batches = Given(batches);
            self.run(&mut batches, &schedule, move |_| PassMode::CheckFinite(found), total, before, clock)?;
            self.store.groups.world.all_gather_scalars(check.to_words()).wait()
        });
        let names = |block: usize| self.chain.blocks.get(block).map_or_else(String::new, |b| b.name.clone());
        match found {
            Ok(all) => {
                let is_all = self.settings.strategy.period() == 1;
                let location = first(&all, self.store.groups.mesh(), is_all, names);
                Error::NonFinite { step: self.step, what, value, location }
            }
            Err(error) => error,
        }
    }
}
