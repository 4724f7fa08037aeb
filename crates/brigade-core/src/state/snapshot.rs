//! The state of training as ranges of flat buffers: what a rank saves, and how it restores a saved state.
//!
//! A unit's values and its optimizer's arrays are saved under the unit's name, which no mesh changes, in ranges from
//! which any mesh can assemble its own. Parameters that are not trained, or kept in fp32, and running state are units of their own, in whatever type
//! the others compute. What was saved is found by parameter, so a model may group them in another way than before.

use brigade_checkpoint::{PARAMETERS, ParameterMetadata, UnitMetadata as SavedUnit, WriteItem};
use brigade_sorted::{SortedMap, SortedSet};
use burn::tensor::{DType, Tensor, TensorData};

use crate::error::{Error, Result};
use crate::optim::{FlatState, SavedState};
use crate::sharding::layout::FlatLayout;
use crate::sharding::store::StoredUnit;
use crate::state::saved::{SavedParameters, StateReader, of_worker};
use crate::step::engine::UntypedEngine;
use crate::step::engine::workers::inner_steps::InnerSteps;
use crate::step::engine::workers::outer_in_flight::OuterInFlight;
use crate::step::strategy::ReductionState;

/// What one rank saves of the state at one moment. Taking it copies nothing: it keeps handles to tensors, which training replaces
/// but does not change. They are copied to the host once, on the thread that reads them.
pub struct Snapshot {
    pub(super) parts: Vec<UnitPart>,
}

/// This rank's part of a unit, which says nothing of slots and numbers before they are read.
pub(super) struct UnitPart {
    pub(super) unit: SavedUnit,
    /// Whether training does not change it.
    pub(super) is_frozen: bool,
    /// The elements that this rank alone saves, if there are any.
    pub(super) range: Option<SavedRange>,
    reduction: ReductionState,
}

/// A range of elements: their values, the update's state, and that of outer steps, which the first worker saves.
pub(super) struct SavedRange {
    pub(super) start: usize,
    /// The values, which the first worker saves.
    pub(super) values: Option<Tensor<1>>,
    /// Those of this worker, where they are others.
    local: Option<Tensor<1>>,
    update: Option<Box<dyn FlatState>>,
    outer: Option<Box<dyn FlatState>>,
}

/// The prefix of the names of the arrays that a [reduction](crate::Reduction) keeps.
const REDUCTION: &str = "reduction.";

fn reduction_slot(array: &str) -> String {
    format!("{REDUCTION}{array}")
}
/// The values that a worker alone has.
const LOCAL: &str = "local_parameters";

/// The prefix of the names of arrays and numbers of outer steps.
pub(super) const OUTER: &str = "outer.";

impl Snapshot {
    /// Bytes of all values.
    pub fn bytes(&self) -> u64 {
        let bytes = |part: &UnitPart| {
            let of_range = |SavedRange { values, local, update, outer, .. }: &SavedRange| {
                let states = [update, outer].into_iter().flatten().map(|state| state.bytes());
                let values = [values, local].into_iter().flatten().map(|values| 4 * values.dims()[0] as u64);
                values.sum::<u64>() + states.sum::<u64>()
            };
            let of_reduction = part.reduction.pieces.iter().map(|(_, state)| state.bytes());
            part.range.as_ref().map_or(0, of_range) + of_reduction.sum::<u64>()
        };
        self.parts.iter().map(bytes).sum()
    }

