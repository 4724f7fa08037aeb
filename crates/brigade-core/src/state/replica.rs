//! The state of a rank for the rank at the same position in another worker's world, which is to continue as this one does.

use brigade_checkpoint::{PARAMETERS, UnitMetadata, WriteItem};

use crate::error::{Error, Result};
use crate::optim::SavedState;
use crate::state::saved::{SavedParameters, StateReader};
use crate::state::snapshot::{OUTER, saved_unit};
use crate::step::engine::UntypedEngine;

impl UntypedEngine {
    /// What this rank keeps of each unit that changes in training, copied to the host: the units, and ranges of their arrays. A rank at the same
    /// position of a mesh like this one [continues](Self::restore_replica) from it. All ranks of this mesh call it together.
    ///
    /// # Errors
    /// Between two outer steps, if a collective fails, or a tensor cannot be read from its device.
    pub fn replica(&self) -> Result<(Vec<UnitMetadata>, Vec<WriteItem>)> {
        self.check_synced()?;
        if self.settings.strategy.fragments().is_some() {
            return Err(Error::State(
                "with fragments, workers hold different values, so another worker cannot take over this state".into(),
            ));
        }
        let (mut units, mut items) = (Vec::new(), Vec::new());
        for (index, stored) in self.store.units.iter().enumerate() {
            if !stored.changes() {
                continue;
            }
            let (name, layout) = (&stored.unit.name, &stored.unit.layout);
            let block = &self.chain.blocks[stored.unit.owner_block].name;
            let mut unit = saved_unit(name, block, layout, stored.unit.trainable);
            let own = stored.own.start.min(layout.len())..stored.own.end.min(layout.len());
            let keeps_own = self.store.unshards_on_use() && !stored.unit.running;
            let (start, values) = match keeps_own {
                true => (own.start, self.store.own_values(index)?.slice(0..own.len())),
                false => (0, self.store.whole_values(index)?),
            };
            let values = values.try_into_vec_as::<f32>().map_err(|error| Error::Device(error.to_string()))?;
            let mut arrays = vec![(PARAMETERS.to_owned(), start, values)];
            let states = [
                ("", self.update.state(index, own.clone())),
                (OUTER, self.update.outer_state(index, own.clone())),
            ];
            for (prefix, state) in states {
                let Some(state) = state else { continue };
                let SavedState { slots, scalars } = state.read()?;
                let named = |(slot, values)| (format!("{prefix}{slot}"), own.start, values);
                arrays.extend(slots.into_iter().map(named));
                unit.scalars
                    .extend(scalars.into_iter().map(|(key, number)| (format!("{prefix}{key}"), number)));
            }
            unit.slots = arrays.iter().map(|(slot, ..)| slot.clone()).collect();
            let item = |(slot, start, values)| WriteItem { unit: name.clone(), slot, start, values };
            items.extend(arrays.into_iter().map(item));
            units.push(unit);
        }
        Ok((units, items))
    }

    /// Continues after `step` from the state of the rank at the same position in another worker. No rank waits for another one. After an
    /// error, values are mixed, as after [`restore`](Self::restore).
    ///
    /// # Errors
    /// As [`restore`](Self::restore).
    pub fn restore_replica(&mut self, step: u64, from: &mut dyn StateReader) -> Result<()> {
        let saved = SavedParameters::new(from);
        self.restore_units(step, &saved, from, |stored| stored.changes())
    }
}
