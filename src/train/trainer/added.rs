//! Further models of a run.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;

use anyhow::bail;
use brigade_core::{
    Activation, Batch, Engine, EngineSettings, Model, NamedTensor, Snapshot, StepReport, keyed_seed,
};
use brigade_models::{WeightsFormat, WeightsMapping};

use super::loop_seed::LoopSeed;
use super::step::batch_counts::GivenBatches;
use super::step::nonfinite::NonFiniteSteps;
use super::{RESUME, Trainer};
use crate::checkpoint::{ModelReader, RunProgress, restore_step};
use crate::dataset::Dataset;
use crate::error::CheckpointUsageError;
use crate::folder::{WEIGHTS_FILE, added_weights_file};
use crate::memory::Sampled;
use crate::run::Session;
use crate::settings::{OnNonFinite, SettingError};
use crate::train::start::file_names;
use crate::training_setup::{DerivedMetrics, OwnUpdate, Training, ValidationReport, checked_names};
use crate::world::check_same;

/// An additional model of a run, with its own parameters and optimizer: a student that learns from the first model's predictions, say.
/// [`Trainer::add_model`] makes it. No gradient flows from one model into another.
///
/// It is saved in the checkpoints of the run, under its name, restored and rolled back with them, and
/// [`Trainer::finish`] writes its weights into `model-<name>.safetensors`. Everything else in a run belongs only to the first
/// model: the length, reading data, metrics and progress ([`Trainer::log`] adds figures of others), validation, hooks, early
/// stopping and the choice of the best checkpoint.
pub struct AddedModel<'a, I, O, T>(Rc<State<'a, I, O, T>>);

struct State<'a, I, O, T> {
    name: String,
    session: &'a Session,
    engine: RefCell<Engine<I, O, T>>,
    mapping: WeightsMapping,
    derived: DerivedMetrics,
    update: OwnUpdate,
    steps: Cell<u64>,
    /// The step that has failed, after which there is no other.
    failed_step: Cell<Option<u64>>,
    /// That of the first model's step under way, or of its last one.
    learning_rate: Rc<Cell<f64>>,
    nonfinite: Rc<NonFiniteSteps>,
    loop_seed: Rc<LoopSeed>,
}

impl<I, O, T> State<'_, I, O, T> {
    /// The learning rate of the next step: by its own function, or that of the first model.
    fn learning_rate(&self) -> f64 {
        let own = self.update.learning_rate_factor(self.steps.get());
        own.map_or(self.learning_rate.get(), |factor| self.session.plan.learning_rate * factor)
    }
}

/// What the run does with an additional model, whatever its types are.
pub(super) trait Added {
    fn name(&self) -> &str;
    fn steps(&self) -> u64;
    fn snapshot(&self) -> brigade_core::Result<Snapshot>;
    /// Restores the state in a checkpoint of the run.
    fn restore(&self, progress: &RunProgress, reader: &mut ModelReader<'_>) -> brigade_core::Result<()>;
    fn write_weights(&self, session: &Session, path: &Path) -> anyhow::Result<()>;
}

impl<I, O, T> Added for State<'_, I, O, T>
where
    I: Activation + Clone,
    O: Activation,
    T: Clone + 'static,
{
    fn name(&self) -> &str {
        &self.name
    }

    fn steps(&self) -> u64 {
        self.steps.get()
    }

    fn snapshot(&self) -> brigade_core::Result<Snapshot> {
        self.engine.borrow().snapshot()
    }

    fn restore(&self, progress: &RunProgress, reader: &mut ModelReader<'_>) -> brigade_core::Result<()> {
        let Some(steps) = progress.added.get(&self.name).copied() else {
            return Err(brigade_core::Error::State(format!("the checkpoint has no model `{}`", self.name)));
        };
        self.engine.borrow_mut().restore(steps, reader.of(&self.name))?;
        self.steps.set(steps);
        Ok(())
    }

    fn write_weights(&self, session: &Session, path: &Path) -> anyhow::Result<()> {
        let engine = self.engine.borrow();
        session.write_weights(&engine, &self.mapping, path, |_| true, WeightsFormat::ONE_FILE).map(drop)
    }
}

impl<I, O, T> Trainer<'_, I, O, T> {
    /// Before each step: after it no model can be added.
    ///
    /// # Errors
    /// If the checkpoint has a model that has not been added, which the next checkpoint would lose.
    pub(super) fn begin(&mut self) -> anyhow::Result<()> {
        if std::mem::replace(&mut self.has_begun, true) {
            return Ok(());
        }
        let is_there = |name: &String| self.added.iter().any(|added| added.name() == name);
        match self.progress.added.keys().find(|name| !is_there(name)) {
            None => Ok(()),
            Some(name) => bail!(
                "the checkpoint has the additional model `{name}`, which this program has not added (`Trainer::add_model`) before its first step; add it, or start a \
                run in another folder"
            ),
        }
    }
}

