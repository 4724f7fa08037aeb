//! A run under way on one rank.

mod added;
mod evaluate;
mod finish;
mod hooks;
mod loop_seed;
mod outer_step;
mod prepare;
mod rounds;
mod saving;
mod step;

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::bail;
use brigade_core::{Activation, Chain, Engine, LrScheduler, NamedTensor};
use brigade_data::Sampler;
use brigade_models::WeightsFormat;
use brigade_report::{CheckpointRecord, Reporter, StepRecord};
use brigade_sorted::SortedMap;

use self::added::Added;
use self::loop_seed::LoopSeed;
use self::step::nonfinite::NonFiniteSteps;
use super::profile::Profile;
use super::servers::{RemoteServers, ServedWorkers};
use super::watch::{Best, BestCheckpoint, EarlyStopping};
use super::workers::ElasticWorker;
use crate::checkpoint::{RunDescription, RunProgress, Saver};
use crate::error::Preempted;
use crate::run::Session;
use crate::training_setup::{Reader, Training};

pub use added::AddedModel;

/// What helps after a step that failed.
const RESUME: &str = "start the run again with --resume auto";

/// A model in training, step by step, for your own loop. [`Session::prepare`] makes it, and
/// [`Session::train`] is this loop:
///
/// ```no_run
/// # use brigade::{Chain, Training, samples};
/// # use burn::prelude::*;
/// # fn main() -> std::process::ExitCode {
/// # brigade::launch("", |session| {
/// # let model = Chain::<Tensor<2>, Tensor<2>>::new().loss(|output: Tensor<2>, _: Tensor<2>| output.sum());
/// # let data = samples(1, |_, device| (Tensor::zeros([1, 1], device), Tensor::<2>::zeros([1, 1], device)));
/// let mut trainer = session.prepare(model, Training::on(data))?;
/// while let Some(batches) = trainer.next_batches()? {
///     trainer.step(batches)?;
///     if trainer.evaluation_is_due() {
///         trainer.evaluate()?;
///     }
///     if trainer.save_is_due() {
///         trainer.save()?;
///     }
/// }
/// trainer.finish()?;
/// # Ok(())
/// # })
/// # }
/// ```
///
/// All ranks call the same methods in the same order. Metrics, progress, background checkpoints, hooks, skipping and rolling
/// back, preemption and Ctrl-C work in any such loop as in [`Session::train`]; anything that ends a run early is an error,
/// which the loop passes on with `?`.
pub struct Trainer<'a, I, O, T> {
    session: &'a Session,
    engine: Engine<I, O, T>,
    loop_seed: Rc<LoopSeed>,
    training: Training<I, O, T>,
    /// Steps of the whole run.
    total_steps: u64,
    schedule: LrScheduler,
    saver: Saver,
    /// On rank 0.
    reporter: Option<Reporter>,
    progress: RunProgress,
    /// The run's description in its checkpoints.
    description: RunDescription,
    /// What must be the same when the run resumes.
    facts: SortedMap<String, String>,
    early_stopping: Option<EarlyStopping>,
    best_checkpoint: Option<BestCheckpoint>,
    /// Additional models that are saved with this one.
    added: Vec<Rc<dyn Added + 'a>>,
    /// The learning rate of the step under way, or of the last one, for additional models.
    step_learning_rate: Rc<Cell<f64>>,
    /// Steps that were skipped or rolled back because of a value that was not finite, of all models.
    nonfinite: Rc<NonFiniteSteps>,

    sampler: Option<Sampler>,
    reader: Option<Box<dyn Reader<I, T>>>,
    /// Whether a step has been made, or data read for it.
    has_begun: bool,
    /// Whether the ranks of a pipeline have compared their batches.
    has_compared: bool,
    /// The step that the run was resumed from.
    resumed_step: Option<u64>,
    /// The step that has failed, after which there is no other.
    failed_step: Option<u64>,
    /// Whether the data of the next step have been read.
    is_read: bool,
    /// When the update under way began, by the clock and by the time of collectives until then, and how long it has waited for data.
    update_began: Option<(Instant, Duration)>,
    data_wait: Duration,
    /// Batches of data that were consumed up to the last update.
    update_position: u64,
    /// On rank 0: the record of the last step, until something else begins.
    record: Option<StepRecord>,
    /// On rank 0: values for the record of the last step, or for the next one.
    logged: SortedMap<String, f64>,
    /// On rank 0: the last record that was written, since a validation may still belong to it.
    reported: Option<StepRecord>,
    /// Whether a step has been made since the last validation.
    is_unvalidated: bool,
    /// Whether the weights are to be saved as the best.
    best_is_unsaved: bool,
    /// The best checkpoint that is there, and the one there will be once the save under way has ended.
    best_saved: Best,
    best_being_saved: Best,
    /// The step that was saved last, or is being saved.
    saved_step: Option<u64>,
    /// Whether a note has said that the loop saves no checkpoints.
    has_noted_unsaved: bool,
    has_noted_second_halves: bool,
    /// Checkpoints that were completed since the last record.
    completed: Vec<CheckpointRecord>,
    /// Whether a rank's machine is about to be taken away.
    is_preempted: bool,
    /// The timeline of some steps.
    profile: Option<Profile>,
    /// This worker among separately launched ones.
    elastic: Option<ElasticWorker>,
    /// On a server: its workers, if they are launched separately.
    served: Option<ServedWorkers>,
    /// On such a worker: its servers.
    works_for: Option<RemoteServers>,
    /// The peak of this rank's device memory so far, in bytes.
    device_peak: u64,
}

