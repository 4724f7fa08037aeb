//! Saving a checkpoint: one rank's part.

mod background;
mod frozen;
mod work;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use brigade_checkpoint::{
    Error, FileMetadata, RankShard, StagingDir, Storage, TrainState, UnitMetadata, WriteResult, abort_save,
    merge_units, publish, remove_stale, write_shard,
};
use brigade_comm::{DType, Group};
use brigade_report::CheckpointRecord;
use serde::{Deserialize, Serialize};

use self::background::Background;
use self::frozen::{FrozenFile, FrozenValues};
use self::work::Work;
use super::lease::HeldLeases;
use super::models::ModelSnapshot;
use super::progress::{RunProgress, best_step};
use super::retention::{refuse_other_runs, remove_older, remove_replaced};
use super::shared_storage::storage_not_shared;
use crate::settings::CheckpointSettings;
use crate::thread_spans::ThreadSpans;
use crate::world::all_gather_text;

pub(crate) use self::work::SaveProgress;

/// How a save ended; the same on all ranks.
#[derive(Debug)]
pub(crate) enum SaveOutcome {
    Saved {
        record: CheckpointRecord,
        /// On rank 0: why older checkpoints could not be removed.
        cleanup_error: Option<String>,
    },
    /// Nothing of it is left; the text says why, with the rank.
    Failed(String),
}

/// Largest message about a rank's files.
const MAX_ENTRY_BYTES: usize = 1 << 28;

/// How often ranks that wait for a save exchange how far they are.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Saves checkpoints together with the other ranks, one at a time.
pub(crate) struct Saver {
    storage: Arc<dyn Storage>,
    group: Group,
    settings: CheckpointSettings,
    /// Identifies the saves of this world, and how many there were: no two have the same id.
    save_id: String,
    saves: u64,
    /// On rank 0, which publishes.
    leases: Option<HeldLeases>,
    save: Option<Save>,
    /// Whether ranks with parts of a unit may have made different numbers of updates, as servers from which a push was lost.
    pub(crate) counts_differ: bool,
    /// What its threads did.
    pub(crate) threads: ThreadSpans,
    /// The newest step that this process saved or started from.
    pub(crate) newest: Option<u64>,
    /// This rank's frozen values in the newest checkpoint that this process saved since then.
    frozen: Option<FrozenFile>,
}

struct Save {
    staging: StagingDir,
    state: TrainState,
    bytes: u64,
    began: Instant,
    stall: Duration,
    phase: Phase,
    /// This rank's file of frozen values, once it is in the save.
    frozen: Option<FileMetadata>,
}

enum Phase {
    /// Each rank writes its files.
    Writing(Work<Written>),
    /// Rank 0 publishes the checkpoint; the others have nothing to do.
    Publishing(Option<Work<Option<String>>>),
}

/// What rank 0 needs to know of a rank's files.
#[derive(Debug, Serialize, Deserialize)]
struct Written {
    /// The file of what training changes, and that of frozen values, if there are any.
    entries: Vec<WriteResult>,
    units: Vec<UnitMetadata>,
}

impl Saver {
    /// `results` is where the run has its results; its launcher may hold a lease there or for the storage.
    pub(crate) fn new(
        storage: Arc<dyn Storage>,
        results: &str,
        group: Group,
        settings: CheckpointSettings,
    ) -> anyhow::Result<Self> {
        let own = StagingDir::new(0)?.id().to_owned();
        let save_id = all_gather_text(&group, &own)?.swap_remove(0);
        let held = || HeldLeases::of(&[storage.location(), results]);
        let leases = (group.rank() == 0).then(held).transpose()?;
        Ok(Self {
            storage,
            group,
            settings,
            save_id,
            saves: 0,
            leases,
            save: None,
            counts_differ: false,
            threads: ThreadSpans::default(),
            newest: None,
            frozen: None,
        })
    }

    pub(crate) fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// Whether the ranks share the storage: what is wrong with it, if anything. All ranks call it and get the same answer.
    pub(crate) fn storage_problem(&self) -> anyhow::Result<Option<String>> {
        storage_not_shared(&*self.storage, &self.group, &StagingDir::with_id(0, &self.save_id)?)
    }

    /// Removes what processes left that died while saving, and of the checkpoints up to that of `restored` those that its save
    /// would have removed; before the first save.
    pub(crate) fn remove_left(&self, restored: Option<&RunProgress>) -> anyhow::Result<()> {
        remove_stale(&*self.storage)?;
        if let Some(RunProgress { step, best_step, .. }) = restored {
            remove_older(&*self.storage, &self.storage.published()?, *step, *best_step, &self.settings)?;
        }
        Ok(())
    }

    /// Removes all checkpoints of the earlier run that this one replaces.
    pub(crate) fn remove_all(&self) -> anyhow::Result<()> {
        let published = self.storage.published()?;
        published.iter().try_for_each(|published| self.storage.remove(&published.folder))?;
        Ok(())
    }