impl<'a, I: Activation + Clone, O: Activation, T: Clone + 'static> Trainer<'a, I, O, T> {
    /// Adds another model to the run, before the first step. Its name is used in checkpoints and in the name of its weights
    /// file, and its random numbers follow from it: two students of one form begin with different weights. It has its own optimizer and makes its own [steps](AddedModel::step), on batches that the loop gives it; the
    /// learning rate is that of the first model's step, whose batches were read last or which was made last, unless `training` has its own. All ranks call it.
    ///
    /// The metrics, the mapping of the weights, the optimizer, its learning rate as a function, the groups, gradient hooks and strategy of `training` are used, and the micro-batch that
    /// blocks are [measured on](Training::measured_on); groups in the settings belong to the first model. Data, hooks and files are the first model's: given here, they are an error.
    ///
    /// ```no_run
    /// # use brigade::{Model, Session, Training, samples};
    /// # use burn::prelude::*;
    /// # type Net = Model<Tensor<2>, Tensor<2>, Tensor<2>>;
    /// # fn run(session: &Session, teacher: Net, student: Net) -> anyhow::Result<()> {
    /// # let data = samples(1, |_, device| (Tensor::zeros([1, 1], device), Tensor::<2>::zeros([1, 1], device)));
    /// let mut trainer = session.prepare(teacher, Training::on(data))?;
    /// let mut student = trainer.add_model("student", student, Training::without_data())?;
    /// while let Some(mut batches) = trainer.next_batches()? {
    ///     trainer.step(batches.clone())?;
    ///     for batch in &mut batches {
    ///         batch.target = trainer.predict(batch.input.clone())?;
    ///     }
    ///     if let Some(found) = student.step(batches)? {
    ///         trainer.log("student_loss", found.loss);
    ///     }
    ///     if trainer.save_is_due() {
    ///         trainer.save()?;
    ///     }
    /// }
    /// trainer.finish()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the run has begun, the name is taken or cannot be part of a file's name, `training` has what only the first model has, the model cannot be trained as the settings
    /// say, the checkpoint that the run resumes from does not have it, or a rank failed.
    pub fn add_model<I2, O2, T2>(
        &mut self,
        name: &str,
        mut model: Model<I2, O2, T2>,
        mut training: Training<I2, O2, T2>,
    ) -> anyhow::Result<AddedModel<'a, I2, O2, T2>>
    where
        I2: Activation + Clone,
        O2: Activation,
        T2: Clone + 'static,
    {
        let session = self.session;
        if self.has_begun {
            bail!("the model `{name}` is added too late: add models before the first step");
        }
        let strategy = &session.settings.strategy;
        if self.engine.steps_of_round().is_some() {
            let allowed = format!(
                "the program trains an additional model, `{name}`, and workers that do not wait for each other train one; set 0"
            );
            return Err(
                SettingError::new("strategy.staleness (--staleness)", strategy.staleness, allowed).into()
            );
        }
        if self.elastic.is_some() {
            let allowed = format!(
                "the program trains an additional model, `{name}`, and workers that come and go train one; leave it out"
            );
            return Err(SettingError::new(
                "strategy.coordinator (--coordinator)",
                &strategy.coordinator,
                allowed,
            )
            .into());
        }
        let (every, setting) = session.settings.steps_together();
        if every > 1 && session.settings.train.on_nonfinite == OnNonFinite::Rollback {
            // The first model goes back in the middle of a pass of the loop; the steps of both would never end together again.
            let allowed = format!(
                "the program trains an additional model, `{name}`, and {setting} is {every}; set skip or stop, or {setting} = 1"
            );
            return Err(SettingError::new("train.on_nonfinite", "rollback", allowed).into());
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty()
            || !name.chars().all(is_plain)
            || self.added.iter().any(|there| there.name() == name)
        {
            bail!(
                "an additional model cannot be named `{name}`: it needs a name of its own, of letters, digits, `-` \
                and `_`"
            );
        }
        if let Some(part) = training.part_of_a_run() {
            bail!(
                "the model `{name}` was given {part}, which only the first model of a run has: give it to `Session::prepare`, or leave it out"
            );
        }
        model.chain().check_device(&session.device())?;
        let plan = training.update.plan_of_further(&session.plan, &session.settings)?;
        model.freeze(&plan.engine.groups)?;
        let samples = |size| training.first_samples(size, &session.device());
        session.check_running_state(&Sampled { model: &model, samples: &samples })?;
        let called = format!("model `{name}`");
        session.check_same_model(&called, &plan, model.chain(), &training.update, self.total_steps)?;
        let split = plan.split(&model.chain().costs())?;
        let model = training.add_metrics_to(model);
        let metrics: Vec<String> =
            model.metric_names().iter().chain(training.derived.names()).cloned().collect();
        checked_names(&metrics)?;
        check_same(session.group(), "metrics", &metrics.join("\n"))?;
        let settings = EngineSettings { split, ..plan.engine };
        session.heartbeat.send("making an additional model");
        let mut engine = Engine::new(
            model,
            keyed_seed(session.seed(), name),
            &plan.optimizer,
            session.groups(),
            settings,
        )?;
        training.update.add_hooks_to(&mut engine);
        let path = added_weights_file(&session.out.join(WEIGHTS_FILE), name);
        let names = file_names(&path, &engine.shapes(), &training.mapping, |_| true)?;
        self.description.further.insert(name.to_owned(), names);
        let state = Rc::new(State {
            name: name.to_owned(),
            session,
            engine: RefCell::new(engine),
            mapping: training.mapping,
            derived: training.derived,
            update: training.update,
            steps: Cell::new(0),
            failed_step: Cell::new(None),
            learning_rate: self.step_learning_rate.clone(),
            nonfinite: self.nonfinite.clone(),
            loop_seed: self.loop_seed.clone(),
        });
        if let Some(step) = self.resumed_step {
            let restored = restore_step(self.saver.storage(), session.group(), step, |progress, reader| {
                state.restore(progress, reader)
            })?;
            if let Err(why) = restored {
                let text = format!("cannot resume the model `{name}` from step {step}: {why}");
                return Err(CheckpointUsageError::Incompatible(text).into());
            }
        }
        self.added.push(state.clone());
        self.loop_seed.after_save(self.progress.step);
        Ok(AddedModel(state))
    }
}

