//! How training starts: from scratch, or from a checkpoint.

use std::path::Path;

use anyhow::Context;
use brigade_checkpoint::open_storage;
use brigade_core::plan::formula;
use brigade_core::{Blocks, PP, UntypedEngine, saved_workers};
use brigade_data::{Sampler, SourceShare};
use brigade_files::write_atomic;
use brigade_models::{WeightsFiles, WeightsFormat, WeightsMapping};
use brigade_report::timeline::PROFILE_FOLDER;
use brigade_report::{Compute, ConsoleMode, Reporter, ReporterOptions, counted};
use brigade_sorted::SortedMap;

use crate::checkpoint::{
    FIRST_MODEL, FileNames, Restored, RunDescription, Saver, refuse_checkpoints, restore,
};
use crate::device;
use crate::error::{CheckpointUsageError, print_stderr};
use crate::folder::{self, FLIGHT_FOLDER};
use crate::run::{Session, StartFrom, write_choice};
use crate::settings::{CheckpointSettings, OnFailedSave, RunPlan, SettingError, resolve_auto};
use crate::training_setup::Reported;

use super::balance::BlockSeconds;
use super::devices::Devices;

impl Session {
    pub(super) fn sampler(&self, shares: &[SourceShare]) -> anyhow::Result<Sampler> {
        let train = &self.settings.train;
        Ok(Sampler::mixed(shares, train.seed, train.global_batch_size, train.micro_batch_size)?)
    }

    /// On rank 0, lines on what is about to be trained and how; `data` is the number of samples and their order, if the run has any, and
    /// `plan` has the split into stages.
    pub(super) fn run_summary(
        &self,
        (plan, seconds): (&RunPlan, &BlockSeconds),
        chain: &Blocks,
        total_steps: u64,
        data: Option<(usize, &Sampler)>,
    ) -> Vec<String> {
        match self.rank() {
            0 => self.summary_lines((plan, seconds), chain, total_steps, data),
            _ => Vec::new(),
        }
    }

    pub(super) fn saver(&self) -> anyhow::Result<Saver> {
        let storage = open_storage(&self.settings.checkpoint_location(&self.out))?;
        let results = self.settings.output.url().unwrap_or_else(|| self.out.to_string_lossy().into());
        let mut saver =
            Saver::new(storage, &results, self.group().clone(), self.settings.checkpoint.clone())?;
        saver.counts_differ = self.settings.strategy.separate_worlds().is_some();
        Ok(saver)
    }

    /// Checks that all ranks share the storage of checkpoints. All ranks call it. Returns a warning if not.
    ///
    /// # Errors
    /// If the storage is not shared, and the run must save checkpoints.
    pub(super) fn check_storage(&self, saver: &Saver) -> anyhow::Result<Option<String>> {
        self.heartbeat.send("checking the storage of checkpoints");
        let CheckpointSettings { every, keep_best, on_failure, .. } = self.settings.checkpoint;
        match saver.storage_problem()? {
            Some(why) if (every > 0 || keep_best) && on_failure == OnFailedSave::Stop => {
                Err(CheckpointUsageError::NotShared(why).into())
            }
            found => Ok(found),
        }
    }

    /// Restores the run's newest checkpoint, if the run resumes. All ranks call it.
    pub(super) fn restore(
        &self,
        engine: &mut UntypedEngine,
        saver: &mut Saver,
        facts: &SortedMap<String, String>,
        total_steps: u64,
    ) -> anyhow::Result<Option<Restored>> {
        self.heartbeat.send("looking for a checkpoint");
        let mut saved = 1;
        let mut newest = || {
            let identity = (self.run.as_str(), facts);
            restore(
                saver.storage(),
                self.group(),
                identity,
                |_| true,
                |progress, reader| {
                    reader.check_further(self.rank(), self.world_size())?;
                    let reader = reader.of(FIRST_MODEL);
                    saved = saved_workers(reader.units());
                    engine.restore(progress.step, reader)
                },
            )
        };
        let mut restored = match self.start_from {
            StartFrom::Scratch => None,
            StartFrom::Checkpoint => {
                let missing = || CheckpointUsageError::Missing(saver.storage().location().to_owned());
                Some(newest()?.ok_or_else(missing)?)
            }
            StartFrom::CheckpointIfAny => newest()?,
        };
        if let Some(Restored { progress, .. }) =
            restored.as_ref().filter(|there| there.progress.step > total_steps)
        {
            let allowed = format!("the run is at step {} already; give at least that many", progress.step);
            return Err(match self.settings.train.steps {
                0 => SettingError::new(
                    "train.epochs (--epochs)",
                    self.settings.train.epochs,
                    format!("that makes {}, and {allowed}", counted(total_steps as usize, "step")),
                ),
                steps => SettingError::new("train.steps (--steps)", steps, allowed),
            }
            .into());
        }
        saver.newest = restored.as_ref().map(|restored| restored.progress.step);
        if let Some(restored) = &mut restored {
            let launched = self.settings.strategy.is_elastic().then_some(self.settings.strategy.workers);
            restored.inner_states = inner_states(saved, launched, self.plan.workers());
        }
        Ok(restored)
    }

