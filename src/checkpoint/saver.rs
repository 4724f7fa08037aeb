//! Saving: one rank's part in it.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use brigade_checkpoint::{
    Checkpoint, Error, RankShard, StagingDir, Storage, TrainState, UnitMetadata, WriteResult, abort_save,
    keep_latest, publish, remove_after, remove_stale, write_shard,
};
use brigade_comm::{DType, Group};
use brigade_report::CheckpointRecord;
use serde::{Deserialize, Serialize};

use super::RunDescription;
use super::background::Background;
use super::shared_storage::out_of_reach;
use crate::settings::CheckpointSettings;
use crate::world::texts;

/// How far a rank is with a save; it is told to the others as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// There is none, or it is others' turn.
    Idle = 0,
    /// Its thread is at work.
    Working = 1,
    /// Its thread is done.
    Done = 2,
    /// Its thread failed.
    Failed = 3,
}

impl Progress {
    pub(crate) fn from_number(number: f64) -> Self {
        [Self::Idle, Self::Working, Self::Done]
            .into_iter()
            .find(|p| f64::from(*p as u8) == number)
            .unwrap_or(Self::Failed)
    }
}

/// How a save ended, on all ranks alike.
#[derive(Debug)]
pub(crate) enum Outcome {
    Saved {
        record: CheckpointRecord,
        /// Why other checkpoints that should be gone are not; on rank 0.
        untidy: Option<String>,
    },
    /// It left no trace; the text says why, with the rank.
    Failed(String),
}

/// Longest description of a rank's file.
const MOST_ENTRY_BYTES: usize = 1 << 28;

/// How long a rank that waits for a save leaves the others without a word.
const WORD: Duration = Duration::from_millis(250);

/// Saves checkpoints together with the other ranks; one at a time.
pub(crate) struct Saver {
    storage: Arc<dyn Storage>,
    group: Group,
    settings: CheckpointSettings,
    /// Tells this process's saves from those of others.
    save_id: String,
    save: Option<Save>,
    /// The newest step that this process saved or started from.
    pub(crate) newest: Option<u64>,
}

struct Save {
    staging: StagingDir,
    state: TrainState,
    bytes: u64,
    began: Instant,
    stall: Duration,
    phase: Phase,
}

enum Phase {
    /// Each rank writes its file.
    Writing(Work<Written>),
    /// Rank 0 makes it visible; the others have nothing to do.
    Publishing(Option<Work<Option<String>>>),
}

enum Work<T> {
    Running(Background<T>),
    Ended(anyhow::Result<T>),
}

impl<T: Send + 'static> Work<T> {
    fn progress(&mut self) -> Progress {
        if matches!(self, Self::Running(work) if work.is_done()) {
            let before = std::mem::replace(self, Self::Ended(Err(anyhow!("it was lost"))));
            if let Self::Running(work) = before {
                *self = Self::Ended(work.finish());
            }
        }
        match self {
            Self::Running(_) => Progress::Working,
            Self::Ended(Ok(_)) => Progress::Done,
            Self::Ended(Err(_)) => Progress::Failed,
        }
    }

    fn value(self) -> Option<T> {
        match self {
            Self::Ended(Ok(value)) => Some(value),
            _ => None,
        }
    }

    fn failure(&self) -> String {
        match self {
            Self::Ended(Err(error)) => format!("{error:#}"),
            _ => String::new(),
        }
    }
}

/// What a rank tells rank 0 of its file.
#[derive(Debug, Serialize, Deserialize)]
struct Written {
    entry: WriteResult,
    units: Vec<UnitMetadata>,
}

impl Saver {
    pub(crate) fn new(
        storage: Arc<dyn Storage>,
        group: Group,
        settings: CheckpointSettings,
    ) -> anyhow::Result<Self> {
        let own = StagingDir::new(0)?.id().to_owned();
        let save_id = texts(&group, &own)?.swap_remove(0);
        Ok(Self { storage, group, settings, save_id, save: None, newest: None })
    }

    pub(crate) fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// Why this run's checkpoints could not be saved where they are to be, as far as that shows before one is. All ranks call
    /// it and get the same answer.
    pub(crate) fn obstacle(&self) -> anyhow::Result<Option<String>> {
        out_of_reach(&*self.storage, &self.group, &StagingDir::with_id(0, &self.save_id)?)
    }

    /// Removes what processes left that died while they saved; before the first save.
    pub(crate) fn clean(&self) -> anyhow::Result<()> {
        remove_stale(&*self.storage)?;
        Ok(())
    }

    /// Removes all checkpoints: those of an earlier run that this one replaces.
    pub(crate) fn clear(&self) -> anyhow::Result<()> {
        let published = self.storage.published()?;
        published.iter().try_for_each(|published| self.storage.remove(&published.folder))?;
        Ok(())
    }