impl<I: Activation + Clone, O: Activation, T: Clone + 'static> Trainer<'_, I, O, T> {
    /// Steps done since the run began; a rollback undoes some.
    pub fn steps_done(&self) -> u64 {
        self.progress.step
    }

    /// Steps of the whole run: `train.steps`, or as many as `train.epochs` takes.
    pub fn total_steps(&self) -> u64 {
        self.total_steps
    }

    /// Mean loss over the global batches of the last update; NaN before the first.
    pub fn loss(&self) -> f64 {
        self.progress.loss
    }

    /// The step whose weights are the best so far, if the run keeps them.
    pub fn best_step(&self) -> Option<u64> {
        self.progress.best_step
    }

    /// The learning rate of the next update.
    pub fn learning_rate(&self) -> f64 {
        self.learning_rate_after(self.progress.step)
    }

    /// The learning rate of the step after this many.
    fn learning_rate_after(&self, step: u64) -> f64 {
        let own = self.training.update.learning_rate_factor(step);
        self.session.plan.learning_rate * own.unwrap_or_else(|| self.schedule.factor(step))
    }

    /// The blocks, with the values of the last step. Under pipeline stages or ZeRO-3 a rank has only a part of them, and reading
    /// values is an error.
    pub fn chain(&self) -> &Chain<I, O> {
        self.engine.chain()
    }

    /// Whether the run has ended: all steps are done, or early stopping or a hook has ended it.
    pub fn is_over(&self) -> bool {
        self.progress.step >= self.total_steps || self.stopped().is_some()
    }

    /// Why the run ended before its last step, if it did.
    pub fn stopped(&self) -> Option<String> {
        if self.progress.step >= self.total_steps {
            return None;
        }
        if self.progress.is_stopped {
            return Some("a hook ended the run".into());
        }
        self.early_stopping.as_ref()?.reason(&self.progress.watched)
    }

    /// Adds a named value to the record of the last update, like a metric of the model: in `metrics.jsonl`, TensorBoard and the
    /// line of the step. Where that record is written already (after [`next_batches`](Self::next_batches), say), or there is none yet, it goes into the next one. Rank 0's value
    /// counts; a metric of the model that has this name stays as it is. What is logged for a step that is rolled back, or after the last record, is dropped.
    pub fn log(&mut self, name: impl Into<String>, value: f64) {
        if self.reporter.is_some() {
            self.logged.insert(name.into(), value);
        }
    }

