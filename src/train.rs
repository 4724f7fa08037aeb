//! The training loop of one rank.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use brigade_core::{Activation, Chain, Engine, EngineSettings, Model};
use brigade_data::{EvaluationBatches, Prefetcher, Sampler};
use brigade_models::{Names, WeightsError, WeightsWriter};
use brigade_report::{Compute, ConsoleMode, Reporter, ReporterOptions, Summary};

use crate::dataset::{Dataset, Training};
use crate::describe::say;
use crate::output::{self, WEIGHTS_FILE};
use crate::record::{record, share};
use crate::session::Session;

/// Steps that are read ahead of the one that trains.
const READ_AHEAD: usize = 4;

/// A finished run.
pub struct Trained<I, O> {
    /// The model with its trained weights. Where pipeline stages or ZeRO-3 leave each rank with a part of it, asking it
    /// for values or predictions is an error; the run's file of weights is whole always.
    pub model: Chain<I, O>,
    /// Mean loss over the last global batch.
    pub loss: f64,
    /// Mean loss over the validation samples, where there are any.
    pub validation_loss: Option<f64>,
}

impl Session {
    /// Trains a model on this rank together with all others, to the end of the run. Rank 0 writes
    /// metrics and weights into the run's folder and shows progress.
    ///
    /// # Errors
    /// Whatever ends a run early: data that cannot be read, a loss that is not finite, a rank that
    /// failed, a full disk, an interruption.
    pub fn train<D, O>(
        &mut self,
        model: Model<D::Input, O, D::Target>,
        training: Training<D>,
    ) -> anyhow::Result<Trained<D::Input, O>>
    where
        D: Dataset,
        O: Activation,
    {
        self.describe(model.chain())?;
        let split = self.plan.split(&model.chain().costs())?;
        let Training { train, validation, names, flops_per_target, files } = training;
        let settings = self.settings.train.clone();
        let (seed, dp_rank, dp) = (settings.seed, self.plan.mesh.dp_rank(self.rank()), self.plan.mesh.dp);
        let sizes = format!(
            "{} samples to train on, {} to validate on",
            train.len(),
            validation.as_ref().map_or(0, |v| v.len())
        );
        self.same("dataset", &sizes)?;
        let sampler = Sampler::new(train.len(), seed, settings.global_batch_size, settings.micro_batch_size)?;

        let mut reporter = match self.rank() {
            0 => Some(self.begin(flops_per_target, &files)?),
            _ => None,
        };
        if let Some(reporter) = &mut reporter {
            self.introduce(reporter, model.chain(), &train, &sampler);
        }
        let optimizer = self.settings.optimizer.factory()?;
        let engine_settings = EngineSettings { split, ..self.plan.engine.clone() };
        let mut engine = Engine::new(model, seed, &optimizer, self.groups(), engine_settings)?;
        let (zero, count) = (self.plan.engine.zero, self.plan.accumulation);
        let numbers = (0..count).map(|k| zero.micro_batch_number(dp_rank, dp, k, count)).collect();
        let mut reader = read_ahead(&train, sampler, numbers)?;
        let device = self.device();
        let (mut loss, mut validation_loss) = (f64::NAN, None);

        for step in 0..settings.steps {
            self.check_interrupt()?;
            let started = Instant::now();
            let (items, data_wait) = reader.next().context("reading data")?;
            let batches: Vec<_> = items.into_iter().map(|items| train.batch(items, &device)).collect();
            let learning_rate = self.plan.learning_rate * self.plan.schedule.factor(step);
            let report = engine.step(batches, learning_rate)?;
            let shares = share(self.collectives().as_ref(), &report, data_wait, started.elapsed())?;
            loss = report.loss;

            let last = step + 1 == settings.steps;
            let due = settings.validate_every > 0 && (step + 1) % settings.validate_every == 0;
            let validated = match &validation {
                Some(data) if last || due => Some(self.validate(&mut engine, data)?),
                _ => None,
            };
            validation_loss = validated.or(validation_loss);
            if report.skipped
                && let Some(reporter) = &mut reporter
            {
                let why = match report.targets {
                    0 => "no valid target in the global batch",
                    _ => "loss or gradient norm not finite",
                };
                reporter.note(&format!("step {}: {why}, step skipped", report.step));
            }
            if let Some(reporter) = &mut reporter {
                reporter.step(&record(&report, learning_rate, &shares, validated))?;
            }
        }
        drop(reader);
        let path = self.save(&engine, &names)?;
        if let Some(mut reporter) = reporter {
            reporter.wrote(path);
            self.conclude(reporter.finish());
        }
        Ok(Trained { model: engine.into_chain(), loss, validation_loss })
    }