    /// Whether a checkpoint is to be saved after `step`.
    pub(crate) fn is_due(&self, step: u64, last: bool) -> bool {
        let every = self.settings.every;
        every > 0 && (last || step.is_multiple_of(every)) && self.newest != Some(step)
    }

    /// Continues from the checkpoint of a step after a rollback. Newer ones may be damaged, so nothing of them is linked.
    pub(crate) fn restart_from(&mut self, step: u64) {
        (self.newest, self.frozen) = (Some(step), None);
    }

    /// Starts to save; all ranks call it together while no save is under way. `state` is the same on all ranks, without units.
    /// Training has been stalled for the save since `since`.
    pub(crate) fn begin(
        &mut self,
        step: u64,
        mut models: Vec<ModelSnapshot>,
        state: TrainState,
        since: Instant,
    ) -> anyhow::Result<()> {
        self.saves += 1;
        let staging = StagingDir::with_id(step, &format!("{}{:08}", self.save_id, self.saves))?;
        let (storage, rank, to) = (self.storage.clone(), self.group.rank(), staging.clone());
        let earlier = || self.frozen.clone().or_else(|| FrozenFile::found(&storage, self.newest?, rank));
        let frozen = FrozenValues::take(&mut models, earlier);
        let changing = models.iter().map(|model| model.snapshot.bytes()).sum::<u64>();
        let (total, fits) = self.check_free_space(changing + frozen.bytes())?;
        let write = move || -> anyhow::Result<Written> {
            fits?;
            let (mut units, mut items) = (Vec::new(), Vec::new());
            for model in models {
                let (model_units, model_items) = model.read()?;
                units.extend(model_units);
                items.extend(model_items);
            }
            let mut entries = vec![write_shard(&*storage, &to, rank, &RankShard { items })?];
            let (frozen_units, entry) = frozen.save(&*storage, &to, rank)?;
            units.extend(frozen_units);
            entries.extend(entry);
            Ok(Written { entries, units })
        };
        let threads = self.threads.clone();
        let write = move || threads.during(format!("write step {step}"), write);
        let work = Work::Running(Background::start("checkpoint", write)?);
        let (phase, stall) = (Phase::Writing(work), since.elapsed());
        self.save = Some(Save { staging, state, bytes: total, began: since, stall, phase, frozen: None });
        Ok(())
    }

    /// Why this rank's part of the save failed, if it did.
    #[cfg(test)]
    pub(super) fn failure(&self) -> String {
        match self.save.as_ref().map(|save| &save.phase) {
            Some(Phase::Writing(work)) => work.failure(),
            _ => String::new(),
        }
    }

    /// The bytes that all ranks together write, and whether they fit into the free space, as far as it is known. All ranks look at the
    /// free space before any of them writes.
    fn check_free_space(&self, bytes: u64) -> anyhow::Result<(u64, anyhow::Result<()>)> {
        let mut all = vec![0.0f64; 2 * self.group.size()];
        let own = 2 * self.group.rank();
        // If the free space is unknown, the save is tried.
        let free = self.storage.free_space().ok().flatten();
        (all[own], all[own + 1]) = (bytes as f64, free.map_or(f64::INFINITY, |free| free as f64));
        self.group.all_gather_in_place(&mut all)?;
        let total = all.iter().step_by(2).sum::<f64>();
        let least = all.iter().skip(1).step_by(2).copied().fold(f64::INFINITY, f64::min);
        let (needed, location) = (total as u64, self.storage.location().into());
        let fits = match total > least {
            true => Err(Error::NoSpace { location, needed, free: least as u64 }.into()),
            false => Ok(()),
        };
        Ok((needed, fits))
    }

    /// How far this rank is with the save.
    pub(crate) fn progress(&mut self) -> SaveProgress {
        let Some(save) = &mut self.save else { return SaveProgress::Idle };
        match &mut save.phase {
            Phase::Writing(work) => work.progress(),
            Phase::Publishing(Some(work)) => work.progress(),
            Phase::Publishing(None) => SaveProgress::Idle,
        }
    }

