//! Descriptions of a run: the lines before it starts, and the text of a dry run.

mod interfaces;
mod parallelism;

use std::fmt::Write as _;
use std::io::Write as _;

use brigade_comm::Locality;
use brigade_core::plan::Footprint;
use brigade_core::{Activation, Blocks, Model, WORKERS};
use brigade_data::Sampler;
use brigade_report::{HumanCount, counted};

use super::balance::BlockSeconds;
use super::same_bits::same_bits_note;
use crate::error::DryRun;
use crate::memory::{Measurable, MemoryPlan, Sampled};
use crate::run::{CountedModel, Session};
use crate::settings::{Backend, Balance, CollectivesBackend, RunPlan};
use crate::training_setup::Training;
use interfaces::interfaces_line;
use parallelism::{
    buckets_line, compresses, compression_line, encryption_note, levels_note, mesh_text, outer_dtype_note,
    parallelism_lines, placement_note, replicas_note, sends_tied_once,
};

impl Session {
    /// In a dry run, prints the resolved configuration, the mesh, the model's blocks, and the memory and traffic of each rank, and returns an error that ends the
    /// body; otherwise it does nothing. [`Session::train`] and [`Session::prepare`] call it first; call it yourself before work that a dry run should
    /// skip.
    ///
    /// `training` is what the model will be trained with, as far as it is known: the optimizer, groups and strategy that it brings count, and the micro-batch that blocks
    /// are [measured on](Training::measured_on). In a dry run, parameters that groups freeze are frozen in the model. Further models count that were [named](Self::count_model) before.
    ///
    /// # Errors
    /// In a dry run.
    pub fn stop_if_dry_run<I: Activation, O: Activation, T: Clone + 'static>(
        &self,
        model: &mut Model<I, O, T>,
        training: &Training<I, O, T>,
    ) -> anyhow::Result<()> {
        if !self.is_dry_run {
            return Ok(());
        }
        let plan = training.plan(&self.plan, &self.settings)?;
        model.freeze(&plan.engine.groups)?;
        let samples = |size| training.first_samples(size, &self.device());
        let update = self.update_lines(&plan, training)?;
        self.stop_if_dry_run_of(&plan, &Sampled { model, samples: &samples }, &update, false)
    }

    /// The same for a plan with what the program brings of its own, and lines about that.
    pub(super) fn stop_if_dry_run_of(
        &self,
        plan: &RunPlan,
        model: &dyn Measurable,
        update: &[String],
        is_own_loop: bool,
    ) -> anyhow::Result<()> {
        if !self.is_dry_run {
            return Ok(());
        }
        model.blocks().check_groups(&plan.engine.groups)?;
        let memory = self.memory_plan(plan, model);
        let mut text = self.description(plan, update, model.blocks(), memory);
        if is_own_loop && self.counted.borrow().is_empty() {
            text.push_str(
                "# models that the program adds to this one (`Trainer::add_model`) count if it names them before (`Session::count_model`)\n",
            );
        }
        print_stdout(&text);
        Err(DryRun.into())
    }

    /// Counts a model that the program [adds](crate::Trainer::add_model) later in the plan of memory: in a dry run, which ends where the first model is prepared, and in what
    /// a run compares with its machine when it begins. Call it before the first model is prepared, with the `training` that the model is added with, and a micro-batch that its blocks are
    /// [measured on](Training::measured_on). Parameters that groups of `training` freeze are frozen in the model, as they are when it is added.
    ///
    /// ```no_run
    /// # use brigade::{Batch, Model, Session, Training};
    /// # use burn::prelude::*;
    /// # type Net = Model<Tensor<2>, Tensor<2>, Tensor<2>>;
    /// # fn run(session: &Session, teacher: Net, mut student: Net, data: Training<Tensor<2>, Tensor<2>, Tensor<2>>) -> anyhow::Result<()> {
    /// let own = Training::without_data().measured_on(|samples, device| {
    ///     let zeros = Tensor::<2>::zeros([samples, 8], device);
    ///     Batch::new(zeros.clone(), zeros, samples)
    /// });
    /// session.count_model("student", &mut student, &own)?;
    /// let mut trainer = session.prepare(teacher, data)?;
    /// let mut student = trainer.add_model("student", student, own)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// In a dry run, if the model cannot be trained as the settings say; a run itself finds that when the model is added.
    pub fn count_model<I: Activation, O: Activation, T: Clone + 'static>(
        &self,
        name: &str,
        model: &mut Model<I, O, T>,
        training: &Training<I, O, T>,
    ) -> anyhow::Result<()> {
        if self.rank() > 0 {
            return Ok(());
        }
        let samples = |size| training.first_samples(size, &brigade_cpu::device());
        let planned = training.update.plan_of_further(&self.plan, &self.settings);
        let planned = planned.map_err(anyhow::Error::from).and_then(|plan| {
            model.freeze(&plan.engine.groups)?;
            self.memory_plan(&plan, &Sampled { model, samples: &samples })
        });
        match planned {
            Ok(MemoryPlan { footprint, unmeasured, .. }) => {
                let name = name.to_owned();
                self.counted.borrow_mut().push(CountedModel { name, footprint, unmeasured });
            }
            Err(error) if self.is_dry_run => return Err(error),
            Err(_) => {}
        }
        Ok(())
    }

    /// Lines on what is about to be trained, and how.
    pub(super) fn summary_lines(
        &self,
        (plan, seconds): (&RunPlan, &BlockSeconds),
        chain: &Blocks,
        total_steps: u64,
        data: Option<(usize, &Sampler)>,
    ) -> Vec<String> {
        let mut lines = Vec::new();
        let (settings, workers) = (&self.settings.train, plan.workers());
        lines.push(format!("{}; mesh {}", self.world, mesh_text(plan)));
        let length = match data {
            Some((samples, sampler)) => {
                let epochs = sampler.epochs_after(total_steps);
                format!(
                    "{}, {epochs:.2} epochs in {}",
                    counted(samples, "sample"),
                    counted(total_steps as usize, "step")
                )
            }
            None => counted(total_steps as usize, "step"),
        };
        let blocks = counted(chain.parameters_by_block().len(), "block");
        let parameters = counted(chain.parameters(), "parameter");
        let trained = match trained_parameters(plan, chain) {
            Some(trained) if trained < chain.parameters() => {
                format!(" ({} of them trained)", HumanCount(trained as u64))
            }
            _ => String::new(),
        };
        lines.push(format!("{parameters}{trained} in {blocks}; {length}"));
        lines.push(format!(
            "global batch {} = {}dp {} x {} of {}; learning rate {} ({})",
            settings.global_batch_size,
            if self.settings.strategy.has_workers() {
                format!("workers {workers} x ")
            } else {
                String::new()
            },
            plan.data_ranks() / plan.mesh.size(WORKERS),
            counted(plan.gradient_accumulation_steps, "micro-batch"),
            settings.micro_batch_size,
            plan.learning_rate,
            plan.learning_rate_reason
        ));
        if let Some((samples, _)) = data
            && samples < settings.global_batch_size
        {
            let all = counted(samples, "sample");
            let are = if samples == 1 { "is" } else { "are" };
            lines.push(format!(
                "note: {all} {are} less than the global batch of {}; each step takes samples more than once",
                settings.global_batch_size
            ));
        }
        lines.extend(self.settings.strategy.describe(workers));
        lines.extend(self.settings.strategy.describe_servers(plan.data_ranks()));
        lines.extend(self.settings.notes_on_unused(plan));
        if settings.sync_every > 1 {
            lines.push(format!(
                "an update after every {} steps, whose gradients are added up",
                settings.sync_every
            ));
        }
        if let Ok(schedule) = plan.lr_scheduler(total_steps)
            && schedule.warmup_steps > total_steps
        {
            lines.push(format!(
                "note: the warm-up of {} is longer than the run of {}; the peak learning rate is never reached",
                counted(schedule.warmup_steps as usize, "step"),
                counted(total_steps as usize, "step")
            ));
        }
        lines.extend(compression_line(plan, chain));
        lines.extend(buckets_line(plan));
        let group = self.group();
        let places: Vec<Locality> = (0..group.size()).map(|rank| group.locality(rank)).collect();
        lines.extend(interfaces_line(&places));
        let hosts: Vec<usize> = places.iter().map(|place| place.host).collect();
        let is_host = self.settings.collectives() == CollectivesBackend::Host;
        let neighbours = group.neighbours().filter(|_| is_host);
        lines.extend(encryption_note(&self.settings, &hosts));
        lines.extend(placement_note(&self.settings, &hosts, neighbours));
        lines.extend(levels_note(plan, &hosts, neighbours));
        let workers = plan.mesh.size(WORKERS);
        let outer_bytes = self.settings.outer_steps(workers).map_or(size_of::<f32>(), |outer| outer.bytes);
        lines.extend(outer_dtype_note(workers, outer_bytes, &hosts, neighbours));
        lines.extend(replicas_note(plan, &hosts));
        let (compresses, tied) = (compresses(plan, chain), sends_tied_once(plan, chain));
        lines.extend(same_bits_note(&self.settings, plan, compresses, tied));
        lines.extend(parallelism_lines(plan, chain, seconds));
        lines
    }

    /// Lines on how updates are made; how long the run is need not be known.
    pub(super) fn update_lines<I: Activation, O: Activation, T: 'static>(
        &self,
        plan: &RunPlan,
        training: &Training<I, O, T>,
    ) -> anyhow::Result<Vec<String>> {
        let total_steps = self.settings.total_steps(training.sizes().0).unwrap_or(u64::MAX);
        Ok(training.update.lines(&self.settings, &plan.lr_scheduler(total_steps)?))
    }

    /// The resolved configuration, the mesh, how updates are made, and the parameters of each block.
    fn description(
        &self,
        plan: &RunPlan,
        update: &[String],
        chain: &Blocks,
        memory: anyhow::Result<MemoryPlan>,
    ) -> String {
        let mut text = format!("{}\n", self.config.trim_end());
        let _ = writeln!(text, "\n# world: {}", self.world);
        let _ = writeln!(text, "# mesh: {} = {}", mesh_text(plan), counted(plan.mesh.world(), "rank"));
        let _ = writeln!(
            text,
            "# gradient accumulation: {} per rank and step",
            counted(plan.gradient_accumulation_steps, "micro-batch")
        );
        if plan.engine.strategy.period() > 1 {
            let _ = writeln!(text, "# update: every {} steps", plan.engine.strategy.period());
        }
        let _ = writeln!(text, "# learning rate: {} ({})", plan.learning_rate, plan.learning_rate_reason);
        for line in update {
            let _ = writeln!(text, "# {line}");
        }
        let strategy = &self.settings.strategy;
        let together = strategy.describe(plan.workers());
        let servers = strategy.describe_servers(plan.data_ranks());
        for line in together.into_iter().chain(servers).chain(self.settings.notes_on_unused(plan)) {
            let _ = writeln!(text, "# {line}");
        }
        for line in compression_line(plan, chain).into_iter().chain(same_bits_note(
            &self.settings,
            plan,
            compresses(plan, chain),
            sends_tied_once(plan, chain),
        )) {
            let _ = writeln!(text, "# {line}");
        }
        for line in parallelism_lines(plan, chain, &BlockSeconds::new()) {
            let _ = writeln!(text, "# {line}");
        }
        if self.settings.pipeline.balance == Balance::Measured {
            text.push_str(
                "# the run measures its blocks before the first step, and may split them differently\n",
            );
        }
        let per = match plan.engine.strategy.period() {
            _ if self.settings.strategy.has_workers() => {
                format!("outer step, every {}", counted(self.settings.strategy.inner_steps as usize, "step"))
            }
            1 => "step".to_owned(),
            _ => "update".to_owned(),
        };
        for CountedModel { name, footprint, unmeasured } in &*self.counted.borrow() {
            let _ =
                writeln!(text, "# the model `{name}`, peak bytes of each rank, and what it sends per {per}:");
            text.push_str(&footprint_lines(footprint, unmeasured.as_deref()));
        }
        match memory {
            Ok(memory) => {
                let _ = writeln!(text, "# peak bytes of each rank, and what it sends per {per}:");
                text.push_str(&footprint_lines(&memory.footprint, memory.unmeasured.as_deref()));
                match memory.assessment {
                    Some(assessment) => {
                        let warning = if assessment.fits { "" } else { "warning: " };
                        let _ = writeln!(text, "# {warning}{}", assessment.text);
                    }
                    None if self.settings.compute.backend != Backend::Cpu => text.push_str(
                        "# whether that fits is not known here: the run compares it with the device's memory when it begins\n",
                    ),
                    None => {}
                }
            }
            Err(error) => {
                let _ = writeln!(text, "# bytes of each rank: unknown, because {error}");
            }
        }
        for (name, parameters) in chain.parameters_by_block() {
            let _ = writeln!(text, "# block {name:<16} {parameters:>12} parameters");
        }
        let _ = writeln!(text, "# all   {:<16} {:>12} parameters", "", chain.parameters());
        text
    }
}

/// The parameters that training changes.
fn trained_parameters(plan: &RunPlan, chain: &Blocks) -> Option<usize> {
    let units = chain.units(&plan.engine.groups).ok()?;
    Some(units.iter().filter(|unit| unit.trainable).map(|unit| unit.elements).sum())
}

fn footprint_lines(footprint: &Footprint, unmeasured: Option<&str>) -> String {
    let mut text = String::new();
    for line in footprint.render().lines() {
        let _ = writeln!(text, "#   {line}");
    }
    if let Some(why) = unmeasured {
        let _ = writeln!(text, "# saved activations are unknown: {why}");
    }
    text
}

/// Prints to standard output; the run continues even if nobody reads it any more (`| head`).
pub(crate) fn print_stdout(text: &str) {
    drop(std::io::stdout().write_all(text.as_bytes()));
}
