//! A step, and what follows from it on all ranks.

pub(crate) mod batch_counts;
pub(crate) mod nonfinite;
pub(crate) mod profiled;
pub(crate) mod read;

use std::mem::replace;
use std::time::{Duration, Instant};

use anyhow::bail;
use brigade_core::{Activation, Batch, PP, StepReport};
use brigade_report::{DeviceMemory, StepRecord};

use crate::train::step_stats::{StepStats, StepStatus, StepTimes, gather, record};
use crate::train::trainer::Trainer;
use crate::train::trainer::step::batch_counts::GivenBatches;
use crate::training_setup::HookAnswers;

impl<I: Activation + Clone, O: Activation, T: Clone + 'static> Trainer<'_, I, O, T> {
    /// Trains one step on this rank's micro-batches: those of [`next_batches`](Self::next_batches), or others. Ranks of one
    /// pipeline give the same ones, and every rank gives as many (what servers give is left out). With `train.sync_every = K`, every K-th step makes an update
    /// and gives a report; the others only add up gradients. Where workers make updates of their own (`strategy.name`), every step with
    /// which they synchronise gives a report on all of them.
    ///
    /// A step in which something was not finite is skipped or rolled back, as `train.on_nonfinite` says; its report says so.
    ///
    /// # Errors
    /// As [`next_batches`](Self::next_batches) and [`Engine::step`](brigade_core::Engine::step), and those of hooks. If ranks are given different numbers
    /// of micro-batches, the run [is over](Self::is_over) (but where it ended after they were read, which gives no report), or an earlier step failed: it then
    /// continues only from a checkpoint.
    pub fn step(&mut self, batches: Vec<Batch<I, T>>) -> anyhow::Result<Option<StepReport>> {
        self.step_on(batches, false)
    }

    /// One step on what [`next_batches`](Self::next_batches) has read, all of it, which is as many on every rank.
    pub(in crate::train) fn step_as_read(
        &mut self,
        batches: Vec<Batch<I, T>>,
    ) -> anyhow::Result<Option<StepReport>> {
        self.step_on(batches, true)
    }

    fn step_on(&mut self, batches: Vec<Batch<I, T>>, as_read: bool) -> anyhow::Result<Option<StepReport>> {
        self.note_what_is_due();
        self.proceed()?;
        if self.is_over() && self.is_read {
            // A validation has ended it since.
            return Ok(None);
        }
        if self.is_over() {
            let why = self.stopped().map(|why| format!(", because {why}")).unwrap_or_default();
            bail!("the run ended with step {}{why}; there is no next one", self.progress.step);
        }
        self.begin()?;
        let batches = if self.engine.is_server() { Vec::new() } else { batches };
        self.is_read = false;
        if !as_read {
            let is_first = !replace(&mut self.has_compared, true);
            let given = GivenBatches::of(&batches, is_first && self.session.plan.mesh.size(PP) > 1)?;
            self.session.check_batches(&format!("step {}", self.progress.step + 1), given)?;
        }
        let step = self.progress.step + 1;
        let report = self.make_step(batches);
        match report {
            Ok(_) => self.loop_seed.after_step(self.progress.step),
            Err(_) => self.failed_step = Some(step),
        }
        report
    }

    fn make_step(&mut self, batches: Vec<Batch<I, T>>) -> anyhow::Result<Option<StepReport>> {
        self.begin_profiled_step()?;
        self.step_learning_rate.set(self.learning_rate());
        let (began, before) = self.begin_update();
        let steps = self.engine.steps_of_round();
        if steps.is_none() && !self.engine.synchronizes() {
            match self.engine.steps_alone() {
                true => self.engine.inner_step(batches, self.learning_rate())?,
                false => self.engine.accumulate(batches)?,
            }
            self.progress.step += 1;
            self.end_profiled_step(None)?;
            return Ok(None);
        }
        // Of the last step, where there are several.
        let learning_rate = self.learning_rate_after(self.progress.step + steps.map_or(0, |steps| steps - 1));
        let report = match steps {
            Some(steps) => self.round(batches, steps)?,
            None if self.elastic.is_some() => {
                self.engine.inner_step(batches, learning_rate)?;
                self.sync_workers()?
            }
            None => Some(self.engine.step(batches, learning_rate)?),
        };
        let Some(mut report) = report else {
            self.update_began = None;
            self.end_profiled_step(None)?;
            return Ok(None);
        };
        self.training.derived.add_to(&mut report.metrics);
        self.update_began = None;
        let is_undone = report.skipped && self.rolls_back(&report);
        let calls_hooks = self.session.rank() == 0 && !is_undone;
        let elapsed = began.elapsed();
        let collectives = self.collective_time().saturating_sub(before);
        let hooks = Instant::now();
        let answers = if calls_hooks { self.training.hooks.step(&report) } else { HookAnswers::default() };
        let hooks = (calls_hooks && !self.training.hooks.is_empty()).then(|| hooks.elapsed().as_secs_f64());
        if !self.training.hooks.is_empty() {
            // The other ranks wait for them.
            self.session.group().use_init_timeout();
        }
        let stats = self.gather(&report, elapsed, collectives, &answers)?;
        // All ranks have computed a step.
        self.session.group().use_step_timeout();
        let outcome = self.saver.advance(&stats.saving)?;
        self.save_ended(outcome)?;
        self.count_skipped(&report)?;
        if is_undone {
            self.roll_back(&report)?;
            return Ok(Some(report));
        }
        self.is_preempted = stats.preempted;
        self.progress.step += steps.unwrap_or(1);
        self.update_position = self.progress.position;
        self.progress.loss = report.loss;
        self.is_unvalidated = true;
        if self.reporter.is_some() {
            self.record = Some(StepRecord { hook_seconds: hooks, ..record(&report, learning_rate, &stats) });
        }
        self.record_skipped();
        self.note_second_halves();
        self.end_profiled_step(report.clock.spans.take())?;
        self.follow(stats.answers, answers.error)?;
        Ok(Some(report))
    }

    fn gather(
        &mut self,
        report: &StepReport,
        step: Duration,
        collectives: Duration,
        answers: &HookAnswers,
    ) -> anyhow::Result<StepStats> {
        let times = StepTimes { step, data_wait: std::mem::take(&mut self.data_wait), collectives };
        let status = StepStatus {
            saving: self.saver.progress(),
            preempted: self.session.is_preempted(),
            answers: answers.to_number(),
        };
        let device = self.session.device_memory().map(|memory| {
            self.device_peak = self.device_peak.max(memory.reserved);
            DeviceMemory { reserved_peak: self.device_peak, ..memory }
        });
        gather(self.session.collectives().as_ref(), report, &times, device, status)
    }

    /// Says once that a zero-bubble schedule has nothing to fill bubbles with.
    fn note_second_halves(&mut self) {
        if self.engine.second_halves() == Some(false) && !replace(&mut self.has_noted_second_halves, true) {
            self.note(&format!(
                "no block of the first stage leaves the gradients of its weights for later, so pipeline.schedule (--schedule) = {} fills no bubbles; linear layers of \
                 brigade::kernels do (compute.fused = true), and blocks with `Block::forward_split`; for others 1f1b is the same with less memory",
                self.session.settings.pipeline.schedule
            ));
        }
    }

    /// When the update under way began, which may be now, and the time of collectives until then.
    pub(crate) fn begin_update(&mut self) -> (Instant, Duration) {
        let collectives = self.collective_time();
        *self.update_began.get_or_insert_with(|| (Instant::now(), collectives))
    }

    fn collective_time(&self) -> Duration {
        self.session.group().flight_recorder().collective_time()
    }
}