    /// Writes the file of weights on rank 0, block by block, from wherever they are.
    fn save<I, O, T>(&self, engine: &Engine<I, O, T>, names: &Names) -> anyhow::Result<PathBuf>
    where
        I: Activation + Clone,
        O: Activation,
        T: Clone,
    {
        let path = self.out.join(WEIGHTS_FILE);
        let mut writer = (self.rank() == 0).then(|| WeightsWriter::create(&path)).transpose()?;
        let mut failed: Option<WeightsError> = None;
        engine.collect(0, |tensor| {
            if let (Some(writer), None) = (&mut writer, &failed) {
                failed = writer.push(&tensor, names).err();
            }
            Ok(())
        })?;
        match (failed, writer) {
            (Some(error), _) => return Err(error.into()),
            (None, Some(writer)) => writer.finish()?,
            (None, None) => {}
        }
        Ok(path)
    }

    /// Mean loss over the validation samples, each read by the ranks of one pipeline.
    fn validate<D, O>(
        &self,
        engine: &mut Engine<D::Input, O, D::Target>,
        data: &Arc<D>,
    ) -> anyhow::Result<f64>
    where
        D: Dataset,
        O: Activation,
    {
        let settings = &self.settings.train;
        let samples = match settings.validation_samples {
            0 => data.len(),
            most => most.min(data.len()),
        };
        let (dp_rank, dp) = (self.plan.mesh.dp_rank(self.rank()), self.plan.mesh.dp);
        let rows = EvaluationBatches::new(samples, settings.micro_batch_size, dp)?;
        let device = self.device();
        let mut batches = Vec::new();
        for step in 0..rows.steps() {
            let items: Vec<_> = rows
                .batch(step, dp_rank)?
                .into_iter()
                .flatten()
                .map(|index| data.get(index))
                .collect::<Result<_, _>>()?;
            if !items.is_empty() {
                batches.push(items);
            }
        }
        Ok(engine.evaluate(batches.into_iter().map(|items| data.batch(items, &device)))?)
    }

    /// Starts the folder of results.
    fn begin(&self, flops_per_target: Option<f64>, files: &[(String, Vec<u8>)]) -> anyhow::Result<Reporter> {
        output::begin(&self.out, self.settings.output.overwrite, &self.config)?;
        let mut reporter = self.reporter(flops_per_target)?;
        for (name, content) in files {
            let path = self.out.join(name);
            std::fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
            reporter.wrote(path);
        }
        Ok(reporter)
    }

    fn reporter(&self, flops_per_target: Option<f64>) -> anyhow::Result<Reporter> {
        let options = ReporterOptions {
            total_steps: self.settings.train.steps,
            log_every: self.settings.output.log_every,
            console: if self.quiet { ConsoleMode::Quiet } else { ConsoleMode::Auto },
            compute: Compute { flops_per_token: flops_per_target, peak_flops: None },
            tensorboard: true,
            overwrite: self.settings.output.overwrite,
        };
        Ok(Reporter::create(&self.out, options)?)
    }

    fn conclude(&self, summary: Summary) {
        if !self.quiet {
            say(&format!("{summary}\n"));
        }
    }
}

/// This rank's micro-batches of samples, given by their numbers in the global batch, step by step, read on threads of
/// their own.
fn read_ahead<D: Dataset>(
    data: &Arc<D>,
    sampler: Sampler,
    numbers: Vec<usize>,
) -> anyhow::Result<Prefetcher<Vec<Vec<D::Item>>>> {
    let data = data.clone();
    let read = move |step: u64| -> anyhow::Result<Vec<Vec<D::Item>>> {
        numbers
            .iter()
            .map(|number| sampler.numbered(step, *number)?.into_iter().map(|index| data.get(index)).collect())
            .collect()
    };
    Ok(Prefetcher::new(0, READ_AHEAD, 1, read)?)
}
