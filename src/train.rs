//! The training loop of one rank.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use brigade_core::{
    Activation, Bytes, Chain, Collectives, Engine, EngineSettings, Model, Operation, StepReport, Traffic, WAITS,
};
use brigade_core::plan::ranges;
use brigade_data::{EvaluationBatches, Prefetcher, Sampler};
use brigade_models::{Names, WeightsError, WeightsWriter};
use brigade_report::{
    Compute, ConsoleMode, MemoryRecord, Reporter, ReporterOptions, StepRecord, Summary,
};

use crate::dataset::{Dataset, Training};
use crate::output::{self, WEIGHTS_FILE};
use crate::session::{DryRun, Session};
use crate::settings::Plan;

/// Steps that are read ahead of the one that trains.
const READ_AHEAD: usize = 4;

/// A finished run.
pub struct Trained<I, O> {
    /// The model with its trained weights: all of them on every rank, unless pipeline stages or ZeRO-3 leave a rank
    /// with a part; the run's file of weights is always whole.
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
        let engine_settings = EngineSettings { split: self.plan.split(&model.chain().costs())?, ..self.plan.engine.clone() };
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
                reporter
                    .note(&format!("step {}: loss or gradient norm not finite, step skipped", report.step));
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

    /// In a dry run, prints the resolved configuration, the mesh and the model's blocks, and fails
    /// with an error that ends the body; else it does nothing. [`Session::train`] begins with it; a
    /// body calls it before work that a dry run is to leave out.
    ///
    /// # Errors
    /// In a dry run.
    pub fn describe<I: Activation, O: Activation>(&self, chain: &Chain<I, O>) -> anyhow::Result<()> {
        if !self.dry {
            return Ok(());
        }
        say(&self.description(&self.config, chain));
        Err(DryRun.into())
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
    fn validate<D, O>(&self, engine: &mut Engine<D::Input, O, D::Target>, data: &Arc<D>) -> anyhow::Result<f64>
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

    fn introduce<I: Activation, O: Activation, D: Dataset>(
        &self,
        reporter: &mut Reporter,
        chain: &Chain<I, O>,
        train: &Arc<D>,
        sampler: &Sampler,
    ) {
        let (plan, settings) = (&self.plan, &self.settings.train);
        reporter.note(&format!("{}; mesh pp {} x dp {}", self.world, plan.mesh.pp, plan.mesh.dp));
        reporter.note(&format!(
            "{} parameters in {} blocks; {} samples, {:.2} epochs in {} steps",
            chain.parameters(),
            chain.parameters_by_block().len(),
            train.len(),
            sampler.epochs_after(settings.steps),
            settings.steps
        ));
        reporter.note(&format!(
            "global batch {} = dp {} x {} micro-batches of {}; learning rate {} ({})",
            settings.global_batch_size,
            plan.mesh.dp,
            plan.accumulation,
            settings.micro_batch_size,
            plan.learning_rate,
            plan.learning_rate_reason
        ));
        if plan.schedule.warmup_steps > settings.steps {
            reporter.note(&format!(
                "note: the warm-up of {} steps is longer than the run of {}; the peak learning rate is never reached",
                plan.schedule.warmup_steps, settings.steps
            ));
        }
        if let Some(why) = same_bits_needs(plan) {
            reporter.note(&format!(
                "note: weights are the same bits on another number of data-parallel ranks only where {why} a power of two"
            ));
        }
        for line in self.spread(chain) {
            reporter.note(&line);
        }
    }

    fn conclude(&self, summary: Summary) {
        if !self.quiet {
            say(&format!("{summary}\n"));
        }
    }

    /// How the model is spread: which blocks each stage holds, and what is sharded.
    fn spread<I: Activation, O: Activation>(&self, chain: &Chain<I, O>) -> Vec<String> {
        let plan = &self.plan;
        let mut lines = Vec::new();
        if let (true, Ok(split)) = (plan.mesh.pp * plan.engine.chunks > 1, plan.split(&chain.costs())) {
            let blocks = chain.parameters_by_block();
            let names = ranges(&split).into_iter().map(|range| match range.len() {
                1 => blocks[range.start].0.clone(),
                _ => format!("{} to {}", blocks[range.start].0, blocks[range.end - 1].0),
            });
            let names: Vec<_> = names.collect();
            lines.push(format!(
                "pipeline {}: {} stages, blocks {split:?}: {}",
                plan.engine.schedule,
                plan.mesh.pp,
                names.join(" | ")
            ));
        }
        if plan.engine.zero.stage > 0 {
            let what = ["", "optimizer state", "optimizer state and gradients", "optimizer state, gradients and parameters"];
            let what = what[usize::from(plan.engine.zero.stage.min(3))];
            lines.push(format!("ZeRO-{}: {what} in {} shards", plan.engine.zero.stage, plan.mesh.dp));
        }
        lines
    }

    /// The resolved configuration, the mesh, and the parameters of each block.
    fn description<I: Activation, O: Activation>(&self, config: &str, chain: &Chain<I, O>) -> String {
        let plan = &self.plan;
        let mut text = format!("{}\n", config.trim_end());
        let _ = writeln!(text, "\n# world: {}", self.world);
        let _ =
            writeln!(text, "# mesh: pp {} x dp {} = {} ranks", plan.mesh.pp, plan.mesh.dp, plan.mesh.world());
        let _ = writeln!(text, "# each rank adds up {} micro-batches a step", plan.accumulation);
        let _ = writeln!(text, "# learning rate: {} ({})", plan.learning_rate, plan.learning_rate_reason);
        for line in self.spread(chain) {
            let _ = writeln!(text, "# {line}");
        }
        for (name, parameters) in chain.parameters_by_block() {
            let _ = writeln!(text, "# block {name:<16} {parameters:>12} parameters");
        }
        let _ = writeln!(text, "# all   {:<16} {:>12} parameters", "", chain.parameters());
        text
    }
}

/// What must be a power of two for the weights to be the same on another number of data-parallel ranks; none if it is.
fn same_bits_needs(plan: &Plan) -> Option<&'static str> {
    let each = plan.engine.zero.reduces_each_micro_batch();
    match plan.mesh.dp {
        1 => None,
        dp if each => (!dp.is_power_of_two() && plan.accumulation > 1).then_some("the number of data-parallel ranks is"),
        _ => (!plan.accumulation.is_power_of_two()).then_some("each rank's micro-batches are"),
    }
}

