//! The state of training as ranges of flat buffers: what a rank saves, and how it restores a saved state.
//!
//! A unit's values and its optimizer's arrays are saved under the unit's name, which no mesh changes, in ranges from
//! which any mesh can assemble its own. Parameters that are not trained are units of their own.

use std::collections::BTreeMap;
use std::ops::Range;

use brigade_checkpoint::{PARAMETERS, ParameterMetadata, UnitMetadata as SavedUnit, WriteItem};
use burn::tensor::Tensor;

use crate::error::{BoxError, Error, Result};
use crate::model::activation::Activation;
use crate::optim::{FlatState, SavedState};
use crate::sharding::layout::FlatLayout;
use crate::step::engine::Engine;

/// Reads saved state.
pub trait StateReader {
    /// What was saved under a unit's name.
    fn unit(&self, name: &str) -> Option<&SavedUnit>;

    /// All units that were saved.
    fn units(&self) -> &[SavedUnit];

    /// Fills `values` with the elements of a slot from `start` on.
    ///
    /// # Errors
    /// If they cannot be read, or are not what was written.
    fn read(&mut self, unit: &str, slot: &str, start: usize, values: &mut [f32]) -> Result<(), BoxError>;
}

/// What one rank saves of the state at one moment. Taking it copies nothing: it keeps handles to tensors, which training replaces
/// but does not change. They are copied to the host once, on the thread that reads them.
pub struct Snapshot {
    parts: Vec<UnitPart>,
}

/// This rank's range of a unit, which says nothing of slots and numbers before they are read.
struct UnitPart {
    unit: SavedUnit,
    start: usize,
    values: Tensor<1>,
    /// The reduction's and the update's state.
    reduction: Option<Box<dyn FlatState>>,
    update: Option<Box<dyn FlatState>>,
}

/// What stands before the names of the arrays that a [reduction](crate::Reduction) keeps.
const REDUCTION: &str = "reduction.";

impl Snapshot {
    /// Bytes of all values.
    pub fn bytes(&self) -> u64 {
        let bytes = |part: &UnitPart| {
            let states = [&part.reduction, &part.update].into_iter().flatten();
            4 * part.values.dims()[0] as u64 + states.map(|state| state.bytes()).sum::<u64>()
        };
        self.parts.iter().map(bytes).sum()
    }

    /// The units that this rank saves ranges of, and the ranges' values, copied to the host.
    ///
    /// # Errors
    /// If the optimizer keeps something that cannot be saved, or a tensor cannot be read from its device.
    pub fn read(self) -> Result<(Vec<SavedUnit>, Vec<WriteItem>)> {
        let (mut units, mut pieces) = (Vec::new(), Vec::new());
        for UnitPart { mut unit, start, values, reduction, update } in self.parts {
            let read = |state: Option<Box<dyn FlatState>>| {
                state.map_or_else(|| Ok(SavedState::default()), |state| state.read())
            };
            let SavedState { mut slots, scalars } = read(update)?;
            let kept = read(reduction)?.slots.into_iter();
            slots.extend(kept.map(|(name, values)| (format!("{REDUCTION}{name}"), values)));
            let values = values.try_into_vec_as::<f32>().map_err(|error| Error::Device(error.to_string()))?;
            slots.insert(PARAMETERS.into(), values);
            (unit.slots, unit.scalars) = (slots.keys().cloned().collect(), scalars);
            let piece = |(slot, values)| WriteItem { unit: unit.name.clone(), slot, start, values };
            pieces.extend(slots.into_iter().map(piece));
            units.push(unit);
        }
        Ok((units, pieces))
    }
}

