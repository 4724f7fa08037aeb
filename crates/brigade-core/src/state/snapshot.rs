//! The state of training as ranges of flat buffers: what a rank saves of it, and how it goes on from what was saved.
//!
//! A unit's values and its optimizer's arrays are saved under the unit's name, which no mesh changes, in ranges that any
//! mesh can be made of again. Parameters that are not trained are units of their own.

use std::collections::BTreeMap;
use std::ops::Range;

use brigade_checkpoint::{PARAMETERS, ParameterMetadata, UnitMetadata as SavedUnit, WriteItem};
use burn::tensor::Tensor;

use crate::error::{BoxError, Error, Result};
use crate::model::activation::Activation;
use crate::optim::{FlatState, SavedState};
use crate::sharding::layout::FlatLayout;
use crate::step::engine::Engine;

/// Where saved state is read from.
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

/// What one rank saves of a moment. To take it copies nothing: it holds on to tensors, which training replaces and does not
/// change. They are copied to the host once, on whatever thread reads them.
pub struct Snapshot {
    parts: Vec<UnitPart>,
}

/// This rank's range of a unit, which says nothing of slots and numbers before they are read.
struct UnitPart {
    unit: SavedUnit,
    start: usize,
    values: Tensor<1>,
    state: Option<Box<dyn FlatState>>,
}

impl Snapshot {
    /// Bytes of all values.
    pub fn bytes(&self) -> u64 {
        let bytes = |part: &UnitPart| {
            4 * part.values.dims()[0] as u64 + part.state.as_ref().map_or(0, |state| state.bytes())
        };
        self.parts.iter().map(bytes).sum()
    }

    /// The units that this rank saves ranges of, and the ranges' values, copied to the host.
    ///
    /// # Errors
    /// If the optimizer keeps something that cannot be saved, or a tensor cannot be read from its device.
    pub fn read(self) -> Result<(Vec<SavedUnit>, Vec<WriteItem>)> {
        let (mut units, mut pieces) = (Vec::new(), Vec::new());
        for UnitPart { mut unit, start, values, state } in self.parts {
            let state = state.map_or_else(|| Ok(SavedState::default()), |state| state.read())?;
            let SavedState { mut slots, scalars } = state;
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
    /// What this rank is to save: of each unit that its stage steps, an equal share of the elements for each data-parallel
    /// rank, whoever keeps them; and of the parameters that are not trained, all on the first of these ranks.
    ///
    /// # Errors
    /// If this rank has no values of a unit.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let (rank, ranks) = (self.store.groups.dp.rank(), self.store.groups.dp.size());
        let mut parts = Vec::new();
        for (index, stored) in self.store.units.iter().enumerate() {
            if !stored.is_updated {
                continue;
            }
            let layout = &stored.unit.layout;
            let share = layout.shard(rank, ranks);
            let share = share.start.min(layout.len())..share.end.min(layout.len());
            if share.is_empty() {
                continue;
            }
            let own = self.store.own_values(index)?;
            let values = own.slice(share.start - stored.own.start..share.end - stored.own.start);
            let state = self.update.state(index, share.clone());
            let unit = saved_unit(&stored.unit.name, &self.chain.blocks[stored.unit.home].name, layout, true);
            parts.push(UnitPart { unit, start: share.start, values, state });
        }
        for block in (0..self.chain.blocks.len()).filter(|block| self.stage.holds(*block) && rank == 0) {
            let Some(unit) = self.frozen_unit(block) else { continue };
            let mut found = self.chain.blocks[block].block.values();
            let names = unit.parameters.iter().filter_map(|parameter| self.path_of(block, &parameter.name));
            let values: Vec<_> =
                names.filter_map(|path| found.remove(path)).map(|value| value.flat).collect();
            parts.push(UnitPart { unit, start: 0, values: Tensor::cat(values, 0), state: None });
        }
        Ok(Snapshot { parts })
    }

    /// Goes on from what was saved after `step`, on whatever mesh that was. No rank waits for another one. After an
    /// error values are mixed: training can go on only from another state that is restored wholly.
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
        for block in 0..self.chain.blocks.len() {
            self.restore_frozen(block, from)?;
        }
        for index in (0..self.chain.blocks.len()).filter(|index| self.stage.holds(*index)) {
            self.store.bind_parameters(index, &mut self.chain.blocks[index]);
        }
        self.step = step;
        self.memory.optimizer.set(self.update.state_bytes());
        Ok(())
    }