    /// Prepares the run's folder on rank 0 and opens its reporter. All ranks call it. Nothing in the folder changes before it is
    /// known that the run may use it; earlier weights and checkpoints are removed last, when new metrics can be written.
    pub(super) fn begin(
        &self,
        saver: &Saver,
        data: &Reported<'_>,
        restored: Option<&Restored>,
        total_steps: u64,
        summary: &[String],
    ) -> anyhow::Result<Option<Reporter>> {
        let devices = self.devices()?;
        let begin = || -> anyhow::Result<Reporter> {
            if !self.replaces() {
                folder::refuse_earlier(&self.out, &self.config)?;
            }
            if restored.is_none() && !self.settings.output.overwrite {
                refuse_checkpoints(&**saver.storage())?;
            }
            if restored.is_none() && self.start_from == StartFrom::CheckpointIfAny {
                self.warn_of_lost_steps(saver);
            }
            folder::write_config(&self.out, &self.config)?;
            write_choice(&self.out, restored.is_none())?;
            let reporter = self.reporter(data, restored, total_steps, summary, devices)?;
            // The weights of a resumed run are its own and stay until they are replaced.
            if restored.is_none() && self.replaces() {
                let own: Vec<_> = data.files.iter().map(|(name, _)| name.as_str()).collect();
                folder::remove_models(&self.out, &own)?;
            }
            let of_earlier = [FLIGHT_FOLDER, PROFILE_FOLDER].map(|folder| self.out.join(folder));
            for folder in of_earlier.iter().filter(|_| self.start_from == StartFrom::Scratch) {
                if folder.exists() {
                    std::fs::remove_dir_all(folder)?;
                }
            }
            saver.remove_left(restored.map(|restored| &restored.progress))?;
            if restored.is_none() {
                saver.remove_all()?;
            }
            Ok(reporter)
        };
        let reporter = (self.rank() == 0).then(begin).transpose().context("the run's folder")?;
        // No rank may save before rank 0 has cleaned up.
        self.group().barrier()?;
        Ok(reporter)
    }

    /// Says what is lost when a run that has trained already finds no checkpoint of its own.
    fn warn_of_lost_steps(&self, saver: &Saver) {
        if let Some(steps) = folder::last_step(&self.out) {
            print_stderr(format_args!(
                "warning: {} holds metrics up to step {steps}, but checkpoint.dir = {} holds no checkpoint, so training starts again at step 1 and \
                 replaces them; with checkpoint.every = {} one is saved {}",
                self.out.display(),
                saver.storage().location(),
                self.settings.checkpoint.every,
                match self.settings.checkpoint.every {
                    0 => "only when a signal ends the run".to_owned(),
                    every => format!("every {}", counted(every as usize, "step")),
                }
            ));
        }
    }

    /// Whether the contents of the run's folder may be replaced: because the user allows it, or because they are this run's own.
    fn replaces(&self) -> bool {
        self.settings.output.overwrite || self.start_from != StartFrom::Scratch
    }

    /// The share of a step that the schedule leaves idle, where there is a pipeline.
    fn expected_bubble(&self) -> Option<f64> {
        let (plan, stages) = (&self.plan, self.plan.mesh.size(PP));
        let (kind, chunks) = (plan.engine.schedule, plan.engine.chunks);
        (stages > 1).then(|| formula::bubble_fraction(kind, stages, chunks, plan.gradient_accumulation_steps))
    }

