//! Resuming from a checkpoint, all ranks from the same one.

use std::collections::BTreeMap;
use std::sync::Arc;

use brigade_checkpoint::{Checkpoint, Storage, TrainState, UnitMetadata, list};
use brigade_comm::Group;
use brigade_core::{Activation, BoxError, Engine, StateReader};
use serde::Deserialize;

use super::RunDescription;
use crate::error::{AgreedError, CheckpointUsageError};
use crate::world::all_gather_text;

/// How far a run has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RunProgress {
    /// Steps done.
    pub step: u64,
    /// Batches of data consumed: more than `step` once batches were skipped or rolled back.
    pub position: u64,
    /// Steps that were skipped or rolled back because a value was not finite.
    pub nonfinite: u64,
}

/// The counter of [`RunProgress::nonfinite`] in a checkpoint.
const NONFINITE: &str = "nonfinite";

impl RunProgress {
    pub(crate) fn counters(self) -> BTreeMap<String, u64> {
        BTreeMap::from([(NONFINITE.into(), self.nonfinite)])
    }
}

/// A run that was restored from a checkpoint.
pub(crate) struct Restored {
    pub progress: RunProgress,
    /// Newer checkpoints that were passed over as damaged, and why.
    pub damaged: Vec<String>,
}

/// What came of a rank's attempt to restore a checkpoint.
enum RestoreOutcome {
    Restored(RunProgress),
    /// It belongs to another run.
    OtherRun,
    Damaged(String),
    /// It could not be read now, or not by this build.
    Unreadable(String),
    /// It is of another model or other data.
    Incompatible(String),
}

/// Restores the newest checkpoint of `run` whose needed parts are whole on all ranks, trying steps that are `is_preferred`
/// first; `None` if there is no checkpoint. All ranks call it together.
///
/// # Errors
/// [`CheckpointUsageError::Incompatible`] if it is of another model or data set, [`AgreedError`] if all are damaged, and any error
/// of the communication between ranks.
pub(crate) fn restore<I, O, T>(
    engine: &mut Engine<I, O, T>,
    storage: &Arc<dyn Storage>,
    group: &Group,
    (run, facts): (&str, &BTreeMap<String, String>),
    is_preferred: impl Fn(u64) -> bool,
) -> anyhow::Result<Option<Restored>>
where
    I: Activation + Clone,
    O: Activation,
    T: Clone,
{
    let (mut candidates, mut damaged) = candidates(storage, group)?;
    candidates.sort_by_key(|step| !is_preferred(*step));
    for step in candidates {
        let outcome = try_restore(engine, storage, step, run, facts);
        let own = match &outcome {
            RestoreOutcome::Restored(_) => String::new(),
            RestoreOutcome::OtherRun => "other-run".into(),
            RestoreOutcome::Unreadable(why) => format!("unreadable {why}"),
            RestoreOutcome::Damaged(why) => format!("damaged {why}"),
            RestoreOutcome::Incompatible(why) => format!("incompatible {why}"),
        };
        let all = all_gather_text(group, &own)?;
        let found = |kind: &str| all.iter().find_map(|text| text.strip_prefix(kind).map(str::to_owned));
        if let Some(why) = found("incompatible ") {
            let location = storage.location();
            return Err(CheckpointUsageError::Incompatible(format!(
                "cannot resume from step {step} of {location}: {why}"
            ))
            .into());
        }
        if let Some(why) = found("unreadable ") {
            return Err(
                AgreedError(format!("cannot read step {step} of {}: {why}", storage.location())).into()
            );
        }
        if found("other-run").is_some() {
            continue;
        }
        match (outcome, found("damaged ")) {
            (RestoreOutcome::Restored(progress), None) => return Ok(Some(Restored { progress, damaged })),
            (_, why) => damaged.push(format!("the checkpoint of step {step}: {}", why.unwrap_or_default())),
        }
    }
    if damaged.is_empty() {
        return Ok(None);
    }
    let location = storage.location();
    Err(AgreedError(format!("{location} holds no whole checkpoint: {}", damaged.join("; "))).into())
}

