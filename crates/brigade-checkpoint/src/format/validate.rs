//! Checks of every manifest, before it is written and after it is read.

use std::cmp::Ordering;

use brigade_sorted::SortedSet;

use super::manifest::{FORMAT_VERSION, FileMetadata, Manifest};
use super::names::{MANIFEST, frozen_file, rank_file};
use super::slot_index::SlotIndex;
use super::unit::UnitMetadata;
use crate::error::{Error, Result};

/// Digits of a BLAKE3 checksum.
const BLAKE3_DIGITS: usize = 64;

/// Checks the name of a unit.
pub(crate) fn check_unit_name(name: &str) -> Result<()> {
    if name.is_empty() || name.chars().any(char::is_control) {
        let allowed = "any text without control characters";
        return Err(Error::InvalidName { what: "unit", given: name.into(), allowed });
    }
    Ok(())
}

/// Checks the name of a slot.
pub(crate) fn check_slot_name(name: &str) -> Result<()> {
    if name.is_empty() || name.chars().any(|c| c.is_control() || c == '/') {
        let allowed = "any text without control characters and `/`";
        return Err(Error::InvalidName { what: "slot", given: name.into(), allowed });
    }
    Ok(())
}

impl Manifest {
    /// Checks the manifest against itself: names, sizes, offsets, and that every slot is covered exactly once.
    ///
    /// # Errors
    /// [`Error::InvalidName`], [`Error::Coverage`], or [`Error::InvalidManifest`] with what is wrong.
    pub fn check(&self) -> Result<()> {
        if !(1..=FORMAT_VERSION).contains(&self.version) {
            return Err(wrong(format!(
                "version {} is unknown; this build knows 1 to {FORMAT_VERSION}",
                self.version
            )));
        }
        let mut units = SortedSet::new();
        let mut parameters = SortedSet::new();
        for unit in &self.state.units {
            check_unit(unit)?;
            if !units.insert(&unit.name) {
                return Err(wrong(format!("unit {:?} appears twice", unit.name)));
            }
            for parameter in &unit.parameters {
                if !parameters.insert(&parameter.name) {
                    return Err(wrong(format!("parameter {:?} appears twice", parameter.name)));
                }
            }
        }
        for pair in self.files.windows(2) {
            match pair[0].order().cmp(&pair[1].order()) {
                Ordering::Less => {}
                Ordering::Equal => return Err(Error::DuplicateRank { rank: pair[0].rank }),
                Ordering::Greater => {
                    return Err(wrong(format!("{} is not in the order of ranks and names", pair[1].name)));
                }
            }
        }
        self.files.iter().try_for_each(check_file)?;
        if self.files.iter().try_fold(0u64, |sum, file| sum.checked_add(file.bytes)).is_none() {
            return Err(wrong("the files' sizes exceed 64 bits".into()));
        }
        SlotIndex::of(self).map(|_| ())
    }
}

fn check_unit(unit: &UnitMetadata) -> Result<()> {
    let UnitMetadata { name, elements, .. } = unit;
    check_unit_name(name)?;
    if elements.checked_mul(size_of::<f32>()).is_none() {
        return Err(wrong(format!("unit {name:?} has too many elements: {elements}")));
    }
    let mut slots = SortedSet::new();
    for slot in &unit.slots {
        check_slot_name(slot)?;
        if !slots.insert(slot) {
            return Err(wrong(format!("slot {name}/{slot} appears twice")));
        }
    }
    let mut free = 0;
    for parameter in &unit.parameters {
        let end = parameter.elements().and_then(|size| parameter.start.checked_add(size));
        match end {
            Some(end) if parameter.start >= free && end <= *elements => free = end,
            _ => {
                let message = format!(
                    "parameter {:?} (shape {:?} from element {}) overlaps another or leaves unit {name:?}, \
                     which has {elements} elements",
                    parameter.name, parameter.shape, parameter.start
                );
                return Err(wrong(message));
            }
        }
    }
    Ok(())
}

fn check_file(file: &FileMetadata) -> Result<()> {
    let FileMetadata { name, rank, bytes, .. } = file;
    let allowed = [rank_file(*rank), frozen_file(*rank)];
    if !allowed.contains(name) {
        let [own, frozen] = allowed;
        return Err(wrong(format!("a file of rank {rank} is named {name:?}, not {own:?} or {frozen:?}")));
    }
    if file.blake3.len() != BLAKE3_DIGITS
        || !file.blake3.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    {
        return Err(wrong(format!("{name}: blake3 is not {BLAKE3_DIGITS} hexadecimal digits")));
    }
    if !file.has_all_chunks() {
        return Err(wrong(format!("{name}: {} chunks need 8 hexadecimal digits each", file.chunk_count())));
    }
    let mut next = None;
    for item in &file.items {
        let end = (item.elements as u64).checked_mul(4).and_then(|size| size.checked_add(item.offset));
        let follows = next.is_none_or(|next| next == item.offset);
        match end {
            Some(end) if item.elements > 0 && follows && end <= *bytes => next = Some(end),
            _ => {
                let message = format!(
                    "{name}: the item {}/{}/{} ({} elements at byte {}) does not follow the item before it \
                     in {bytes} bytes",
                    item.unit, item.slot, item.start, item.elements, item.offset
                );
                return Err(wrong(message));
            }
        }
    }
    if next.is_some_and(|end| end != *bytes) {
        return Err(wrong(format!("{name}: there are bytes after the last item")));
    }
    Ok(())
}

fn wrong(message: String) -> Error {
    Error::InvalidManifest { file: MANIFEST.into(), message }
}