    /// The units that this rank saves ranges of, and the ranges' values, copied to the host.
    ///
    /// # Errors
    /// If the optimizer keeps something that cannot be saved, or a tensor cannot be read from its device.
    pub fn read(self) -> Result<(Vec<SavedUnit>, Vec<WriteItem>)> {
        let (mut units, mut pieces) = (Vec::new(), Vec::new());
        for UnitPart { mut unit, range, reduction, .. } in self.parts {
            let name = unit.name.clone();
            let mut put = |start: usize, arrays: SortedMap<String, Vec<f32>>| {
                let piece = |(slot, values)| WriteItem { unit: name.clone(), slot, start, values };
                pieces.extend(arrays.into_iter().map(piece));
            };
            for (start, state) in reduction.pieces {
                let SavedState { slots, scalars } = state.read()?;
                if let Some(number) = scalars.keys().next() {
                    let what = "a strategy's reduction only keeps arrays over the elements";
                    return Err(Error::State(format!("`{number}` cannot be saved: {what}")));
                }
                put(start, slots.into_iter().map(|(name, values)| (reduction_slot(&name), values)).collect());
            }
            let Some(SavedRange { start, values, local, update, outer }) = range else { continue };
            let read = |state: Option<Box<dyn FlatState>>| {
                state.map_or_else(|| Ok(SavedState::default()), |state| state.read())
            };
            let (SavedState { mut slots, mut scalars }, outer) = (read(update)?, read(outer)?);
            slots.extend(outer.slots.into_iter().map(|(name, values)| (format!("{OUTER}{name}"), values)));
            scalars
                .extend(outer.scalars.into_iter().map(|(name, number)| (format!("{OUTER}{name}"), number)));
            for (slot, values) in [(PARAMETERS, values), (LOCAL, local)] {
                let Some(values) = values else { continue };
                let values = values.try_into_vec_as::<f32>();
                slots.insert(slot.into(), values.map_err(|error| Error::Device(error.to_string()))?);
            }
            let arrays = reduction.arrays.iter().map(|name| reduction_slot(name));
            unit.slots = slots.keys().cloned().chain(arrays).collect();
            unit.slots.sort();
            unit.scalars = scalars;
            put(start, slots);
            // Also of a worker that has nothing of its own: it continues from that, and not from what another one has.
            units.push(unit);
        }
        Ok((units, pieces))
    }
}

impl UntypedEngine {
    /// What this rank is to save: of each unit that its stage owns, an equal share of the elements for each data-parallel
    /// rank, whoever keeps them. Of units that are not trained, only values are saved. Where workers make updates of their own, the first
    /// one saves what all have in common, and the others what they alone have.
    ///
    /// # Errors
    /// If this rank has no values of a unit, gradients have been [accumulated](crate::Engine::accumulate) since the last update, or the
    /// workers have not met since.
    pub fn snapshot(&self) -> Result<Snapshot> {
        if self.window.count > 0 {
            return Err(Error::State(format!(
                "step {} made no update, and the gradients since the last update cannot be saved; save after an \
                update",
                self.step
            )));
        }
        self.snapshot_of_update()
    }

    /// The same of the state after the last update, without the gradients that have been [accumulated](crate::Engine::accumulate) since: it is
    /// restored as that of the step that made the update, and the steps since are to be made again.
    ///
    /// # Errors
    /// If this rank has no values of a unit.
    pub fn snapshot_of_update(&self) -> Result<Snapshot> {
        self.check_synced()?;
        let worker = self.store.groups.workers.rank();
        let mut parts = Vec::new();
        for (index, stored) in self.store.units.iter().enumerate() {
            if !stored.is_owned || worker > 0 && !stored.is_updated() {
                continue;
            }
            let layout = &stored.unit.layout;
            let range = stored.counted.start.min(layout.len())..stored.counted.end.min(layout.len());
            let reduction = self.reduction.state(index, range.clone());
            let range = match range.is_empty() {
                true => None,
                false => {
                    let part = range.start - stored.own.start..range.end - stored.own.start;
                    let own = |values: Tensor<1>| values.slice(part.clone());
                    let is_first = worker == 0;
                    let local = self.local_values(index)?.map(own);
                    Some(SavedRange {
                        start: range.start,
                        values: is_first.then(|| self.model_values(index)).transpose()?.map(&own),
                        local,
                        update: self.update.state(index, range.clone()),
                        outer: is_first.then(|| self.update.outer_state(index, range)).flatten(),
                    })
                }
            };
            let unit = saved_unit(
                &stored.unit.name,
                &self.chain.blocks[stored.unit.owner_block].name,
                layout,
                stored.unit.trainable,
            );
            let unit = match worker {
                0 => unit,
                _ => SavedUnit {
                    name: format!("{}{}", of_worker(worker), unit.name),
                    parameters: Vec::new(),
                    ..unit
                },
            };
            parts.push(UnitPart { unit, is_frozen: !stored.changes(), range, reduction });
        }
        Ok(Snapshot { parts })
    }