    /// Gives a unit what this rank keeps of it: its values, and the optimizer's state of the own elements.
    fn restore_unit(&mut self, index: usize, from: &mut dyn StateReader) -> Result<()> {
        let stored = &self.store.units[index];
        let (name, length) = (stored.unit.name.clone(), stored.unit.layout.len());
        let own = stored.own.start.min(length)..stored.own.end.min(length);
        let kept = if self.store.unshards_on_use() { own.clone() } else { 0..length };
        let is_updated = stored.is_updated;
        let Some(SavedUnit { mut slots, scalars, .. }) = from.unit(&name).cloned() else {
            return Err(Error::State(format!("`{name}` is not in the checkpoint")));
        };
        slots.retain(|slot| is_updated || slot == PARAMETERS);
        slots.sort();
        let (mut values, mut state) = (Vec::new(), SavedState { scalars, ..SavedState::default() });
        for slot in slots {
            match slot == PARAMETERS {
                true => values = read(from, &name, &slot, kept.clone())?,
                false => drop(state.slots.insert(slot.clone(), read(from, &name, &slot, own.clone())?)),
            }
        }
        if is_updated {
            self.update.restore(index, &name, &state, self.store.update_device())?;
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
            let unit = saved_unit(&stored.unit.name, home, &stored.unit.layout, true);
            let same = from.unit(&unit.name).is_some_and(|saved| {
                saved.parameters == unit.parameters
                    && saved.trainable
                    && saved.slots.iter().any(|slot| slot == PARAMETERS)
            });
            if !same {
                return Err(Error::State(format!(
                    "the trained parameters of `{}` are not those of the checkpoint: another part of them is frozen or shared",
                    unit.name
                )));
            }
        }
        Ok(())
    }

    /// The parameters of a block that are not trained and have values of their own, as a unit.
    fn frozen_unit(&self, block: usize) -> Option<SavedUnit> {
        let named = &self.chain.blocks[block];
        let mut values = named.block.values();
        values.retain(|_, value| !value.trainable);
        let own = self.own_paths(block).filter(|path| values.contains_key(*path));
        let layout = FlatLayout::new(own.map(|path| (path.clone(), self.shapes[block][path].clone())));
        if layout.is_empty() {
            return None;
        }
        Some(saved_unit(&format!("{}:frozen", named.name), &named.name, &layout, false))
    }

    /// A parameter's path in its block.
    fn path_of<'a>(&self, block: usize, full: &'a str) -> Option<&'a str> {
        full.strip_prefix(&self.chain.blocks[block].name)?.strip_prefix('.')
    }

    /// Gives a block's parameters that are not trained, and what reads them on this rank, their saved values.
    fn restore_frozen(&mut self, block: usize, from: &mut dyn StateReader) -> Result<()> {
        let name = format!("{}:frozen", self.chain.blocks[block].name);
        let Some(saved) = from.unit(&name).cloned() else { return Ok(()) };
        for parameter in &saved.parameters {
            let Some(path) = self.path_of(block, &parameter.name).map(str::to_owned) else { continue };
            let readers = self.ties.iter().filter(|tie| tie.owner == (block, path.clone()));
            let mut readers: Vec<_> = readers.map(|tie| tie.follower.clone()).collect();
            readers.push((block, path));
            readers.retain(|(block, _)| self.stage.holds(*block));
            if readers.is_empty() {
                continue;
            }
            let elements: usize = parameter.shape.iter().product();
            let values = read(from, &name, PARAMETERS, parameter.start..parameter.start + elements)?;
            let flat = Tensor::from_floats(values.as_slice(), &self.store.device);
            for (block, path) in readers {
                self.chain.blocks[block]
                    .block
                    .replace(&mut |own| (own == path).then(|| (flat.clone(), parameter.shape.clone())));
            }
        }
        Ok(())
    }
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