impl<I, O, T> Engine<I, O, T>
where
    I: Activation + Clone,
    O: Activation,
    T: Clone,
{
    /// What this rank is to save: of each unit that its stage owns, an equal share of the elements for each data-parallel
    /// rank, whoever keeps them. Of units that are not trained, only values are saved.
    ///
    /// # Errors
    /// If this rank has no values of a unit.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let mut parts = Vec::new();
        for (index, stored) in self.store.units.iter().enumerate() {
            if !stored.is_owned {
                continue;
            }
            let layout = &stored.unit.layout;
            let share = stored.counted.start.min(layout.len())..stored.counted.end.min(layout.len());
            if share.is_empty() {
                continue;
            }
            let own = self.store.own_values(index)?;
            let values = own.slice(share.start - stored.own.start..share.end - stored.own.start);
            let reduction = self.reduction.state(index, share.clone());
            let update = self.update.state(index, share.clone());
            let unit = saved_unit(
                &stored.unit.name,
                &self.chain.blocks[stored.unit.home].name,
                layout,
                stored.unit.trainable,
            );
            parts.push(UnitPart { unit, start: share.start, values, reduction, update });
        }
        Ok(Snapshot { parts })
    }

    /// Restores the state that was saved after `step`, on whatever mesh. No rank waits for another one. After an error, values are
    /// mixed: training can continue only after another state has been restored completely.
    ///
    /// # Errors
    /// [`Error::State`] if what was saved is not of this model and optimizer, before anything is read, with the first difference;
    /// [`Error::Load`] if something cannot be read.
    pub fn restore(&mut self, step: u64, from: &mut dyn StateReader) -> Result<()> {
        self.check(from)?;
        // As they are sorted in files: what is read goes through each file once.
        let mut order: Vec<usize> = (0..self.store.units.len()).collect();
        order.sort_by(|a, b| self.store.units[*a].unit.name.cmp(&self.store.units[*b].unit.name));
        for index in order {
            self.restore_unit(index, from)?;
        }
        for index in (0..self.chain.blocks.len()).filter(|index| self.stage.holds(*index)) {
            self.store.bind_parameters(index, &mut self.chain.blocks[index]);
        }
        self.step = step;
        self.forget_accumulated();
        self.memory.optimizer.set(self.update.state_bytes());
        Ok(())
    }

    /// Gives a unit what this rank keeps of it: its values, and the optimizer's state of the own elements.
    fn restore_unit(&mut self, index: usize, from: &mut dyn StateReader) -> Result<()> {
        let stored = &self.store.units[index];
        let (name, length) = (stored.unit.name.clone(), stored.unit.layout.len());
        let own = stored.own.start.min(length)..stored.own.end.min(length);
        let kept = if self.store.unshards_on_use() { own.clone() } else { 0..length };
        if !stored.unit.trainable {
            let home = &self.chain.blocks[stored.unit.home].name;
            let values = read_frozen(from, home, &stored.unit.layout, kept)?;
            return self.store.restore_values(index, values);
        }
        let is_updated = stored.is_updated();
        let Some(SavedUnit { mut slots, scalars, .. }) = from.unit(&name).cloned() else {
            return Err(Error::State(format!("`{name}` is not in the checkpoint")));
        };
        slots.retain(|slot| is_updated || slot == PARAMETERS);
        slots.sort();
        let (mut values, mut update) = (Vec::new(), SavedState { scalars, ..SavedState::default() });
        let mut reduction = SavedState::default();
        for slot in slots {
            if slot == PARAMETERS {
                values = read(from, &name, &slot, kept.clone())?;
                continue;
            }
            let found = read(from, &name, &slot, own.clone())?;
            match slot.strip_prefix(REDUCTION) {
                Some(own) => reduction.slots.insert(own.to_owned(), found),
                None => update.slots.insert(slot, found),
            };
        }
        if is_updated {
            let restored = self.update.restore(index, &update, self.store.update_device());
            let restored = restored.and_then(|()| self.reduction.restore(index, &reduction));
            restored.map_err(|error| Error::State(format!("`{name}`: {error}")))?;
        }
        self.store.restore_values(index, values)
    }

    /// Compares what was saved with this model.
    fn check(&self, from: &dyn StateReader) -> Result<()> {
        let saved = from.units().iter().flat_map(|unit| &unit.parameters);
        let mut saved: BTreeMap<&str, &[usize]> =
            saved.map(|parameter| (parameter.name.as_str(), parameter.shape.as_slice())).collect();
        for (block, named) in self.chain.blocks.iter().enumerate() {
            for path in self.own_paths(block) {
                let (name, shape) = (format!("{}.{path}", named.name), self.shapes[block][path].as_slice());
                match saved.remove(name.as_str()) {
                    Some(there) if there == shape => {}
                    Some(there) => {
                        return Err(Error::State(format!(
                            "the model's parameter `{name}` has the shape {shape:?}, but {there:?} in the checkpoint"
                        )));
                    }
                    None => {
                        return Err(Error::State(format!(
                            "the model's parameter `{name}` {shape:?} is not in the checkpoint"
                        )));
                    }
                }
            }
        }
        if let Some((name, shape)) = saved.first_key_value() {
            return Err(Error::State(format!(
                "the checkpoint's parameter `{name}` {shape:?} is not in the model"
            )));
        }
        for stored in &self.store.units {
            let home = &self.chain.blocks[stored.unit.home].name;
            let unit = saved_unit(&stored.unit.name, home, &stored.unit.layout, stored.unit.trainable);
            let has_values = |saved: &SavedUnit| saved.slots.iter().any(|slot| slot == PARAMETERS);
            let same = match unit.trainable {
                true => from.unit(&unit.name).is_some_and(|saved| {
                    saved.parameters == unit.parameters && saved.trainable && has_values(saved)
                }),
                false => unit.parameters.iter().all(|parameter| {
                    frozen_parameter(from, &parameter.name).is_some_and(|(saved, _)| has_values(saved))
                }),
            };
            if !same {
                return Err(Error::State(format!(
                    "the trained parameters of `{}` are not those of the checkpoint: another part of them is frozen or shared",
                    unit.name
                )));
            }
        }
        Ok(())
    }
}