    /// Restores the state that was saved after `step`, on whatever mesh. Of other numbers of workers, each continues from the state of the
    /// saved one whose number is its own modulo theirs. No rank waits for another one. After an error, values are
    /// mixed: training can continue only after another state has been restored completely.
    ///
    /// # Errors
    /// [`Error::State`] if what was saved is not of this model and optimizer, before anything is read, with the first difference;
    /// [`Error::Load`] if something cannot be read.
    pub fn restore(&mut self, step: u64, from: &mut dyn StateReader) -> Result<()> {
        let saved = SavedParameters::new(from);
        self.check(&saved)?;
        self.check_step(step)?;
        self.restore_units(step, &saved, from, |_| true)
    }

    /// Fails if the strategy has no state to continue from after a step.
    fn check_step(&self, step: u64) -> Result<()> {
        if let Some(rounds) =
            self.settings.strategy.rounds().filter(|rounds| !step.is_multiple_of(rounds.steps))
        {
            let steps = rounds.steps;
            return Err(Error::State(format!(
                "cannot resume from step {step}: it must be a multiple of {steps} (strategy.inner_steps (--inner-steps))"
            )));
        }
        if step > 0 && !self.settings.strategy.synchronizes(step) {
            let period = self.settings.strategy.period();
            return Err(Error::State(format!(
                "cannot resume from step {step}: it must be a multiple of {period} (train.sync_every (--sync-every))"
            )));
        }
        if let Some(every) = self.settings.strategy.inner_steps().filter(|_| !self.is_outer(step)) {
            return Err(Error::State(format!(
                "cannot resume from step {step}: it must be a multiple of {every} (strategy.inner_steps (--inner-steps))"
            )));
        }
        Ok(())
    }

    /// Restores the units of which it is asked for.
    pub(super) fn restore_units(
        &mut self,
        step: u64,
        saved: &SavedParameters,
        from: &mut dyn StateReader,
        wanted: impl Fn(&StoredUnit) -> bool,
    ) -> Result<()> {
        // As they are sorted in files: what is read goes through each file once.
        let mut order: Vec<usize> = (0..self.store.units.len()).collect();
        order.retain(|unit| wanted(&self.store.units[*unit]));
        order.sort_by(|a, b| self.store.units[*a].unit.name.cmp(&self.store.units[*b].unit.name));
        for index in order {
            self.restore_unit(index, saved, from)?;
        }
        for index in (0..self.chain.blocks.len()).filter(|index| self.stage.holds(*index)) {
            self.store.bind_parameters(index, &mut self.chain.blocks[index]);
        }
        self.running.clear();
        self.bind_running()?;
        self.step = step;
        self.inner_steps = InnerSteps::default();
        self.in_flight = OuterInFlight::default();
        self.forget_accumulated();
        self.memory.optimizer.set(self.update.state_bytes());
        Ok(())
    }