    /// Opens the reporter of a new or resumed run.
    fn reporter(
        &self,
        data: &Reported<'_>,
        restored: Option<&Restored>,
        total_steps: u64,
        summary: &[String],
        devices: Devices,
    ) -> anyhow::Result<Reporter> {
        let about_devices = [devices.summary_line(), device::environment_advice(&self.settings)];
        let options = ReporterOptions {
            total_steps,
            unit: data.unit.clone(),
            log_every: self.settings.output.log_every,
            console: if self.quiet { ConsoleMode::Quiet } else { ConsoleMode::Auto },
            compute: Compute {
                // Servers launched by themselves are not the devices that compute.
                flops_per_token: data
                    .flops_per_target
                    .filter(|_| self.plan.engine.strategy.separate_worlds().is_none()),
                ranks: self.world_size() * self.settings.strategy.place_among_launches().1,
                peak_flops: devices.peak_flops,
            },
            devices: devices.names,
            network_delay: self.network_delay,
            tensorboard: true,
            overwrite: self.replaces(),
            goes_on: self.settings.checkpoint.on_failure == OnFailedSave::Continue,
            restart: self.restart,
            expected_bubble: self.expected_bubble(),
            servers: self.plan.servers(),
            mesh: self.plan.mesh.axes().iter().map(|axis| (axis.name.to_owned(), axis.size)).collect(),
            metrics_addr: self.settings.output.metrics_address()?,
        };
        let mut reporter = match restored {
            Some(Restored { progress, .. }) => Reporter::resume(&self.out, options, progress.step)?,
            None => Reporter::create(&self.out, options)?,
        };
        for (name, content) in data.files {
            let path = self.out.join(name);
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)
                    .with_context(|| format!("cannot create the folder {}", folder.display()))?;
            }
            write_atomic(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
            reporter.add_file(path);
        }
        summary.iter().chain(about_devices.iter().flatten()).for_each(|line| reporter.note(line));
        if let Some(Restored { progress, mesh, damaged, inner_states }) = restored {
            damaged.iter().for_each(|what| reporter.note(&format!("skipped {what}")));
            let axes = self.plan.mesh.axes();
            let other =
                axes.iter().any(|axis| mesh.get(axis.name).is_some_and(|size| *size != axis.size as u64));
            let size = |axis: &brigade_core::Axis| Some(format!("{} {}", axis.name, mesh.get(axis.name)?));
            let sizes = axes.iter().filter_map(size).collect::<Vec<_>>().join(" x ");
            let saved = if other { format!(", which a mesh {sizes} saved") } else { String::new() };
            reporter.note(&format!("resuming from the checkpoint of step {}{saved}", progress.step));
            inner_states.iter().for_each(|what| reporter.note(what));
        }
        Ok(reporter)
    }

    /// The description of this run for its checkpoints; `file_names` are those of the first model, `how` says how its blocks were measured.
    pub(super) fn run_description(
        &self,
        file_names: FileNames,
        (block_seconds, how): (BlockSeconds, String),
    ) -> anyhow::Result<RunDescription> {
        let config = resolve_auto(self.config.parse()?);
        let (run, configuration) = (self.run.clone(), serde_json::to_value(config)?);
        let block_seconds_of = if block_seconds.is_empty() { String::new() } else { how };
        let further = SortedMap::new();
        Ok(RunDescription { run, configuration, file_names, block_seconds, block_seconds_of, further })
    }
}

/// What to say of a checkpoint with the inner states of `saved` workers, where not each worker continues from its own: in a world of
/// `together` workers, or as one of those that are `launched` separately.
fn inner_states(saved: usize, launched: Option<usize>, together: usize) -> Option<String> {
    match (saved, launched) {
        // A separately launched worker's own.
        (1, Some(_)) => None,
        _ if saved == launched.unwrap_or(together) => None,
        (1, None) => Some(format!(
            "the checkpoint has the inner state of one worker, from which all {together} workers continue"
        )),
        (_, None) if together == 1 => Some(format!(
            "the checkpoint has the inner states of {saved} workers; the run continues from that of worker 0"
        )),
        _ => Some(format!(
            "the checkpoint has the inner states of {saved} workers; worker w of {} continues from that of worker w modulo {saved}",
            launched.unwrap_or(together)
        )),
    }
}

/// Where those parameters of a model that its file of weights holds will be in it.
///
/// # Errors
/// If they cannot make up a file.
pub(super) fn file_names(
    path: &Path,
    shapes: &[(String, Vec<usize>)],
    mapping: &WeightsMapping,
    holds: fn(&str) -> bool,
) -> anyhow::Result<FileNames> {
    let held = || shapes.iter().filter(|(name, _)| holds(name));
    WeightsFiles::new(path, mapping.parameters(held().cloned()), WeightsFormat::ONE_FILE)?;
    Ok(held().map(|(name, _)| (name.clone(), mapping.stored(name))).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn inner_states_of_others_are_said() {
        for (saved, launched, together) in [(1, None, 1), (2, None, 2), (1, Some(2), 1), (2, Some(2), 1)] {
            assert_eq!(inner_states(saved, launched, together), None, "{saved} {launched:?} {together}");
        }
        for (saved, launched, together, says) in [
            (1, None, 2, "of one worker, from which all 2 workers continue"),
            (2, None, 1, "continues from that of worker 0"),
            (2, None, 4, "worker w of 4 continues from that of worker w modulo 2"),
            (2, Some(3), 1, "worker w of 3 continues from that of worker w modulo 2"),
        ] {
            let said = inner_states(saved, launched, together).unwrap();
            assert!(said.contains(says), "{said}");
        }
    }
}
