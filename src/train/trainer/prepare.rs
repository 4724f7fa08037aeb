//! From a model to a run that is ready for its first step.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use brigade_core::{Activation, Engine, Model};
use brigade_sorted::SortedMap;

use super::Trainer;
use super::loop_seed::LoopSeed;
use super::step::nonfinite::NonFiniteSteps;
use crate::checkpoint::RunProgress;
use crate::error::UsageError;
use crate::memory::{Measurable, Sampled};
use crate::run::Session;
use crate::train::profile::Profile;
use crate::train::same_data::note_on_samples;
use crate::train::servers::check_servers_hosts;
use crate::train::start::file_names;
use crate::train::watch::{Best, BestCheckpoint, EarlyStopping, check_load_best, watches};
use crate::training_setup::{Training, WeightsFile, checked_names};
use crate::world::check_same;

impl Session {
    /// Makes a model ready to be trained by a loop of your own: see [`Trainer`]. The run starts from scratch or from a
    /// checkpoint, as [`train`](Self::train) does. All ranks call it.
    ///
    /// A session has one run. Further models are part of it: see [`Trainer::add_model`].
    ///
    /// # Errors
    /// If the model cannot be trained as the settings say, the run's folder or checkpoint cannot be used, or a rank failed. In a
    /// [dry run](Self::stop_if_dry_run).
    pub fn prepare<I, O, T>(
        &self,
        model: Model<I, O, T>,
        training: Training<I, O, T>,
    ) -> anyhow::Result<Trainer<'_, I, O, T>>
    where
        I: Activation + Clone,
        O: Activation,
        T: Clone + 'static,
    {
        self.prepare_for(model, training, true)
    }