impl<I: Activation + Clone, O: Activation, T: Clone + 'static> AddedModel<'_, I, O, T> {
    /// Trains one step on this rank's micro-batches, like [`Trainer::step`]. A non-finite step is skipped, unless `train.on_nonfinite` is
    /// `stop`: it is noted, counted in the step's record (`student_skipped_steps` if the model is named `student`), and counts for
    /// `train.nonfinite_limit`, like one of the first model. Where workers make updates of their own, each that is left out counts.
    ///
    /// # Errors
    /// As [`Engine::step`], if there were more such steps than `train.nonfinite_limit` allows, or an earlier step failed.
    pub fn step(&mut self, batches: Vec<Batch<I, T>>) -> anyhow::Result<Option<StepReport>> {
        let State { engine, steps, failed_step, nonfinite, session, name, .. } = &*self.0;
        if let Some(step) = failed_step.get() {
            bail!("step {step} of `{name}` failed, and nothing can follow it in this process; {RESUME}");
        }
        session.heartbeat.send(&format!("training {name}"));
        let given = GivenBatches::of(&batches, false)?;
        session.check_batches(&format!("step {} of `{name}`", steps.get() + 1), given)?;
        let (mut engine, learning_rate) = (engine.borrow_mut(), self.0.learning_rate());
        let batches = if engine.is_server() { Vec::new() } else { batches };
        let report = match (engine.synchronizes(), engine.steps_alone()) {
            (true, _) => engine.step(batches, learning_rate).map(Some),
            (false, true) => engine.inner_step(batches, learning_rate).map(|()| None),
            (false, false) => engine.accumulate(batches).map(|()| None),
        };
        let step = steps.get() + 1;
        let mut report = report.inspect_err(|_| failed_step.set(Some(step)))?;
        steps.set(step);
        self.0.loop_seed.after_call();
        if let Some(report) = &mut report {
            self.0.derived.add_to(&mut report.metrics);
            nonfinite.add_of_model(name, report)?;
        }
        Ok(report)
    }

    /// Loss and metrics over data, without training.
    ///
    /// # Errors
    /// If data cannot be read, or a rank failed.
    pub fn evaluate_on(
        &mut self,
        data: &impl Dataset<Input = I, Target = T>,
    ) -> anyhow::Result<ValidationReport> {
        let State { engine, steps, session, .. } = &*self.0;
        let mut found = session.validate(&mut engine.borrow_mut(), data, steps.get())?;
        self.0.derived.add_to(&mut found.metrics);
        self.0.loop_seed.after_call();
        Ok(found)
    }

    /// The model's output for an input: see [`Trainer::predict`].
    ///
    /// # Errors
    /// If a block refuses the input, or a rank failed.
    pub fn predict(&mut self, input: I) -> anyhow::Result<O> {
        let output = self.0.engine.borrow_mut().predict(input)?;
        self.0.loop_seed.after_call();
        Ok(output)
    }

    /// The weights of the last step by name: see [`Trainer::weights`].
    ///
    /// # Errors
    /// If a rank failed.
    pub fn weights(&self) -> anyhow::Result<Vec<NamedTensor>> {
        Ok(self.0.engine.borrow().tensors(0)?)
    }

    /// Writes the weights into a file, on any mesh. All ranks call it; rank 0 writes.
    ///
    /// # Errors
    /// If the file cannot be written, or a rank failed.
    pub fn write_weights(&self, path: &Path) -> anyhow::Result<()> {
        Added::write_weights(&*self.0, self.0.session, path)
    }
}
