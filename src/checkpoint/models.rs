//! The models of a run in one checkpoint. The units and parameters of additional models have the model's name as a prefix.

use std::ops::Range;

use brigade_checkpoint::{Checkpoint, ItemMetadata, UnitMetadata, WriteItem};
use brigade_core::{BoxError, Snapshot, StateReader};

/// Stands for the first model of a run, which has no name.
pub(crate) const FIRST_MODEL: &str = "";

/// Elements that are read at once to see whether they are whole.
const PIECE: usize = 1 << 20;

/// What a rank is to save of one model.
pub(crate) struct ModelSnapshot {
    /// Its name, or [`FIRST_MODEL`].
    pub model: String,
    pub snapshot: Snapshot,
}

/// The prefix of the names of a model's units and parameters.
fn prefix(model: &str) -> String {
    if model == FIRST_MODEL { String::new() } else { format!("{model}/") }
}

impl ModelSnapshot {
    /// Copies the values to the host, under the names of the checkpoint.
    pub(super) fn read(self) -> brigade_core::Result<(Vec<UnitMetadata>, Vec<WriteItem>)> {
        let (mut units, mut items) = self.snapshot.read()?;
        let prefix = prefix(&self.model);
        units.iter_mut().for_each(|unit| rename(unit, &prefix));
        items.iter_mut().for_each(|item| item.unit.insert_str(0, &prefix));
        Ok((units, items))
    }

    /// Takes out what training does not change.
    pub(super) fn take_frozen(&mut self) -> Self {
        Self { model: self.model.clone(), snapshot: self.snapshot.take_frozen() }
    }

    /// Of what was [taken out](Self::take_frozen), the units that [`read`](Self::read) gives, with the elements that this rank saves.
    pub(super) fn frozen_ranges(&self) -> Vec<(UnitMetadata, Range<usize>)> {
        let mut ranges = self.snapshot.frozen_ranges();
        let prefix = prefix(&self.model);
        ranges.iter_mut().for_each(|(unit, _)| rename(unit, &prefix));
        ranges
    }
}

/// Gives a unit and its parameters their names in the checkpoint.
fn rename(unit: &mut UnitMetadata, prefix: &str) {
    unit.name.insert_str(0, prefix);
    unit.parameters.iter_mut().for_each(|parameter| parameter.name.insert_str(0, prefix));
}

/// A checkpoint as the engine of one model after the other reads it.
pub(crate) struct ModelReader<'a> {
    checkpoint: &'a Checkpoint,
    /// The prefixes of the additional models in the checkpoint.
    further: Vec<String>,
    prefix: String,
    units: Vec<UnitMetadata>,
}

impl<'a> ModelReader<'a> {
    pub(super) fn new<'n>(checkpoint: &'a Checkpoint, further: impl Iterator<Item = &'n String>) -> Self {
        let further = further.map(|model| prefix(model)).collect();
        Self { checkpoint, further, prefix: String::new(), units: Vec::new() }
    }

    /// What the checkpoint has of one model.
    pub(crate) fn of(&mut self, model: &str) -> &mut dyn StateReader {
        self.prefix = prefix(model);
        let is_others = |name: &str| self.further.iter().any(|prefix| name.starts_with(prefix));
        let units = self.checkpoint.manifest().state.units.iter();
        let found = units.filter_map(|unit| {
            let name = match model {
                FIRST_MODEL => (!is_others(&unit.name)).then_some(unit.name.as_str()),
                _ => unit.name.strip_prefix(&self.prefix),
            };
            let mut unit = UnitMetadata { name: name?.to_owned(), ..unit.clone() };
            for parameter in &mut unit.parameters {
                parameter.name =
                    parameter.name.strip_prefix(&self.prefix).unwrap_or(&parameter.name).to_owned();
            }
            Some(unit)
        });
        self.units = found.collect();
        self
    }

    /// Reads a rank's share of what belongs to additional models, which are made later: no other checkpoint can take the place of a damaged one
    /// then.
    ///
    /// # Errors
    /// [`Load`](brigade_core::Error::Load), with the checkpoint's error.
    pub(crate) fn check_further(&self, rank: usize, ranks: usize) -> brigade_core::Result<()> {
        let items = self.checkpoint.manifest().files.iter().flat_map(|file| &file.items);
        let is_further = |item: &&ItemMetadata| self.further.iter().any(|of| item.unit.starts_with(of));
        let mut values = Vec::new();
        for ItemMetadata { unit, slot, start, elements, .. } in
            items.filter(is_further).skip(rank).step_by(ranks)
        {
            for from in (0..*elements).step_by(PIECE) {
                let range = start + from..start + elements.min(&(from + PIECE));
                values.resize(range.len(), 0.0);
                let read = self.checkpoint.read(unit, slot, range, &mut values);
                read.map_err(|error| brigade_core::Error::Load(error.into()))?;
            }
        }
        Ok(())
    }
}

impl StateReader for ModelReader<'_> {
    fn units(&self) -> &[UnitMetadata] {
        &self.units
    }

    fn read(&mut self, unit: &str, slot: &str, start: usize, values: &mut [f32]) -> Result<(), BoxError> {
        let unit = format!("{}{unit}", self.prefix);
        Ok(self.checkpoint.read(&unit, slot, start..start + values.len(), values)?)
    }
}