    /// Whether a checkpoint is to be saved after `step`.
    pub(crate) fn is_due(&self, step: u64, last: bool) -> bool {
        let every = self.settings.every;
        every > 0 && (last || step.is_multiple_of(every)) && self.newest != Some(step)
    }

    /// Starts to save. All ranks call it, when no save is under way. `state` is the same on all; the units are put in. `since`: when training stood still for it.
    pub(crate) fn begin(
        &mut self,
        step: u64,
        snapshot: brigade_core::Snapshot,
        state: TrainState,
        since: Instant,
    ) -> anyhow::Result<()> {
        let staging = StagingDir::with_id(step, &self.save_id)?;
        let (total, room) = self.room(snapshot.bytes())?;
        let (storage, rank, to) = (self.storage.clone(), self.group.rank(), staging.clone());
        let write = move || {
            room?;
            let (units, items) = snapshot.read()?;
            Ok(Written { entry: write_shard(&*storage, &to, rank, &RankShard { items })?, units })
        };
        let work = Work::Running(Background::start("checkpoint", write)?);
        let (phase, stall) = (Phase::Writing(work), since.elapsed());
        self.save = Some(Save { staging, state, bytes: total, began: since, stall, phase });
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

    /// The bytes of all ranks together, and whether they fit where this rank writes, as far as that is known. No rank has
    /// begun to write when another one looks at the free space.
    fn room(&self, bytes: u64) -> anyhow::Result<(u64, anyhow::Result<()>)> {
        let mut all = vec![0.0f64; 2 * self.group.size()];
        let own = 2 * self.group.rank();
        // No answer is no reason not to try.
        let free = self.storage.free_space().ok().flatten();
        (all[own], all[own + 1]) = (bytes as f64, free.map_or(f64::INFINITY, |free| free as f64));
        self.group.all_gather_in_place(&mut all)?;
        let total = all.iter().step_by(2).sum::<f64>();
        let least = all.iter().skip(1).step_by(2).copied().fold(f64::INFINITY, f64::min);
        let (needed, location) = (total as u64, self.storage.location().into());
        let room = match total > least {
            true => Err(Error::NoSpace { location, needed, free: least as u64 }.into()),
            false => Ok(()),
        };
        Ok((needed, room))
    }

    /// How far this rank is.
    pub(crate) fn progress(&mut self) -> Progress {
        let Some(save) = &mut self.save else { return Progress::Idle };
        match &mut save.phase {
            Phase::Writing(work) => work.progress(),
            Phase::Publishing(Some(work)) => work.progress(),
            Phase::Publishing(None) => Progress::Idle,
        }
    }

    /// Takes the next step of a save that follows from how far all ranks are.
    ///
    /// # Errors
    /// If the save takes too long, or ranks cannot talk.
    pub(crate) fn advance(&mut self, all: &[Progress]) -> anyhow::Result<Option<Outcome>> {
        let Some(save) = self.save.take() else { return Ok(None) };
        if all.contains(&Progress::Working) {
            let limit = self.settings.timeout_seconds;
            if save.began.elapsed().as_secs_f64() > limit {
                let slow: Vec<_> = (0..all.len()).filter(|rank| all[*rank] == Progress::Working).collect();
                bail!(
                    "the checkpoint of step {} is not written after {limit} s (checkpoint.timeout_seconds): rank {slow:?} still \
                     writes to {}",
                    save.staging.step(),
                    self.storage.location()
                );
            }
            self.save = Some(save);
            return Ok(None);
        }
        let failed = all.contains(&Progress::Failed);
        let Save { staging, state, bytes, began, stall, phase } = save;
        let fail = |work: String| -> anyhow::Result<Option<Outcome>> {
            let texts = texts(&self.group, &work)?;
            let reasons = texts.iter().enumerate().filter(|(_, text)| !text.is_empty());
            let mut reasons: Vec<_> = reasons.map(|(rank, text)| format!("rank {rank}: {text}")).collect();
            if reasons.len() > 1 && texts.iter().all(|text| *text == texts[0]) {
                reasons = vec![texts[0].clone()];
            }
            if self.group.rank() == 0 {
                // What failed is what must be heard of.
                drop(abort_save(&*self.storage, &staging));
            }
            Ok(Some(Outcome::Failed(reasons.join("; "))))
        };
        match phase {
            Phase::Writing(work) if failed => fail(work.failure()),
            Phase::Publishing(work) if failed => fail(work.map_or(String::new(), |work| work.failure())),
            Phase::Writing(Work::Ended(Ok(written))) => {
                let work = self.hand_over(&staging, &state, written)?;
                let phase = Phase::Publishing(work);
                self.save = Some(Save { staging, state, bytes, began, stall, phase });
                Ok(None)
            }
            Phase::Writing(_) => bail!("a save of step {} was lost", staging.step()),
            Phase::Publishing(work) => {
                let step = staging.step();
                self.newest = Some(step);
                let (stall_seconds, seconds) = (stall.as_secs_f64(), began.elapsed().as_secs_f64());
                let record = CheckpointRecord { step, stall_seconds, bytes, seconds };
                Ok(Some(Outcome::Saved { record, untidy: work.and_then(Work::value).flatten() }))
            }
        }
    }

    /// Waits until the save that is under way has ended, all ranks together; `alive` is called again and again.
    pub(crate) fn settle(&mut self, alive: impl Fn()) -> anyhow::Result<Option<Outcome>> {
        while self.save.is_some() {
            alive();
            let until = Instant::now() + WORD;
            while self.progress() == Progress::Working && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            let mut all = vec![0.0f64; self.group.size()];
            all[self.group.rank()] = f64::from(self.progress() as u8);
            self.group.all_gather_in_place(&mut all)?;
            let all: Vec<_> = all.into_iter().map(Progress::from_number).collect();
            if let Some(outcome) = self.advance(&all)? {
                return Ok(Some(outcome));
            }
        }
        Ok(None)
    }

    /// Tells rank 0 of this rank's file. Rank 0 starts to make the checkpoint visible, and then to remove older ones.
    fn hand_over(
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
            (1..self.group.size()).map(|rank| self.group.recv_message(rank, MOST_ENTRY_BYTES)).collect();
        let (mut entries, mut units) = (vec![own.entry], BTreeMap::new());
        let mut gather = |more: Vec<UnitMetadata>| -> anyhow::Result<()> {
            for unit in more {
                let name = unit.name.clone();
                match units.get(&name) {
                    Some(known) if *known != unit => {
                        bail!("ranks disagree on what there is to save of `{name}`: {known:?} and {unit:?}")
                    }
                    Some(_) => {}
                    None => drop(units.insert(name, unit)),
                }
            }
            Ok(())
        };
        gather(own.units)?;
        for (index, message) in others.into_iter().enumerate() {
            let written: Written = serde_json::from_slice(&message.wait()?)
                .with_context(|| format!("what rank {} says of its file", index + 1))?;
            entries.push(written.entry);
            gather(written.units)?;
        }
        let state = TrainState { units: units.into_values().collect(), ..state.clone() };
        let (storage, staging, settings) = (self.storage.clone(), staging.clone(), self.settings.clone());
        let work = move || {
            refuse_strangers(&storage, &state)?;
            publish(&*storage, &staging, state.clone(), entries)?;
            // It took its time to reach the disk: another run may have begun meanwhile.
            refuse_strangers(&storage, &state)?;
            Ok(tidy(&*storage, staging.step(), &settings).err().map(|error| error.to_string()))
        };
        Ok(Some(Work::Running(Background::start("checkpoint", work)?)))
    }
}

/// Refuses a place that holds checkpoints, where a run is to begin that may not replace them.
pub(crate) fn refuse_checkpoints(storage: &dyn Storage) -> anyhow::Result<()> {
    if storage.published()?.is_empty() {
        return Ok(());
    }
    bail!(
        "{} holds checkpoints of an earlier run; give another place, --resume to go on from them, or --overwrite to \
         replace them",
        storage.location()
    )
}

/// Checks that another run has not begun to save at the same place: each would remove the other's checkpoints.
fn refuse_strangers(storage: &Arc<dyn Storage>, own: &TrainState) -> anyhow::Result<()> {
    let run =
        |state: &TrainState| RunDescription::deserialize(&state.settings).ok().map(|described| described.run);
    for published in storage.published()? {
        let there = Checkpoint::open(storage.clone(), published.step);
        if there.is_ok_and(|there| run(&there.manifest().state) != run(own)) {
            bail!(
                "{} holds checkpoints of another run by now; give each run a place of its own",
                storage.location()
            );
        }
    }
    Ok(())
}

/// Removes what the new checkpoint of `step` replaces: those of later steps, which are of a line that the run left or were
/// passed over as damaged, and all but the newest, of which one is always what a rollback would go back to.
fn tidy(storage: &dyn Storage, step: u64, settings: &CheckpointSettings) -> brigade_checkpoint::Result<()> {
    remove_after(storage, step)?;
    if let Some(most) = NonZeroUsize::new(settings.keep) {
        keep_latest(storage, most, |step| settings.is_regular(step))?;
    }
    Ok(())
}
