//! The part of a snapshot that training does not change, so that it need not be copied and written each time.

use std::ops::Range;

use brigade_checkpoint::{PARAMETERS, UnitMetadata as SavedUnit};

use crate::state::snapshot::{SavedRange, Snapshot, UnitPart};

impl Snapshot {
    /// Takes out the values of frozen parameters, which training does not change. Running state is not frozen: forward passes
    /// change it.
    #[must_use]
    pub fn take_frozen(&mut self) -> Self {
        let parts = std::mem::take(&mut self.parts).into_iter();
        let (frozen, changing): (Vec<_>, Vec<_>) = parts.partition(|part| part.is_frozen);
        self.parts = changing;
        Self { parts: frozen }
    }

    /// Of a snapshot of [frozen](Self::take_frozen) values, the units that [`read`](Self::read) gives, each with the elements
    /// whose values it gives. It copies nothing.
    pub fn frozen_ranges(&self) -> Vec<(SavedUnit, Range<usize>)> {
        let range = |UnitPart { unit, range, .. }: &UnitPart| {
            let SavedRange { start, values: Some(values), .. } = range.as_ref()? else { return None };
            let unit = SavedUnit { slots: vec![PARAMETERS.into()], ..unit.clone() };
            Some((unit, *start..*start + values.dims()[0]))
        };
        self.parts.iter().filter_map(range).collect()
    }
}
