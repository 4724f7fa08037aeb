//! Which files hold which elements of each slot, and whether every element is held exactly once.

use std::collections::BTreeMap;

use crate::layout::MANIFEST;
use crate::manifest::Manifest;
use crate::{Error, Result};

/// A contiguous range of a slot in a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Located {
    /// First element.
    pub start: usize,
    /// One behind the last element.
    pub end: usize,
    /// Index in [`Manifest::files`].
    pub file: usize,
    /// Offset of the first element in the file, in bytes.
    pub offset: u64,
}

/// The ranges of every slot, in order, without gap or overlap.
#[derive(Debug)]
pub(crate) struct Cover {
    slots: BTreeMap<String, BTreeMap<String, Vec<Located>>>,
}

impl Cover {
    /// Where the manifest's slots lie.
    pub fn of(manifest: &Manifest) -> Result<Self> {
        let mut slots: BTreeMap<String, BTreeMap<String, Vec<Located>>> = BTreeMap::new();
        for unit in &manifest.state.units {
            let named = unit.slots.iter().map(|slot| (slot.clone(), Vec::new())).collect();
            slots.insert(unit.name.clone(), named);
        }
        for (index, file) in manifest.files.iter().enumerate() {
            for piece in &file.pieces {
                let slot = slots.get_mut(&piece.unit).and_then(|unit| unit.get_mut(&piece.slot));
                let (Some(slot), Some(end)) = (slot, piece.start.checked_add(piece.elements)) else {
                    let message =
                        format!("{} holds {}/{}, which no unit has", file.name, piece.unit, piece.slot);
                    return Err(Error::Manifest { file: MANIFEST.into(), message });
                };
                slot.push(Located { start: piece.start, end, file: index, offset: piece.offset });
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
    pub fn slot(&self, unit: &str, slot: &str) -> Option<&[Located]> {
        Some(self.slots.get(unit)?.get(slot)?)
    }
}

fn check_slot(unit: &str, slot: &str, elements: usize, located: &[Located]) -> Result<()> {
    let bad = |range, defect| {
        Err(Error::Coverage { unit: unit.into(), slot: slot.into(), range, defect, elements })
    };
    let mut covered = 0;
    for piece in located {
        if piece.start > covered {
            return bad(covered..piece.start, "are in no rank's piece");
        }
        if piece.start < covered {
            return bad(piece.start..covered.min(piece.end), "are in two pieces");
        }
        if piece.end > elements {
            return bad(elements.max(piece.start)..piece.end, "lie behind the slot's end");
        }
        covered = piece.end;
    }
    if covered < elements {
        return bad(covered..elements, "are in no rank's piece");
    }
    Ok(())
}
