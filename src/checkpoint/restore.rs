//! Resuming from a checkpoint, all ranks from the same one.

use std::sync::Arc;

use brigade_checkpoint::{Checkpoint, Storage, TrainState, list};
use brigade_comm::Group;
use brigade_sorted::SortedMap;
use serde::Deserialize;

use super::RunDescription;
use super::models::ModelReader;
use super::progress::RunProgress;
use crate::error::{AgreedError, CheckpointUsageError};
use crate::world::all_gather_text;

/// A run that was restored from a checkpoint.
#[derive(Debug)]
pub(crate) struct Restored {
    pub progress: RunProgress,
    /// The sizes of the mesh's axes that saved it, by name.
    pub mesh: SortedMap<String, u64>,
    /// Newer checkpoints that were skipped as damaged, and why.
    pub damaged: Vec<String>,
    /// Whose inner states the workers continue from, if not each from its own.
    pub inner_states: Option<String>,
}

/// What came of a rank's attempt to restore a checkpoint.
enum RestoreOutcome {
    Restored(RunProgress, SortedMap<String, u64>),
    /// It belongs to another run.
    OtherRun,
    Damaged(String),
    /// It could not be read now, or not by this build.
    Unreadable(String),
    /// It is of another model or other data.
    Incompatible(String),
}

/// Restores the newest checkpoint of `run` whose needed parts are whole on all ranks, trying steps that are `is_preferred`
/// first; `None` if there is no checkpoint. `load` takes what a rank needs of it. All ranks call it together.
///
/// # Errors
/// [`CheckpointUsageError::Incompatible`] if it is of another model or data set, [`AgreedError`] if all are damaged, and any error
/// of the communication between ranks.
pub(crate) fn restore(
    storage: &Arc<dyn Storage>,
    group: &Group,
    (run, facts): (&str, &SortedMap<String, String>),
    is_preferred: impl Fn(u64) -> bool,
    mut load: impl FnMut(&RunProgress, &mut ModelReader<'_>) -> brigade_core::Result<()>,
) -> anyhow::Result<Option<Restored>> {
    let (mut candidates, mut damaged) = candidates(storage, group)?;
    candidates.sort_by_key(|step| !is_preferred(*step));
    for step in candidates {
        let outcome = try_restore(storage, step, Some((run, facts)), &mut load);
        let own = match &outcome {
            RestoreOutcome::Restored(..) => String::new(),
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
            (RestoreOutcome::Restored(progress, mesh), None) => {
                return Ok(Some(Restored { progress, mesh, damaged, inner_states: None }));
            }
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

/// Loads from the checkpoint of this step, which must be there. All ranks call it together, and get the same answer: the
/// inner error says what is wrong with it on which rank.
///
/// # Errors
/// Those of the communication between ranks.
pub(crate) fn restore_step(
    storage: &Arc<dyn Storage>,
    group: &Group,
    step: u64,
    mut load: impl FnMut(&RunProgress, &mut ModelReader<'_>) -> brigade_core::Result<()>,
) -> anyhow::Result<Result<(), String>> {
    let own = match try_restore(storage, step, None, &mut load) {
        RestoreOutcome::Restored(..) | RestoreOutcome::OtherRun => String::new(),
        RestoreOutcome::Damaged(why)
        | RestoreOutcome::Unreadable(why)
        | RestoreOutcome::Incompatible(why) => why,
    };
    let failed = all_gather_text(group, &own)?.into_iter().find(|text| !text.is_empty());
    Ok(failed.map_or(Ok(()), Err))
}

/// Loads from a checkpoint, which must be of this run, if one is given, and of the same facts.
fn try_restore(
    storage: &Arc<dyn Storage>,
    step: u64,
    run: Option<(&str, &SortedMap<String, String>)>,
    load: &mut dyn FnMut(&RunProgress, &mut ModelReader<'_>) -> brigade_core::Result<()>,
) -> RestoreOutcome {
    let checkpoint = match Checkpoint::open(storage.clone(), step) {
        Ok(checkpoint) => checkpoint,
        Err(error) if error.is_corruption() => return RestoreOutcome::Damaged(error.to_string()),
        Err(error) => return RestoreOutcome::Unreadable(error.to_string()),
    };
    let TrainState { position, facts: saved, counters, settings, mesh, .. } = &checkpoint.manifest().state;
    if let Some((run, facts)) = run {
        if RunDescription::deserialize(settings).is_ok_and(|description| description.run != run) {
            return RestoreOutcome::OtherRun;
        }
        for (what, here) in facts {
            match saved.get(what) {
                Some(there) if there != here => {
                    return RestoreOutcome::Incompatible(format!(
                        "its {what} was different: {there} there, {here} here"
                    ));
                }
                _ => {}
            }
        }
    }
    let progress = RunProgress::from_counters(step, *position, counters);
    match load(&progress, &mut ModelReader::new(&checkpoint, progress.added.keys())) {
        Ok(()) => RestoreOutcome::Restored(progress, mesh.clone()),
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
