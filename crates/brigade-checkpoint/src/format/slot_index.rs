//! Which files hold which elements of each slot, and whether every element is held exactly once.

use brigade_sorted::SortedMap;

use super::manifest::Manifest;
use super::names::MANIFEST;
use crate::error::{Error, Result};

/// A contiguous range of a slot in a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ItemLocation {
    /// First element.
    pub start: usize,
    /// One past the last element.
    pub end: usize,
    /// Index in [`Manifest::files`].
    pub file: usize,
    /// Offset of the first element in the file, in bytes.
    pub offset: u64,
}

/// The ranges of every slot, in order, without gap or overlap.
#[derive(Debug)]
pub(crate) struct SlotIndex {
    slots: SortedMap<String, SortedMap<String, Vec<ItemLocation>>>,
}

impl SlotIndex {
    /// Where the manifest's slots lie.
    pub fn of(manifest: &Manifest) -> Result<Self> {
        let mut slots: SortedMap<String, SortedMap<String, Vec<ItemLocation>>> = SortedMap::new();
        for unit in &manifest.state.units {
            let named = unit.slots.iter().map(|slot| (slot.clone(), Vec::new())).collect();
            slots.insert(unit.name.clone(), named);
        }
        for (index, file) in manifest.files.iter().enumerate() {
            for item in &file.items {
                let slot = slots.get_mut(&item.unit).and_then(|unit| unit.get_mut(&item.slot));
                let (Some(slot), Some(end)) = (slot, item.start.checked_add(item.elements)) else {
                    let message =
                        format!("{} holds {}/{}, which no unit has", file.name, item.unit, item.slot);
                    return Err(Error::InvalidManifest { file: MANIFEST.into(), message });
                };
                slot.push(ItemLocation { start: item.start, end, file: index, offset: item.offset });
            }
        }
        for unit in &manifest.state.units {
            for (slot, located) in slots.get_mut(&unit.name).into_iter().flatten() {
                located.sort_by_key(|located| (located.start, located.end));
                check_slot(&unit.name, slot, unit.elements, located)?;
            }
        }
        Ok(Self { slots })
    }

    /// The ranges of a slot, by their start; `None` when there is no such slot.
    pub fn slot(&self, unit: &str, slot: &str) -> Option<&[ItemLocation]> {
        Some(self.slots.get(unit)?.get(slot)?)
    }
}

fn check_slot(unit: &str, slot: &str, elements: usize, located: &[ItemLocation]) -> Result<()> {
    let bad = |range, defect| {
        Err(Error::Coverage { unit: unit.into(), slot: slot.into(), range, defect, elements })
    };
    let mut covered = 0;
    for item in located {
        if item.start > covered {
            return bad(covered..item.start, "are in no rank's shard");
        }
        if item.start < covered {
            return bad(item.start..covered.min(item.end), "are written twice");
        }
        if item.end > elements {
            return bad(elements.max(item.start)..item.end, "are past the slot's end");
        }
        covered = item.end;
    }
    if covered < elements {
        return bad(covered..elements, "are in no rank's shard");
    }
    Ok(())
}