/// The unit that holds a parameter which was not trained when it was saved, and the parameter's place in it.
fn frozen_parameter<'a>(
    from: &'a dyn StateReader,
    name: &str,
) -> Option<(&'a SavedUnit, &'a ParameterMetadata)> {
    let frozen = from.units().iter().filter(|unit| !unit.trainable);
    frozen
        .flat_map(|unit| unit.parameters.iter().map(move |found| (unit, found)))
        .find(|(_, found)| found.name == name)
}

/// Some elements of a unit that is not trained, parameter by parameter: they need not have been saved as one unit.
fn read_frozen(
    from: &mut dyn StateReader,
    home: &str,
    layout: &FlatLayout,
    range: Range<usize>,
) -> Result<Vec<f32>> {
    let mut values = Vec::with_capacity(range.len());
    for param in layout.params() {
        let part = param.range.start.max(range.start)..param.range.end.min(range.end);
        if part.is_empty() {
            continue;
        }
        let name = format!("{home}.{}", param.path);
        let Some((unit, start)) =
            frozen_parameter(from, &name).map(|(unit, found)| (unit.name.clone(), found.start))
        else {
            return Err(Error::State(format!("`{name}` is not in the checkpoint")));
        };
        let first = start + part.start - param.range.start;
        values.extend(read(from, &unit, PARAMETERS, first..first + part.len())?);
    }
    Ok(values)
}

fn read(from: &mut dyn StateReader, unit: &str, slot: &str, range: Range<usize>) -> Result<Vec<f32>> {
    let mut values = vec![0.0; range.len()];
    from.read(unit, slot, range.start, &mut values).map_err(Error::Load)?;
    Ok(values)
}

fn saved_unit(name: &str, home: &str, layout: &FlatLayout, trainable: bool) -> SavedUnit {
    let parameter = |param: &crate::sharding::layout::FlatParam| ParameterMetadata {
        name: format!("{home}.{}", param.path),
        shape: param.shape.clone(),
        start: param.range.start,
    };
    SavedUnit {
        name: name.to_owned(),
        elements: layout.len(),
        trainable,
        parameters: layout.params().iter().map(parameter).collect(),
        slots: Vec::new(),
        scalars: BTreeMap::new(),
    }
}