    /// For a loop of one's own, or for that of [`train`](Self::train).
    pub(in crate::train) fn prepare_for<I, O, T>(
        &self,
        mut model: Model<I, O, T>,
        mut training: Training<I, O, T>,
        is_own_loop: bool,
    ) -> anyhow::Result<Trainer<'_, I, O, T>>
    where
        I: Activation + Clone,
        O: Activation,
        T: Clone + 'static,
    {
        check_servers_hosts(self)?;
        model.chain().check_device(&self.device())?;
        let mut plan = training.plan(&self.plan, &self.settings)?;
        model.freeze(&plan.engine.groups)?;
        // Of no samples there is nothing to say.
        training.validation = training.validation.filter(|data| data.samples() > 0);
        let first_samples = |size| training.first_samples(size, &self.device());
        self.mark_preparing();
        let sampled = Sampled { model: &model, samples: &first_samples };
        self.check_running_state(&sampled)?;
        let update = self.update_lines(&plan, &training)?;
        self.stop_if_dry_run_of(&plan, &sampled, &update, is_own_loop)?;
        if self.has_run.replace(true) {
            return Err(UsageError(anyhow::anyhow!(
                "this session already has a run; additional models join it with `Trainer::add_model`"
            ))
            .into());
        }
        let (samples, validated) = training.sizes();
        let shares = training.shares();
        let s = if samples == 1 { "" } else { "s" };
        let mut sizes = format!("{samples} sample{s} to train on, {validated} to validate on");
        if let Some(shares) = shares.as_ref().filter(|shares| shares.len() > 1) {
            let shares: Vec<String> =
                shares.iter().map(|share| format!("{} x {}", share.len, share.weight)).collect();
            sizes += &format!(", from sources by weights: {}", shares.join(", "));
        }
        check_same(self.group(), "dataset", &sizes)?;
        let mut facts = self.facts.clone();
        facts.insert("dataset".into(), sizes);
        let sampler = shares.map(|shares| self.sampler(&shares)).transpose()?;
        let total_steps = self.settings.total_steps(samples)?;
        self.check_same_model("model", &plan, model.chain(), &training.update, total_steps)?;
        let profiled = self.settings.profile.range_within(total_steps)?;
        let schedule = plan.lr_scheduler(total_steps)?;
        let (seconds, how) = (self.block_seconds(&plan, &sampled)?, self.how_blocks_are_measured(&plan));
        let costs = match seconds.is_empty() {
            true => model.chain().costs(),
            false => model.chain().parameters_by_block().iter().map(|(name, _)| seconds[name]).collect(),
        };
        plan.engine.split = plan.split(&costs)?;
        let on_cpu = |size| training.first_samples(size, &brigade_cpu::device());
        self.check_memory(&plan, &Sampled { model: &model, samples: &on_cpu });
        let model = training.add_metrics_to(model);
        let metrics: Vec<String> =
            model.metric_names().iter().chain(training.derived.names()).cloned().collect();
        checked_names(&metrics)?;
        check_same(self.group(), "metrics", &metrics.join("\n"))?;
        check_load_best(&self.settings, !training.hooks.is_empty())?;
        let (early_stopping, best_checkpoint) = watches(&self.settings, &metrics, validated > 0)?;
        let mut summary = self.run_summary(
            (&plan, &seconds),
            model.chain(),
            total_steps,
            sampler.as_ref().map(|s| (samples, s)),
        );
        summary.extend(update);
        summary.extend(early_stopping.as_ref().map(EarlyStopping::describe));
        summary.extend(best_checkpoint.as_ref().map(BestCheckpoint::describe));
        summary.extend(note_on_samples(self.group(), &training, &brigade_cpu::device())?);
        if validated == 0 {
            summary.extend(self.settings.train.notes_without_validation());
        }
        if !is_own_loop {
            summary.extend(self.settings.train.notes_on_one_validation(self.settings.checkpoint.keep_best));
        }
        if self.settings.checkpoint.load_best_at_end && !self.settings.checkpoint.keep_best {
            summary.push(
                "note: checkpoint.load_best_at_end without checkpoint.keep_best ends with the best weights only if a hook answers `Control::SaveBest`"
                    .to_owned(),
            );
        }
        self.heartbeat.send("making the model");
        let mut engine = Engine::new(model, self.seed(), &plan.optimizer, self.groups(), plan.engine)?;
        brigade_cpu::trim_heap();
        training.update.add_hooks_to(&mut engine);
        let mut saver = self.saver()?;
        summary.extend(self.check_storage(&saver)?);
        let WeightsFile { name, holds } = training.weights;
        let names = file_names(&self.out.join(name), &engine.shapes(), &training.mapping, holds)?;
        let description = self.run_description(names, (seconds, how))?;
        let restored = self.restore(&mut engine, &mut saver, &facts, total_steps)?;
        let reporter = self.begin(&saver, &training.reported(), restored.as_ref(), total_steps, &summary)?;
        let resumes = restored.is_some();
        let progress = restored.map_or_else(RunProgress::default, |restored| restored.progress);
        let profile = Profile::new(profiled, progress.step);
        let nonfinite = NonFiniteSteps::new(self.settings.train.nonfinite_limit, progress.nonfinite);
        let (nonfinite, update_position) = (Rc::new(nonfinite), progress.position);
        let loop_seed = Rc::new(LoopSeed::new(self, nonfinite.clone()));
        let mut trainer = Trainer {
            session: self,
            engine,
            loop_seed,
            training,
            total_steps,
            schedule,
            saver,
            reporter,
            saved_step: resumes.then_some(progress.step),
            resumed_step: resumes.then_some(progress.step),
            has_noted_unsaved: false,
            has_noted_second_halves: false,
            progress,
            description,
            facts,
            early_stopping,
            best_checkpoint,
            added: Vec::new(),
            step_learning_rate: Rc::new(Cell::new(0.0)),
            nonfinite,
            sampler,
            reader: None,
            has_begun: false,
            failed_step: None,
            has_compared: false,
            is_read: false,
            update_began: None,
            data_wait: Duration::ZERO,
            update_position,
            record: None,
            logged: SortedMap::new(),
            reported: None,
            is_unvalidated: false,
            best_is_unsaved: false,
            best_saved: Best::default(),
            best_being_saved: Best::default(),
            completed: Vec::new(),
            is_preempted: false,
            profile,
            elastic: None,
            served: None,
            works_for: None,
            device_peak: 0,
        };
        trainer.step_learning_rate.set(trainer.learning_rate());
        // What ranks have drawn for their own blocks does not change what the loop draws, or a model that joins.
        trainer.loop_seed.after_save(trainer.progress.step);
        trainer.best_saved = trainer.best();
        if resumes && trainer.is_over() {
            trainer.note_nothing_left();
        } else if trainer.profile.is_none() && !self.settings.profile.steps.is_empty() {
            let (steps, done) = (&self.settings.profile.steps, trainer.progress.step);
            trainer.note(&format!(
                "no timeline of steps {steps} (profile.steps) is written: the run is at step {done}"
            ));
        }
        if !trainer.is_over() {
            trainer.join_workers()?;
            trainer.set_up_servers()?;
        }
        self.mark_started();
        Ok(trainer)
    }

    /// Refuses running state that ranks cannot merge before anything of an earlier run is replaced. All ranks look at the same samples.
    pub(super) fn check_running_state(&self, model: &dyn Measurable) -> anyhow::Result<()> {
        if !model.blocks().has_running_state() {
            return Ok(());
        }
        self.heartbeat.send("looking at running state");
        model.check_running_state(self.settings.train.micro_batch_size, self.plan.engine.precision.compute)
    }
}

impl<I: Activation + Clone, O: Activation, T: Clone + 'static> Trainer<'_, I, O, T> {
    /// Says why a run that was resumed does not train on.
    fn note_nothing_left(&mut self) {
        let step = self.progress.step;
        let text = match self.stopped() {
            Some(why) => format!(
                "the run ended after step {step} of {}, because {why}; nothing is left to do",
                self.total_steps
            ),
            None if step == 1 => "its only step is done; raise --steps to continue".to_owned(),
            None => format!("all {step} steps are done; raise --steps to continue"),
        };
        self.note(&text);
    }
}
