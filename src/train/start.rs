//! How training begins: from nothing, or from a checkpoint.

use std::collections::BTreeMap;

use anyhow::Context;
use brigade_checkpoint::open_storage;
use brigade_core::{Activation, Chain, Engine};
use brigade_data::Sampler;
use brigade_files::write_whole;
use brigade_models::Names;
use brigade_report::{Compute, ConsoleMode, Reporter, ReporterOptions};

use crate::checkpoint::{Resumption, RunDescription, Saver, refuse_checkpoints, restore};
use crate::dataset::{Dataset, Training};
use crate::device;
use crate::error::Unfit;
use crate::folder::{self, FLIGHT_FOLDER};
use crate::run::{Beginning, Session};
use crate::settings::{CheckpointSettings, OnFailedSave, settled};

use super::devices::Devices;

impl Session {
    pub(super) fn sampler<D: Dataset>(&self, training: &Training<D>) -> anyhow::Result<Sampler> {
        let train = &self.settings.train;
        Ok(Sampler::new(training.train.len(), train.seed, train.global_batch_size, train.micro_batch_size)?)
    }

    /// The lines that tell what is about to be trained.
    pub(super) fn introduction<I: Activation, O: Activation, D: Dataset>(
        &self,
        chain: &Chain<I, O>,
        training: &Training<D>,
        sampler: &Sampler,
    ) -> Vec<String> {
        match self.rank() {
            0 => self.introduce(chain, &training.train, sampler),
            _ => Vec::new(),
        }
    }

    pub(super) fn saver(&self) -> anyhow::Result<Saver> {
        let storage = open_storage(&self.settings.checkpoint.place(&self.out))?;
        Saver::new(storage, self.group().clone(), self.settings.checkpoint.clone())
    }

    /// What is in the way of checkpoints; to be told where the run may go on without them. All ranks call it.
    ///
    /// # Errors
    /// If checkpoints must be saved, but could not.
    pub(super) fn obstacle(&self, saver: &Saver) -> anyhow::Result<Option<String>> {
        self.heartbeat.send("looking for the place of checkpoints");
        let CheckpointSettings { every, on_failure, .. } = self.settings.checkpoint;
        match saver.obstacle()? {
            Some(why) if every > 0 && on_failure == OnFailedSave::Stop => Err(Unfit(why).into()),
            found => Ok(found),
        }
    }

    /// Restores the run's newest checkpoint, if it is to go on from one. All ranks call it.
    pub(super) fn restored<I, O, T>(
        &mut self,
        engine: &mut Engine<I, O, T>,
        saver: &mut Saver,
    ) -> anyhow::Result<Option<Resumption>>
    where
        I: Activation + Clone,
        O: Activation,
        T: Clone,
    {
        self.heartbeat.send("looking for a checkpoint");
        let resumption = match self.beginning {
            Beginning::Fresh => None,
            Beginning::Resume => {
                let resumed = restore(engine, saver.storage(), self.group(), self.identity(), |_| true)?;
                let missing = || Unfit(format!("{} holds no checkpoint", saver.storage().location()));
                Some(resumed.ok_or_else(missing)?)
            }
            Beginning::ResumeIfThere => {
                restore(engine, saver.storage(), self.group(), self.identity(), |_| true)?
            }
        };
        let steps = self.settings.train.steps;
        if let Some(Resumption { point, .. }) = resumption.as_ref().filter(|there| there.point.step > steps) {
            return Err(Unfit(format!(
                "train.steps (--steps) = {steps} is not possible: the run is at step {} already; give at least that many",
                point.step
            ))
            .into());
        }
        saver.newest = resumption.as_ref().map(|resumption| resumption.point.step);
        Ok(resumption)
    }

