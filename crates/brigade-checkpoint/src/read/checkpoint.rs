//! Reading any range of any slot, whichever ranks wrote it.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::chunks::ChunkReader;
use super::load::{find, load};
use crate::error::{Error, Result};
use crate::format::manifest::Manifest;
use crate::format::names::step_folder;
use crate::format::slot_index::SlotIndex;
use crate::format::unit::{PARAMETERS, ParameterMetadata, UnitMetadata};
use crate::storage::{CheckpointDir, Storage};

/// A checkpoint that is open for reading. Threads may share it; they read one after the other.
#[derive(Debug)]
pub struct Checkpoint {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) published: CheckpointDir,
    pub(crate) manifest: Manifest,
    slot_index: SlotIndex,
    reader: Mutex<ChunkReader>,
}

impl Checkpoint {
    /// Opens the checkpoint of `step` and checks its manifest, the manifest's checksum and the sizes of files. Contents are checked
    /// when they are read, or all at once by [`verify`](Self::verify).
    ///
    /// # Errors
    /// [`Error::StepNotFound`], or what is wrong with the checkpoint: [`Error::InvalidManifest`], [`Error::UnsupportedVersion`], [`Error::MissingFile`],
    /// [`Error::SizeMismatch`]; errors of the storage.
    pub fn open(storage: Arc<dyn Storage>, step: u64) -> Result<Self> {
        let published = find(&*storage, step)?;
        let manifest = load(&*storage, &published)?;
        let slot_index = SlotIndex::of(&manifest)?;
        Ok(Self { storage, published, manifest, slot_index, reader: Mutex::default() })
    }

    /// What the checkpoint contains.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Fills `into` with the elements `range` of a slot. Reads and checks only the chunks that contain them. A chunk that several
    /// calls need is read once if the calls go through a file in order.
    ///
    /// # Errors
    /// [`Error::SlotNotFound`], [`Error::OutOfRange`], [`Error::ChecksumMismatch`] with file, chunk and offset; errors of the storage.
    pub fn read(&self, unit: &str, slot: &str, range: Range<usize>, into: &mut [f32]) -> Result<()> {
        let located = self.slot_index.slot(unit, slot).ok_or_else(|| self.no_slot(unit, slot))?;
        let elements = located.last().map_or(0, |last| last.end);
        if range.start > range.end || range.end > elements || into.len() != range.len() {
            let (unit, slot, buffer) = (unit.into(), slot.into(), into.len());
            return Err(Error::OutOfRange { unit, slot, range, buffer, elements });
        }
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let first = located.partition_point(|item| item.end <= range.start);
        for item in located.iter().skip(first).take_while(|item| item.start < range.end) {
            let (begin, end) = (item.start.max(range.start), item.end.min(range.end));
            let offset = item.offset + 4 * (begin - item.start) as u64;
            let values = &mut into[begin - range.start..end - range.start];
            let folder = &self.published.folder;
            let file = &self.manifest.files[item.file];
            reader.read(&*self.storage, folder, file, offset, bytemuck::cast_slice_mut(values))?;
        }
        Ok(())
    }

    /// All parameters, unit by unit, in the units' order.
    pub fn parameters(&self) -> impl Iterator<Item = StoredParameter<'_>> {
        self.manifest.state.units.iter().flat_map(move |unit| {
            unit.parameters.iter().map(move |parameter| StoredParameter { checkpoint: self, unit, parameter })
        })
    }

    fn no_slot(&self, unit: &str, slot: &str) -> Error {
        let units = &self.manifest.state.units;
        let names: Vec<_> = match units.iter().find(|known| known.name == unit) {
            Some(known) => known.slots.iter().map(|slot| format!("{unit}/{slot}")).collect(),
            None => units.iter().map(|unit| unit.name.clone()).collect(),
        };
        Error::SlotNotFound {
            checkpoint: step_folder(self.manifest.step),
            unit: unit.into(),
            slot: slot.into(),
            there: names.join(", "),
        }
    }
}

/// A parameter in a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct StoredParameter<'a> {
    checkpoint: &'a Checkpoint,
    /// The unit that it is in.
    pub unit: &'a UnitMetadata,
    /// Its name, shape and offset.
    pub parameter: &'a ParameterMetadata,
}

impl StoredParameter<'_> {
    /// The parameter's values, in row-major order.
    ///
    /// # Errors
    /// As [`Checkpoint::read`].
    pub fn read(&self) -> Result<Vec<f32>> {
        self.read_slot(PARAMETERS)
    }

    /// The values of another slot that belong to this parameter, such as an optimizer's moment.
    ///
    /// # Errors
    /// As [`Checkpoint::read`].
    pub fn read_slot(&self, slot: &str) -> Result<Vec<f32>> {
        let ParameterMetadata { start, .. } = *self.parameter;
        let end = self.parameter.elements().map_or(usize::MAX, |elements| start.saturating_add(elements));
        if self.checkpoint.slot_index.slot(&self.unit.name, slot).is_none() {
            return Err(self.checkpoint.no_slot(&self.unit.name, slot));
        }
        let mut values = vec![0.0; end - start];
        self.checkpoint.read(&self.unit.name, slot, start..end, &mut values)?;
        Ok(values)
    }
}