/// The steps of the checkpoints that rank 0 sees, newest first, and what is wrong with the damaged ones.
fn candidates(storage: &Arc<dyn Storage>, group: &Group) -> anyhow::Result<(Vec<u64>, Vec<String>)> {
    let mut listing = String::new();
    if group.rank() == 0 {
        match list(&**storage) {
            Err(error) => listing = format!("!{error}"),
            Ok(all) => {
                let line = |found: brigade_checkpoint::ListedCheckpoint| match found.summary {
                    Err(error) if !error.is_corruption() => {
                        format!("!step {}: {error}", found.step).replace('\n', " ") + "\n"
                    }
                    Ok(_) => format!("{}\n", found.step),
                    Err(error) => {
                        format!("the checkpoint of step {}: {error}\n", found.step).replace('\n', " ") + "\n"
                    }
                };
                listing = all.into_iter().map(line).collect();
            }
        }
    }
    let listing = all_gather_text(group, &listing)?.swap_remove(0);
    if let Some(why) = listing.lines().find_map(|line| line.strip_prefix('!')) {
        return Err(AgreedError(format!("{}: {why}", storage.location())).into());
    }
    let (mut steps, mut damaged) = (Vec::new(), Vec::new());
    for line in listing.lines() {
        match line.trim().parse() {
            Ok(step) => steps.push(step),
            Err(_) => damaged.push(line.trim().to_owned()),
        }
    }
    Ok((steps, damaged))
}

fn try_restore<I, O, T>(
    engine: &mut Engine<I, O, T>,
    storage: &Arc<dyn Storage>,
    step: u64,
    run: &str,
    facts: &BTreeMap<String, String>,
) -> RestoreOutcome
where
    I: Activation + Clone,
    O: Activation,
    T: Clone,
{
    let checkpoint = match Checkpoint::open(storage.clone(), step) {
        Ok(checkpoint) => checkpoint,
        Err(error) if error.is_corruption() => return RestoreOutcome::Damaged(error.to_string()),
        Err(error) => return RestoreOutcome::Unreadable(error.to_string()),
    };
    let TrainState { position, facts: saved, counters, settings, .. } = &checkpoint.manifest().state;
    if RunDescription::deserialize(settings).is_ok_and(|description| description.run != run) {
        return RestoreOutcome::OtherRun;
    }
    for (what, here) in facts {
        match saved.get(what) {
            Some(there) if there != here => {
                return RestoreOutcome::Incompatible(format!(
                    "its {what} was another: {there} there, {here} here"
                ));
            }
            _ => {}
        }
    }
    let nonfinite = counters.get(NONFINITE).copied().unwrap_or_default();
    let progress = RunProgress { step, position: *position, nonfinite };
    match engine.restore(step, &mut CheckpointReader(&checkpoint)) {
        Ok(()) => RestoreOutcome::Restored(progress),
        Err(brigade_core::Error::State(why)) => RestoreOutcome::Incompatible(why),
        Err(brigade_core::Error::Load(error)) => {
            let is_corruption = |error: &brigade_checkpoint::Error| error.is_corruption();
            match error.downcast_ref().is_some_and(is_corruption) {
                true => RestoreOutcome::Damaged(error.to_string()),
                false => RestoreOutcome::Unreadable(error.to_string()),
            }
        }
        Err(error) => RestoreOutcome::Unreadable(error.to_string()),
    }
}

/// A checkpoint as the engine reads it.
struct CheckpointReader<'a>(&'a Checkpoint);

impl StateReader for CheckpointReader<'_> {
    fn units(&self) -> &[UnitMetadata] {
        &self.0.manifest().state.units
    }

    fn read(&mut self, unit: &str, slot: &str, start: usize, values: &mut [f32]) -> Result<(), BoxError> {
        Ok(self.0.read(unit, slot, start..start + values.len(), values)?)
    }
}