    /// Makes the run's folder ready, on rank 0, which gets a reporter. Whether the run may have the folder is known before
    /// anything changes there; weights and checkpoints go last, when new metrics can be written. All ranks call it.
    pub(super) fn begin<D: Dataset>(
        &self,
        saver: &Saver,
        training: &Training<D>,
        resumption: Option<&Resumption>,
        introduction: &[String],
    ) -> anyhow::Result<Option<Reporter>> {
        let devices = self.devices()?;
        let begin = || -> anyhow::Result<Reporter> {
            if !self.replaces() {
                folder::refuse_earlier(&self.out, &self.config)?;
            }
            if resumption.is_none() && !self.settings.output.overwrite {
                refuse_checkpoints(&**saver.storage())?;
            }
            folder::write_config(&self.out, &self.config)?;
            let reporter = self.reporter(training, resumption, introduction, devices)?;
            // Those of a run that goes on are its own, and stay until there are others.
            if resumption.is_none() && self.replaces() {
                folder::remove_weights(&self.out)?;
            }
            let flight = self.out.join(FLIGHT_FOLDER);
            if self.beginning == Beginning::Fresh && flight.exists() {
                std::fs::remove_dir_all(&flight)?;
            }
            saver.clean()?;
            if resumption.is_none() {
                saver.clear()?;
            }
            Ok(reporter)
        };
        let reporter = (self.rank() == 0).then(begin).transpose().context("the run's folder")?;
        // No rank saves before rank 0 has cleaned up.
        self.group().barrier()?;
        Ok(reporter)
    }

    /// Whether what the run's folder holds may be replaced: as the user allows, or because it is this run's own.
    fn replaces(&self) -> bool {
        self.settings.output.overwrite || self.beginning != Beginning::Fresh
    }

    /// Starts the metrics of a run, or goes on with them.
    fn reporter<D: Dataset>(
        &self,
        training: &Training<D>,
        resumption: Option<&Resumption>,
        introduction: &[String],
        devices: Devices,
    ) -> anyhow::Result<Reporter> {
        let about_devices = [devices.introduction(), device::advice(&self.settings)];
        let options = ReporterOptions {
            total_steps: self.settings.train.steps,
            log_every: self.settings.output.log_every,
            console: if self.quiet { ConsoleMode::Quiet } else { ConsoleMode::Auto },
            compute: Compute {
                flops_per_token: training.flops_per_target,
                ranks: self.size(),
                peak_flops: devices.peak_flops,
            },
            devices: devices.names,
            tensorboard: true,
            overwrite: self.replaces(),
            goes_on: self.settings.checkpoint.on_failure == OnFailedSave::Continue,
            restart: self.restart,
        };
        let mut reporter = match resumption {
            Some(Resumption { point, .. }) => Reporter::resume(&self.out, options, point.step)?,
            None => Reporter::create(&self.out, options)?,
        };
        for (name, content) in &training.files {
            let path = self.out.join(name);
            write_whole(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
            reporter.wrote(path);
        }
        introduction.iter().chain(about_devices.iter().flatten()).for_each(|line| reporter.note(line));
        if let Some(Resumption { point, damaged }) = resumption {
            damaged.iter().for_each(|what| reporter.note(&format!("passed over {what}")));
            reporter.note(&format!("going on from the checkpoint of step {}", point.step));
            if point.step >= self.settings.train.steps {
                let steps = self.settings.train.steps;
                reporter.note(&format!("all {steps} steps are done; --steps N trains on"));
            }
        }
        Ok(reporter)
    }

    /// What checkpoints say of this run.
    pub(super) fn run_description(
        &self,
        shapes: &[(String, Vec<usize>)],
        names: &Names,
    ) -> anyhow::Result<serde_json::Value> {
        let config = settled(self.config.parse()?);
        let file_names: BTreeMap<_, _> =
            shapes.iter().map(|(name, _)| (name.clone(), (names.to_file)(name))).collect();
        let (run, configuration) = (self.run.clone(), serde_json::to_value(config)?);
        Ok(serde_json::to_value(RunDescription { run, configuration, file_names })?)
    }
}
