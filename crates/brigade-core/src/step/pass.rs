//! One pass of all ranks over the global batch, and what they learn from it together.

use std::sync::Arc;
use std::time::Instant;

use brigade_plan::Pipeline;
use brigade_sorted::SortedMap;
use burn::tensor::Tensor;

use crate::dist::{Mesh, PP};
use crate::error::{Error, Result};
use crate::exact_sum::{ExactSum, WORDS};
use crate::metrics::{Activity, Clock};
use crate::model::batch::TargetSum;
use crate::optim::{sum_of_squares, tile};
use crate::step::engine::{Sums, UntypedEngine};
use crate::step::forward_backward::interpreter::{Interpreter, PassMode, State, TargetWeight};
use crate::step::forward_backward::micro_batches::{Load, Loaded, MicroBatches};
use crate::step::forward_backward::non_finite::{NonFiniteCheck, first};
use crate::step::gradients::accumulation::PairwiseSum;
use crate::step::gradients::hook;
use crate::step::gradients::metric_sums::MetricSums;
use crate::step::report::Evaluation;
use crate::step::running_state::bind_running;
use crate::step::settings::CheckBlocks;
use crate::step::strategy::Reduction;
use crate::step::window::Window;
use brigade_plan::StageSchedule;

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

    /// A server has no micro-batches, and only hears with the others what the targets weigh.
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

    /// Micro-batches of a rank in this update: servers, which have none, ask the others.
    fn agreed_count(&self, own: usize, clock: &mut Clock) -> Result<usize> {
        if self.store.servers == 0 {
            return Ok(own);
        }
        let pending = self.store.groups.data.all_gather_scalars(vec![own as f64]);
        let all = clock.waiting("all_gather_scalars", || pending.wait())?;
        Ok(all.iter().map(|count| count[0] as usize).max().unwrap_or(own))
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

    /// Forward and backward over this rank's micro-batches, and the sums over all ranks: the first two parts of the current step.
    /// The learning rate is only compared with the others'.
    pub(crate) fn sums(
        &mut self,
        batches: &mut dyn MicroBatches,
        learning_rate: f64,
        clock: &mut Clock,
    ) -> Result<Sums> {
        self.pass(batches, true, clock)?;
        let window = std::mem::take(&mut self.window);
        let began = clock.now();
        let mut gradients = self.reduction.finish(clock)?;
        clock.record(Activity::Phase("reduce gradients"), began);
        self.memory.gradients = self.reduction.bytes();
        let mut is_divided = self.settings.strategy.period() == 1;
        if !self.gradient_hooks.is_empty() {
            self.run_gradient_hooks(&mut gradients, &window, is_divided, clock)?;
            is_divided = true;
        }

        let started = Instant::now();
        let at_once = tile(&self.store.device);
        let found =
            gradients.iter().enumerate().filter_map(|(unit, gradient)| Some((unit, gradient.as_ref()?)));
        let counted: Vec<_> = found.map(|(unit, gradient)| self.counted_once(unit, gradient)).collect();
        let (norm, read) = sum_of_squares(&counted, at_once, window.numbers())?;
        clock.optimizer += started.elapsed();

        let count = self.agreed_count(window.count, clock)?;
        let mut words = window.targets.to_words();
        words.push(learning_rate);
        let (losses, of_metrics) = window.found(&read);
        words.extend(losses);
        words.resize(TargetSum::WORDS + 1 + count, 0.0);
        let mut metrics = MetricSums::new(self.objective.names.len());
        metrics.add(of_metrics);
        words.extend(metrics.words());
        words.extend(norm.to_words());
        let pending = self.store.groups.world.all_gather_scalars(words);
        let all = clock.waiting("all_gather_scalars", || pending.wait())?;
        clock.record(Activity::Phase("gradient norm"), Some(started));
        let mut norm = ExactSum::default();
        all.iter().for_each(|words| norm.merge(&ExactSum::from_words(&words[words.len() - WORDS..])));
        self.check_learning_rates(&all)?;
        let (targets, loss) = self.agreed_loss(&all, count);
        let target_weight = targets.weight();
        let last = self.last_stage(self.store.groups.mesh(), &all);
        let metrics = self.agreed_metrics(&last, 1 + count, target_weight);
        let some = |is_divided: bool| (!is_divided && target_weight != 0.0).then_some(target_weight);
        let (divisor, of_loss) = (some(is_divided), some(self.settings.strategy.period() == 1));
        let (grad_norm, loss) = (norm.value().sqrt() / divisor.unwrap_or(1.0), loss / of_loss.unwrap_or(1.0));
        let (targets, in_flight) = (targets.count, window.in_flight);
        let running = window.running.into_values().collect();
        Ok(Sums { gradients, grad_norm, loss, metrics, targets, target_weight, divisor, running, in_flight })
    }

    /// The part of a gradient whose squares this rank counts: what other ranks hold as well, one counts.
    fn counted_once(&self, unit: usize, gradient: &Tensor<1>) -> Tensor<1> {
        let stored = &self.store.units[unit];
        let (own, counted) = (&stored.own, &stored.counted);
        gradient.clone().slice(counted.start - own.start..counted.end - own.start)
    }

    /// Gives what the reduction made to the gradient hooks, divided by the weight of the targets.
    fn run_gradient_hooks(
        &self,
        gradients: &mut [Option<Tensor<1>>],
        window: &Window,
        is_divided: bool,
        clock: &mut Clock,
    ) -> Result<()> {
        let weight = match is_divided {
            true => 1.0,
            false => {
                let pending = self.store.groups.world.all_gather_scalars(window.targets.to_words());
                let all = clock.waiting("all_gather_scalars", || pending.wait())?;
                let last = self.last_stage(self.store.groups.mesh(), &all);
                TargetSum::over_ranks(last.into_iter().map(|(_, words)| words)).weight()
            }
        };
        let started = Instant::now();
        for (stored, gradient) in self.store.units.iter().zip(gradients) {
            let Some(found) = gradient.take() else { continue };
            let found = if weight == 1.0 || weight == 0.0 { found } else { found.div_scalar(weight) };
            let block = self.chain.blocks[stored.unit.home].name.as_str();
            *gradient = Some(hook::run(
                &self.gradient_hooks,
                (self.worker_seed(), self.step),
                (stored, block),
                found,
            )?);
        }
        clock.optimizer += started.elapsed();
        Ok(())
    }

    /// Checks that all ranks were given the same learning rate.
    fn check_learning_rates(&self, all: &[Vec<f64>]) -> Result<()> {
        let rates = || all.iter().map(|words| words[TargetSum::WORDS]);
        let (first, is_allowed) = (all[0][TargetSum::WORDS], |rate: f64| rate.is_finite() && rate >= 0.0);
        match rates().enumerate().find(|(_, rate)| rate.to_bits() != first.to_bits() || !is_allowed(*rate)) {
            None => Ok(()),
            Some((place, rate)) => {
                let [rank, of_first] = [place, 0].map(|place| self.store.groups.rank_of_all(place));
                let first = if place == 0 { String::new() } else { format!("; rank {of_first} has {first}") };
                Err(Error::Setting {
                    option: "the learning rate",
                    given: format!("{rate} (step {}, rank {rank})", self.step),
                    allowed: format!("it must be a number of at least 0, and the same on all ranks{first}"),
                })
            }
        }
    }

    /// The valid targets and the sum of the losses of the global batch, from what each rank of the last stage has.
    fn agreed_loss(&self, all: &[Vec<f64>], count: usize) -> (TargetSum, f64) {
        let (mesh, mut numbered) = (self.store.groups.mesh(), Vec::new());
        let last = self.last_stage(mesh, all);
        for (rank, words) in &last {
            for k in 0..count {
                let number = self.settings.zero.micro_batch_number(mesh, *rank, k, count);
                numbered.push((number, words[TargetSum::WORDS + 1 + k] as f32));
            }
        }
        numbered.sort_by_key(|(number, _)| *number);
        let mut loss = PairwiseSum::new();
        numbered.into_iter().for_each(|(_, share)| loss.push(share, |a, b| a + b));
        let targets = TargetSum::over_ranks(last.into_iter().map(|(_, words)| words));
        (targets, f64::from(loss.finish(|a, b| a + b).unwrap_or(0.0)))
    }

    /// The means of the model's metrics, from what each rank of the last stage has behind its targets and `count` other numbers.
    fn agreed_metrics(
        &self,
        last: &[(usize, &Vec<f64>)],
        count: usize,
        target_weight: f64,
    ) -> SortedMap<String, f64> {
        let mut sums = MetricSums::new(self.objective.names.len());
        let start = TargetSum::WORDS + count;
        let range = start..start + MetricSums::words_of(self.objective.names.len());
        last.iter().for_each(|(_, words)| sums.merge(&words[range.clone()]));
        sums.means(self.objective.names.iter().map(String::as_str), target_weight)
    }

    /// The ranks of a mesh that hold the model's last block, with their words, in the order of their place along the data axes.
    fn last_stage<'w>(&self, mesh: &Mesh, all: &'w [Vec<f64>]) -> Vec<(usize, &'w Vec<f64>)> {
        let stage = self.stage.holder(self.shapes.len() - 1);
        all.iter().enumerate().filter(|(rank, _)| mesh.coordinate(*rank, PP) == stage).collect()
    }

    /// [`Engine::evaluate`](super::Engine::evaluate) of micro-batches of any type.
    pub(crate) fn evaluate(&mut self, count: usize, load: &mut Load<'_>) -> Result<Evaluation> {
        self.check_synced()?;
        self.with_model_values(|engine| engine.evaluate_as_it_is(count, load))
    }

    fn evaluate_as_it_is(&mut self, count: usize, load: &mut Load<'_>) -> Result<Evaluation> {
        let everyone = self.store.groups.all().clone();
        let counts = everyone.world().all_gather_scalars(vec![count as f64]).wait()?;
        let most = counts.iter().map(|count| count[0] as usize).max().unwrap_or(0);
        let schedule = self.schedule(most, false)?;
        let mut clock = Clock::default();
        let mut batches = Loaded::new(count, self.stage.is_last(), load);
        let state =
            self.run(&mut batches, &schedule, |_| PassMode::Evaluate, TargetWeight::Unasked, 0, &mut clock)?;
        let mut words = batches.targets().to_words();
        let found = Window::of(most, state.losses, state.metrics);
        let (_, read) = sum_of_squares(&[], 1, found.numbers())?;
        let (losses, of_metrics) = found.found(&read);
        words.extend(losses);
        let mut metrics = MetricSums::new(self.objective.names.len());
        metrics.add(of_metrics);
        words.extend(metrics.words());
        let all = everyone.world().all_gather_scalars(words).wait()?;
        let last = self.last_stage(everyone.mesh(), &all);
        let mut sum = PairwiseSum::new();
        for k in 0..most {
            last.iter().for_each(|(_, words)| sum.push(words[TargetSum::WORDS + k], |a, b| a + b));
        }
        let targets = TargetSum::over_ranks(last.iter().map(|(_, words)| *words));
        let (targets, target_weight) = (targets.count, targets.weight());
        let metrics = self.agreed_metrics(&last, most, target_weight);
        let loss = sum.finish(|a, b| a + b).unwrap_or(0.0) / target_weight;
        Ok(Evaluation { loss, metrics, targets, target_weight })
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