    /// The seed of what a loop without data of its own draws for the `k`-th of this rank's `count` micro-batches of the next step, for
    /// [`with_seed`](crate::with_seed): the same numbers on any mesh, on all stages of a pipeline, and in a resumed run; after a rollback, others.
    pub fn batch_seed(&self, k: usize, count: usize) -> u64 {
        self.loop_seed.after_rollbacks(self.engine.batch_seed(k, count))
    }

    /// The weights of the last step by name, as many as the model has, on rank 0 of any mesh; the other ranks get an empty list. All ranks call it.
    ///
    /// # Errors
    /// If a rank failed.
    pub fn weights(&self) -> anyhow::Result<Vec<NamedTensor>> {
        Ok(self.engine.tensors(0)?)
    }

    /// The model's output for an input, as validation computes it, on any mesh. All ranks call it together: see
    /// [`Trained::predict`](crate::Trained::predict).
    ///
    /// # Errors
    /// If a block refuses the input, or a rank failed.
    pub fn predict(&mut self, input: I) -> anyhow::Result<O> {
        let output = self.engine.predict(input)?;
        self.loop_seed.after_call();
        Ok(output)
    }

    /// Writes the weights into a file, on any mesh, or only the adapters if only they are written at the end. All ranks call it; rank 0 writes.
    ///
    /// # Errors
    /// If the file cannot be written, or a rank failed.
    pub fn write_weights(&self, path: &Path) -> anyhow::Result<()> {
        let (mapping, holds) = (&self.training.mapping, self.training.weights.holds);
        self.session.write_weights(&self.engine, mapping, path, holds, WeightsFormat::ONE_FILE).map(drop)
    }

    /// Ends what the last step has left open, before something else begins: its record, the checkpoint of the best weights, and
    /// a run that should continue but was interrupted, or whose machine is about to be taken away.
    fn proceed(&mut self) -> anyhow::Result<()> {
        if let Some(step) = self.failed_step {
            bail!("step {step} failed, and nothing can follow it in this process; {RESUME}");
        }
        self.report_step()?;
        if self.best_is_unsaved {
            self.save()?;
        }
        if self.is_over() {
            return Ok(());
        }
        if self.is_preempted {
            self.save_preempted()?;
            return Err(Preempted.into());
        }
        self.session.check_interrupt()
    }

    /// Reports the last step, if it was not yet.
    fn report_step(&mut self) -> anyhow::Result<()> {
        self.record_skipped();
        if let (Some(reporter), Some(mut record)) = (&mut self.reporter, self.record.take()) {
            for (name, value) in std::mem::take(&mut self.logged) {
                record.metrics.entry(name).or_insert(value);
            }
            record.checkpoint = (!self.completed.is_empty()).then(|| self.completed.remove(0));
            reporter.step(&record)?;
            self.reported = Some(record);
        }
        Ok(())
    }

    /// Adds the skipped steps of additional models to the record of the last step, or else leaves them for the next one.
    fn record_skipped(&mut self) {
        if let Some(record) = &mut self.record {
            for (name, count) in self.nonfinite.take_skipped() {
                *record.metrics.entry(name).or_default() += count;
            }
        }
        for note in self.nonfinite.drain_messages() {
            self.note(&note);
        }
    }

    /// The step that made the last update of all ranks.
    fn update_step(&self) -> u64 {
        let (every, _) = self.session.settings.steps_together();
        self.progress.step / every * every
    }

    /// Whether steps have been made since the last update.
    fn is_between_updates(&self) -> bool {
        self.update_step() != self.progress.step
    }

    /// Reports to the launcher that this rank is alive, and what it is doing.
    fn send_heartbeat(&self, what: &str) {
        self.session.heartbeat.send(&format!("step {}: {what}", self.progress.step + 1));
    }

    fn note(&mut self, text: &str) {
        if let Some(reporter) = &mut self.reporter {
            reporter.note(text);
        }
    }
}
