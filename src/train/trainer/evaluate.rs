//! Validation between steps.

use std::time::Instant;

use anyhow::{Context, bail};
use brigade_core::{Activation, DATA, Engine, Evaluation};
use brigade_data::ValidationSampler;
use brigade_report::timeline::Track;

use super::Trainer;
use crate::dataset::Dataset;
use crate::run::Session;
use crate::train::step_stats::add_validation;
use crate::training_setup::{AgreedAnswers, Data, HookAnswers, ValidationReport};

impl<I: Activation + Clone, O: Activation, T: Clone + 'static> Trainer<'_, I, O, T> {
    /// Whether to validate now: there is data for it, and `train.validate_every` steps have been made since the last time, or
    /// the run is over.
    pub fn evaluation_is_due(&self) -> bool {
        let (every, step) = (self.session.settings.train.validate_every, self.progress.step);
        let is_time = self.is_over() || (every > 0 && step.is_multiple_of(every));
        self.training.validation.is_some() && self.is_unvalidated && is_time && self.works_for.is_none()
    }

    /// Validates on the data of [`Training::validate`](crate::Training::validate). The result goes into the record of the last update and to the
    /// hooks, counts for early stopping, and decides whether the weights are the best. Steps between two updates (`train.sync_every`) do not change
    /// the weights, so a validation there is one of the last update.
    ///
    /// Validate before you [save](Self::save): a run that resumes from a checkpoint knows the validations made before it was
    /// saved.
    ///
    /// # Errors
    /// If there is no such data, it cannot be read, or a hook or a rank failed. Between two updates, also if there are additional
    /// models and the validation may have an effect.
    pub fn evaluate(&mut self) -> anyhow::Result<ValidationReport> {
        let data = self.training.validation.clone();
        let data = data.context("there are no data to validate on; give some with `Training::validate`")?;
        self.check_between_updates()?;
        let found = self.evaluated(&*data)?;
        self.is_unvalidated = false;
        self.progress.validation_loss = Some(found.loss);
        match (&mut self.record, &mut self.reported, &mut self.reporter) {
            (Some(record), ..) => add_validation(record, &found),
            (None, Some(record), Some(reporter)) => {
                add_validation(record, &found);
                reporter.validation(record)?;
            }
            _ => {}
        }
        let update = self.update_step();
        let watched = &mut self.progress.watched;
        // Without a target there is no loss.
        if let Some(early_stopping) = self.early_stopping.as_ref().filter(|_| found.targets > 0) {
            early_stopping.count(&found, update, watched);
        }
        if self.best_checkpoint.as_ref().is_some_and(|best| best.is_new(&found, watched)) {
            self.mark_best();
        }
        let answers = match self.session.rank() {
            0 => self.training.hooks.validation(&found),
            _ => HookAnswers::default(),
        };
        let (mut number, group) = ([answers.to_number()], self.session.group());
        group.use_init_timeout();
        group.broadcast_in_place(&mut number, 0)?;
        group.use_step_timeout();
        self.follow(AgreedAnswers::from_number(number[0]), answers.error)?;
        Ok(found)
    }

    /// Loss and metrics over other data, at most `train.validation_samples` of them. Nothing is recorded, and no hook is called.
    ///
    /// # Errors
    /// If data cannot be read, or a rank failed.
    pub fn evaluate_on<V>(&mut self, data: &V) -> anyhow::Result<ValidationReport>
    where
        V: Dataset<Input = I, Target = T>,
    {
        self.evaluated(data)
    }

    /// Between two updates, a run with several models cannot save a checkpoint, so nothing may ask for one.
    fn check_between_updates(&self) -> anyhow::Result<()> {
        let has_effect = self.best_checkpoint.is_some()
            || self.early_stopping.is_some()
            || self.training.hooks.answers_validations();
        match self.open_update().filter(|_| has_effect) {
            Some(why) => bail!("this validation may be the best or the last one, but {why}"),
            None => Ok(()),
        }
    }

    fn evaluated(&mut self, data: &dyn Data<I, T>) -> anyhow::Result<ValidationReport> {
        self.send_heartbeat("validating");
        let began = Instant::now();
        let mut found = self.session.validate(&mut self.engine, data, self.progress.step)?;
        if let Some(profile) = &mut self.profile {
            profile.add(Track::Schedule, "validation", began, Instant::now());
        }
        self.training.derived.add_to(&mut found.metrics);
        self.loop_seed.after_call();
        Ok(found)
    }
}

impl Session {
    /// Loss and metrics over samples after a step, each read by the ranks of one pipeline. One micro-batch at a time is on
    /// a rank's device, and ranks that need neither inputs nor targets read none.
    pub(in crate::train) fn validate<I, O, T>(
        &self,
        engine: &mut Engine<I, O, T>,
        data: &dyn Data<I, T>,
        step: u64,
    ) -> anyhow::Result<ValidationReport>
    where
        I: Activation + Clone,
        O: Activation,
        T: Clone + 'static,
    {
        let settings = &self.settings.train;
        let samples = match settings.validation_samples {
            0 => data.samples(),
            most => most.min(data.samples()),
        };
        let (dp_rank, dp) = (self.plan.mesh.position(self.rank(), &DATA), self.plan.mesh.size_over(&DATA));
        let sampler = ValidationSampler::new(samples, settings.micro_batch_size, dp)?;
        let device = self.device();
        let micro_batches: Vec<_> = sampler.for_rank(dp_rank)?.flatten().collect();
        let seeds: Vec<u64> = (0..micro_batches.len()).map(|index| engine.evaluation_seed(index)).collect();
        let Evaluation { loss, metrics, targets, target_weight } =
            engine.evaluate(micro_batches.len(), |index| {
                self.heartbeat.send(&format!("validating, micro-batch {index}"));
                // From all over the data, where not all of them are read.
                let spread = |sample| (sample as u128 * data.samples() as u128 / samples as u128) as usize;
                let chosen = micro_batches[index].clone().map(spread).collect();
                Ok(data.read(chosen, &device, seeds[index])?)
            })?;
        Ok(ValidationReport { step, loss, metrics, targets, target_weight })
    }
}