    /// Gives a unit what this rank keeps of it: its values, and the optimizer's state of the own elements.
    fn restore_unit(
        &mut self,
        index: usize,
        saved: &SavedParameters,
        from: &mut dyn StateReader,
    ) -> Result<()> {
        let stored = &self.store.units[index];
        let (layout, length) = (&stored.unit.layout, stored.unit.layout.len());
        let own = stored.own.start.min(length)..stored.own.end.min(length);
        let kept = if self.store.unshards_on_use() && !stored.unit.running { own.clone() } else { 0..length };
        let is_updated = stored.is_updated();
        let block = self.chain.blocks[stored.unit.owner_block].name.as_str();
        let name = &stored.unit.name;
        let Some(unit) = saved.unit(block, layout, stored.unit.trainable) else {
            return Err(Error::State(format!("`{name}` is not in the checkpoint")));
        };
        let worker = self.settings.worker.unwrap_or_else(|| self.store.groups.workers.rank());
        let (prefix, inner) = saved.of_worker(unit, worker);
        // What all workers have in common, and then this one's own; either as it is sorted in files.
        let is_common = |slot: &str| slot == PARAMETERS || slot.starts_with(OUTER);
        let mut wanted: Vec<(&str, &str)> = Vec::new();
        for (prefix, unit, common) in [("", unit, true), (prefix.as_str(), inner, false)] {
            let slots = unit.slots.iter().filter(|slot| is_common(slot) == common);
            wanted.extend(slots.map(|slot| (prefix, slot.as_str())));
        }
        let is_local = |slot: &str| slot == LOCAL;
        let continues_alone = self.settings.strategy.fragments().is_some();
        wanted.retain(|(_, slot)| match is_local(slot) {
            true => continues_alone,
            false => is_updated || *slot == PARAMETERS,
        });
        wanted.sort();
        let (mut values, mut local, mut reduction) = (Vec::new(), None, SavedState::default());
        let [mut update, mut outer] = [(inner, false), (unit, true)].map(|(unit, common)| {
            let own = unit.scalars.iter().filter(|(name, _)| is_common(name) == common);
            let own =
                own.map(|(name, number)| (name.strip_prefix(OUTER).unwrap_or(name).to_owned(), *number));
            SavedState { scalars: own.collect(), ..SavedState::default() }
        });
        for (prefix, slot) in wanted {
            if slot == PARAMETERS {
                values = saved.read(from, prefix, (block, layout), slot, kept.clone())?;
                continue;
            }
            if is_local(slot) {
                local = Some(saved.read(from, prefix, (block, layout), slot, kept.clone())?);
                continue;
            }
            let array = slot.strip_prefix(REDUCTION);
            let needed =
                array.map_or_else(|| own.clone(), |array| self.reduction.needs(index, array, own.clone()));
            let found = saved.read(from, prefix, (block, layout), slot, needed)?;
            let (state, name) = match (slot.strip_prefix(OUTER), array) {
                (Some(name), _) => (&mut outer, name),
                (_, Some(name)) => (&mut reduction, name),
                _ => (&mut update, slot),
            };
            state.slots.insert(name.to_owned(), found);
        }
        if is_updated {
            let device = self.store.update_device();
            let restored = self.update.restore(index, &update, device);
            let restored = restored.and_then(|()| self.update.restore_outer(index, &outer, device));
            let restored = restored.and_then(|()| self.reduction.restore(index, &reduction));
            restored.map_err(|error| Error::State(format!("`{name}`: {error}")))?;
            if continues_alone {
                let mut common = values[own.start - kept.start..own.end - kept.start].to_vec();
                let elements = stored.own.len();
                common.resize(elements, 0.0);
                let common = Tensor::from_data(TensorData::new(common, [elements]), (device, DType::F32));
                self.update.restore_common_values(index, common);
            }
        }
        self.store.restore_values(index, local.unwrap_or(values))
    }

    /// Compares what was saved with this model.
    fn check(&self, saved: &SavedParameters) -> Result<()> {
        let mut unknown: SortedSet<&str> = saved.names().collect();
        for (block, named) in self.chain.blocks.iter().enumerate() {
            for path in self.own_paths(block) {
                let (name, shape) = (format!("{}.{path}", named.name), &self.shapes[block][path]);
                unknown.remove(name.as_str());
                match saved.find(&name) {
                    Some((_, there)) if there.shape == *shape => {}
                    Some((_, there)) => {
                        return Err(Error::State(format!(
                            "the model's parameter `{name}` has the shape {shape:?}, but {:?} in the checkpoint",
                            there.shape
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
        if let Some((_, there)) = unknown.first().and_then(|name| saved.find(name)) {
            let ParameterMetadata { name, shape, .. } = there;
            return Err(Error::State(format!(
                "the checkpoint's parameter `{name}` {shape:?} is not in the model"
            )));
        }
        for stored in &self.store.units {
            let (unit, block) = (&stored.unit, &self.chain.blocks[stored.unit.owner_block].name);
            if saved.unit(block, &unit.layout, unit.trainable).is_none() {
                return Err(Error::State(format!(
                    "the parameters of `{}` differ from the checkpoint: a different set is frozen, or they were saved with different \
                    optimizer states",
                    unit.name
                )));
            }
        }
        Ok(())
    }
}

pub(super) fn saved_unit(name: &str, block: &str, layout: &FlatLayout, trainable: bool) -> SavedUnit {
    let parameter = |param: &crate::sharding::layout::FlatParam| ParameterMetadata {
        name: format!("{block}.{}", param.path),
        shape: param.shape.clone(),
        start: param.range.start,
    };
    SavedUnit {
        name: name.to_owned(),
        elements: layout.len(),
        trainable,
        parameters: layout.params().iter().map(parameter).collect(),
        slots: Vec::new(),
        scalars: SortedMap::new(),
    }
}