/// Prints; a reader that has gone away, as `head` does, is no reason to end a run.
fn say(text: &str) {
    drop(std::io::stdout().write_all(text.as_bytes()));
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

/// What each rank tells the others of its step.
struct Shares {
    /// Longest step of any rank.
    step_seconds: f64,
    /// Means over the ranks, in the order of [`share`].
    seconds: [f64; 6],
    /// Means over the ranks, by what was waited for.
    waits: [f64; WAITS.len()],
    /// The largest of any rank.
    peak_rss_bytes: u64,
    in_flight: u64,
    memory: MemoryRecord,
    /// Calls of the world, and the bytes of all ranks.
    traffic: Traffic,
}

const OPERATIONS: [Operation; 7] = [
    Operation::AllReduce,
    Operation::ReduceScatter,
    Operation::AllGather,
    Operation::Broadcast,
    Operation::Send,
    Operation::Exchange,
    Operation::Barrier,
];

fn share(
    collectives: &dyn Collectives,
    report: &StepReport,
    data_wait: Duration,
    step: Duration,
) -> anyhow::Result<Shares> {
    let clock = &report.clock;
    let seconds =
        [clock.forward, clock.backward, clock.optimizer, data_wait, clock.comm_wait(), report.bubble];
    let memory = report.memory;
    let memory = [memory.parameters, memory.gradients, memory.optimizer, memory.activations];
    let mut values = vec![step.as_secs_f64(), brigade_report::peak_rss_bytes() as f64, report.in_flight as f64];
    values.extend(memory.iter().flat_map(|Bytes { live, peak }| [*live as f64, *peak as f64]));
    let means = values.len();
    values.extend(seconds.iter().map(Duration::as_secs_f64));
    values.extend(WAITS.map(|what| clock.waits.get(what).map_or(0.0, Duration::as_secs_f64)));
    let counts = values.len();
    for operation in OPERATIONS {
        let (calls, bytes) = report.traffic.get(&operation).copied().unwrap_or_default();
        values.extend([calls as f64, bytes as f64]);
    }
    let all = collectives.exchange(values).wait()?;
    let sum = |index: usize| all.iter().map(|values| values[index]).sum::<f64>();
    let most = |index: usize| all.iter().map(|values| values[index]).fold(0.0, f64::max);
    let traffic = OPERATIONS.iter().enumerate().map(|(index, operation)| {
        (*operation, (most(counts + 2 * index) as u64, sum(counts + 2 * index + 1) as u64))
    });
    Ok(Shares {
        step_seconds: most(0),
        seconds: std::array::from_fn(|index| sum(means + index) / all.len() as f64),
        waits: std::array::from_fn(|index| sum(means + seconds.len() + index) / all.len() as f64),
        peak_rss_bytes: most(1) as u64,
        in_flight: most(2) as u64,
        memory: MemoryRecord {
            parameter_bytes: most(3) as u64,
            parameter_bytes_peak: most(4) as u64,
            gradient_bytes: most(5) as u64,
            gradient_bytes_peak: most(6) as u64,
            optimizer_bytes: most(7) as u64,
            optimizer_bytes_peak: most(8) as u64,
            activation_bytes: most(9) as u64,
            activation_bytes_peak: most(10) as u64,
        },
        traffic: traffic.filter(|(_, (calls, _))| *calls > 0).collect(),
    })
}

fn record(
    report: &StepReport,
    learning_rate: f64,
    shares: &Shares,
    validation_loss: Option<f64>,
) -> StepRecord {
    let [forward, backward, optimizer, data_wait, comm_wait, bubble] = shares.seconds;
    let collectives: BTreeMap<String, brigade_report::Collective> = shares
        .traffic
        .iter()
        .map(|(operation, (calls, bytes))| {
            (operation.name().to_owned(), brigade_report::Collective { calls: *calls, bytes: *bytes })
        })
        .collect();
    StepRecord {
        step: report.step,
        loss: report.loss,
        grad_norm: report.grad_norm,
        learning_rate,
        tokens: report.targets,
        tokens_per_second: report.targets as f64 / shares.step_seconds,
        step_seconds: shares.step_seconds,
        forward_seconds: forward,
        backward_seconds: backward,
        optimizer_seconds: optimizer,
        data_wait_seconds: data_wait,
        comm_wait_seconds: comm_wait,
        comm_wait_seconds_by: WAITS
            .into_iter()
            .zip(shares.waits)
            .filter(|(_, seconds)| *seconds > 0.0)
            .map(|(what, seconds)| (what.to_owned(), seconds))
            .collect(),
        bubble_seconds: bubble,
        micro_batches_in_flight: shares.in_flight,
        memory: shares.memory,
        comm_bytes: collectives.values().map(|c| c.bytes).sum(),
        comm_calls: collectives.values().map(|c| c.calls).sum(),
        collectives,
        peak_rss_bytes: shares.peak_rss_bytes,
        validation_loss,
    }
}