    /// Continues the save, given how far all ranks are; returns its outcome once it has ended.
    ///
    /// # Errors
    /// If the save takes too long, or communication between ranks fails.
    pub(crate) fn advance(&mut self, all: &[SaveProgress]) -> anyhow::Result<Option<SaveOutcome>> {
        let Some(save) = self.save.take() else { return Ok(None) };
        if all.contains(&SaveProgress::Working) {
            let limit = self.settings.timeout_seconds;
            if save.began.elapsed().as_secs_f64() > limit {
                let slow: Vec<_> =
                    (0..all.len()).filter(|rank| all[*rank] == SaveProgress::Working).collect();
                bail!(
                    "the checkpoint of step {} is not saved after {limit} s (checkpoint.timeout_seconds): ranks {slow:?} are still \
                     writing to {}",
                    save.staging.step(),
                    self.storage.location()
                );
            }
            self.save = Some(save);
            return Ok(None);
        }
        let failed = all.contains(&SaveProgress::Failed);
        let Save { staging, state, bytes, began, stall, phase, frozen } = save;
        let fail = |work: String| -> anyhow::Result<Option<SaveOutcome>> {
            let texts = all_gather_text(&self.group, &work)?;
            let reasons = texts.iter().enumerate().filter(|(_, text)| !text.is_empty());
            let mut reasons: Vec<_> = reasons.map(|(rank, text)| format!("rank {rank}: {text}")).collect();
            if reasons.len() > 1 && texts.iter().all(|text| *text == texts[0]) {
                reasons = vec![texts[0].clone()];
            }
            if self.group.rank() == 0 {
                // The failure of the save is reported, not that of the cleanup.
                drop(abort_save(&*self.storage, &staging));
            }
            Ok(Some(SaveOutcome::Failed(reasons.join("; "))))
        };
        match phase {
            Phase::Writing(work) if failed => fail(work.failure()),
            Phase::Publishing(work) if failed => fail(work.map_or(String::new(), |work| work.failure())),
            Phase::Writing(Work::Ended(Ok(written))) => {
                let frozen = written.entries.get(1).map(|entry| entry.file.clone());
                let work = self.collect_entries(&staging, &state, written)?;
                let phase = Phase::Publishing(work);
                self.save = Some(Save { staging, state, bytes, began, stall, phase, frozen });
                Ok(None)
            }
            Phase::Writing(_) => bail!("a save of step {} was lost", staging.step()),
            Phase::Publishing(work) => {
                let step = staging.step();
                self.newest = Some(step);
                self.frozen = frozen.map(|file| FrozenFile { step, file, is_known: true });
                let (stall_seconds, seconds) = (stall.as_secs_f64(), began.elapsed().as_secs_f64());
                let record = CheckpointRecord { step, stall_seconds, bytes, seconds };
                Ok(Some(SaveOutcome::Saved { record, cleanup_error: work.and_then(Work::value).flatten() }))
            }
        }
    }

    /// Waits for the save under way, if any; all ranks call it together. `alive` is called periodically.
    pub(crate) fn wait(&mut self, alive: impl Fn()) -> anyhow::Result<Option<SaveOutcome>> {
        while self.save.is_some() {
            alive();
            let until = Instant::now() + POLL_INTERVAL;
            while self.progress() == SaveProgress::Working && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            let mut all = vec![0.0f64; self.group.size()];
            all[self.group.rank()] = f64::from(self.progress() as u8);
            self.group.all_gather_in_place(&mut all)?;
            let all: Vec<_> = all.into_iter().map(SaveProgress::from_number).collect();
            if let Some(outcome) = self.advance(&all)? {
                return Ok(Some(outcome));
            }
        }
        Ok(None)
    }

    /// Sends the entries of this rank's files to rank 0, which then starts to publish the checkpoint and to remove older ones.
    fn collect_entries(
        &self,
        staging: &StagingDir,
        state: &TrainState,
        own: Written,
    ) -> anyhow::Result<Option<Work<Option<String>>>> {
        if self.group.rank() != 0 {
            let text = serde_json::to_vec(&own)?;
            self.group.send(text, DType::U8, 0).wait()?;
            return Ok(None);
        }
        let others: Vec<_> =
            (1..self.group.size()).map(|rank| self.group.recv_message(rank, MAX_ENTRY_BYTES)).collect();
        let (mut entries, mut units) = (own.entries, vec![own.units]);
        for (index, message) in others.into_iter().enumerate() {
            let written: Written = serde_json::from_slice(&message.wait()?)
                .with_context(|| format!("the message of rank {} about its files", index + 1))?;
            entries.extend(written.entries);
            units.push(written.units);
        }
        let units = match merge_units(units, self.counts_differ) {
            Ok(units) => units,
            // The save has failed, and all ranks are told.
            Err(error) => return Ok(Some(Work::Ended(Err(error.into())))),
        };
        let state = TrainState { units, ..state.clone() };
        let step = staging.step();
        let (storage, staging, settings) = (self.storage.clone(), staging.clone(), self.settings.clone());
        let leases = self.leases.clone();
        let work = move || -> anyhow::Result<Option<String>> {
            let check_leases = || leases.as_ref().map_or(Ok(()), HeldLeases::check);
            refuse_other_runs(&storage, &state)?;
            check_leases()?;
            publish(&*storage, &staging, state.clone(), entries)?;
            let clean = || -> anyhow::Result<()> {
                // Publishing may have taken long: another run may have started meanwhile.
                check_leases()?;
                let own = refuse_other_runs(&storage, &state)?;
                Ok(remove_replaced(&*storage, &own, staging.step(), best_step(&state.counters), &settings)?)
            };
            Ok(clean().err().map(|error| format!("{error:#}")))
        };
        let threads = self.threads.clone();
        let work = move || threads.during(format!("publish step {step}"), work);
        Ok(Some(Work::Running(Background::start("checkpoint", work)?)))
    }
}
