//! Going on from a checkpoint, all ranks from the same one.

use std::collections::BTreeMap;
use std::sync::Arc;

use brigade_checkpoint::{Checkpoint, Storage, TrainState, UnitMetadata, list};
use brigade_comm::Group;
use brigade_core::{Activation, BoxError, Engine, StateReader};
use serde::Deserialize;

use super::RunDescription;
use crate::error::{Agreed, Unfit};
use crate::world::texts;

/// How far a run has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Point {
    /// Steps done.
    pub step: u64,
    /// Batches of data consumed: more than steps, where some were left behind by going back.
    pub position: u64,
    /// Steps that were skipped or gone back from, because something was not finite.
    pub nonfinite: u64,
}

/// The counter of [`Point::nonfinite`] in a checkpoint.
const NONFINITE: &str = "nonfinite";

impl Point {
    pub(crate) fn counters(self) -> BTreeMap<String, u64> {
        BTreeMap::from([(NONFINITE.into(), self.nonfinite)])
    }
}

/// Where a run goes on.
pub(crate) struct Resumption {
    pub point: Point,
    /// Newer checkpoints that are damaged, with what is wrong.
    pub damaged: Vec<String>,
}

/// How a rank fared with a checkpoint.
enum Tried {
    Restored(Point),
    /// It is another run's.
    Foreign,
    Damaged(String),
    /// It could not be read now, or not by this build.
    Unreadable(String),
    /// It is of another model or other data.
    Other(String),
}

/// Restores the newest checkpoint of `run` that all ranks find whole in what they need of it, those first whose step
/// `is_preferred`; none where there is none at all. All ranks call it together.
///
/// # Errors
/// [`Unfit`], if it is another model's or another data set's; [`Agreed`], if all are damaged; if ranks cannot talk.
pub(crate) fn restore<I, O, T>(
    engine: &mut Engine<I, O, T>,
    storage: &Arc<dyn Storage>,
    group: &Group,
    (run, facts): (&str, &BTreeMap<String, String>),
    is_preferred: impl Fn(u64) -> bool,
) -> anyhow::Result<Option<Resumption>>
where
    I: Activation + Clone,
    O: Activation,
    T: Clone,
{
    let (mut candidates, mut damaged) = candidates(storage, group)?;
    candidates.sort_by_key(|step| !is_preferred(*step));
    for step in candidates {
        let tried = attempt(engine, storage, step, run, facts);
        let word = match &tried {
            Tried::Restored(_) => String::new(),
            Tried::Foreign => "foreign".into(),
            Tried::Unreadable(why) => format!("unreadable {why}"),
            Tried::Damaged(why) => format!("damaged {why}"),
            Tried::Other(why) => format!("other {why}"),
        };
        let words = texts(group, &word)?;
        let found = |kind: &str| words.iter().find_map(|word| word.strip_prefix(kind).map(str::to_owned));
        if let Some(why) = found("other ") {
            let location = storage.location();
            return Err(Unfit(format!("cannot go on from step {step} of {location}: {why}")).into());
        }
        if let Some(why) = found("unreadable ") {
            return Err(Agreed(format!("cannot read step {step} of {}: {why}", storage.location())).into());
        }
        if found("foreign").is_some() {
            continue;
        }
        match (tried, found("damaged ")) {
            (Tried::Restored(point), None) => return Ok(Some(Resumption { point, damaged })),
            (_, why) => damaged.push(format!("the checkpoint of step {step}: {}", why.unwrap_or_default())),
        }
    }
    if damaged.is_empty() {
        return Ok(None);
    }
    let location = storage.location();
    Err(Agreed(format!("{location} holds no whole checkpoint: {}", damaged.join("; "))).into())
}

/// The steps of the checkpoints that rank 0 sees, newest first, and what it sees to be wrong with others.
fn candidates(storage: &Arc<dyn Storage>, group: &Group) -> anyhow::Result<(Vec<u64>, Vec<String>)> {
    let mut told = String::new();
    if group.rank() == 0 {
        match list(&**storage) {
            Err(error) => told = format!("!{error}"),
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
                told = all.into_iter().map(line).collect();
            }
        }
    }
    let told = texts(group, &told)?.swap_remove(0);
    if let Some(why) = told.lines().find_map(|line| line.strip_prefix('!')) {
        return Err(Agreed(format!("{}: {why}", storage.location())).into());
    }
    let (mut steps, mut damaged) = (Vec::new(), Vec::new());
    for line in told.lines() {
        match line.trim().parse() {
            Ok(step) => steps.push(step),
            Err(_) => damaged.push(line.trim().to_owned()),
        }
    }
    Ok((steps, damaged))
}

fn attempt<I, O, T>(
    engine: &mut Engine<I, O, T>,
    storage: &Arc<dyn Storage>,
    step: u64,
    run: &str,
    facts: &BTreeMap<String, String>,
) -> Tried
where
    I: Activation + Clone,
    O: Activation,
    T: Clone,
{
    let checkpoint = match Checkpoint::open(storage.clone(), step) {
        Ok(checkpoint) => checkpoint,
        Err(error) if error.is_corruption() => return Tried::Damaged(error.to_string()),
        Err(error) => return Tried::Unreadable(error.to_string()),
    };
    let TrainState { position, facts: saved, counters, settings, .. } = &checkpoint.manifest().state;
    if RunDescription::deserialize(settings).is_ok_and(|description| description.run != run) {
        return Tried::Foreign;
    }
    for (what, here) in facts {
        match saved.get(what) {
            Some(there) if there != here => {
                return Tried::Other(format!("its {what} was another: {there} there, {here} here"));
            }
            _ => {}
        }
    }
    let nonfinite = counters.get(NONFINITE).copied().unwrap_or_default();
    let point = Point { step, position: *position, nonfinite };
    match engine.restore(step, &mut Reading(&checkpoint)) {
        Ok(()) => Tried::Restored(point),
        Err(brigade_core::Error::State(why)) => Tried::Other(why),
        Err(brigade_core::Error::Load(error)) => {
            let is_corruption = |error: &brigade_checkpoint::Error| error.is_corruption();
            match error.downcast_ref().is_some_and(is_corruption) {
                true => Tried::Damaged(error.to_string()),
                false => Tried::Unreadable(error.to_string()),
            }
        }
        Err(error) => Tried::Unreadable(error.to_string()),
    }
}

/// A checkpoint as the engine reads it.
struct Reading<'a>(&'a Checkpoint);

impl StateReader for Reading<'_> {
    fn unit(&self, name: &str) -> Option<&UnitMetadata> {
        self.units().iter().find(|unit| unit.name == name)
    }

    fn units(&self) -> &[UnitMetadata] {
        &self.0.manifest().state.units
    }

    fn read(&mut self, unit: &str, slot: &str, start: usize, values: &mut [f32]) -> Result<(), BoxError> {
        Ok(self.0.read(unit, slot, start..start + values.len(), values)?)
    }
}
