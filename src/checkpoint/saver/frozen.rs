//! What training does not change: a run writes it once, and links it into later checkpoints.

use std::ops::Range;
use std::sync::Arc;

use brigade_checkpoint::{
    Checkpoint, FileMetadata, RankShard, StagingDir, Storage, UnitMetadata, WriteResult, frozen_file,
    link_frozen, write_frozen,
};

use crate::checkpoint::models::ModelSnapshot;

/// The file of this rank's frozen values in a checkpoint.
#[derive(Debug, Clone)]
pub(super) struct FrozenFile {
    /// The checkpoint's step.
    pub step: u64,
    pub file: FileMetadata,
    /// Whether this process wrote the file, or has compared it with what it would have written.
    pub is_known: bool,
}

impl FrozenFile {
    /// The one of `rank` in the checkpoint that the run continues from, if there is one that can be read.
    pub(super) fn found(storage: &Arc<dyn Storage>, step: u64, rank: usize) -> Option<Self> {
        let checkpoint = Checkpoint::open(storage.clone(), step).ok()?;
        let name = frozen_file(rank);
        let file = checkpoint.manifest().files.iter().find(|file| file.name == name)?.clone();
        Some(Self { step, file, is_known: false })
    }
}

/// What a rank is to save of the values that training does not change.
pub(super) struct FrozenValues {
    models: Vec<ModelSnapshot>,
    /// The units, with the elements that this rank saves.
    ranges: Vec<(UnitMetadata, Range<usize>)>,
    /// A file of the same ranges.
    earlier: Option<FrozenFile>,
}

impl FrozenValues {
    /// Takes them out of the models. `earlier` gives this rank's file in an earlier checkpoint.
    pub(super) fn take(models: &mut [ModelSnapshot], earlier: impl FnOnce() -> Option<FrozenFile>) -> Self {
        let models: Vec<_> = models.iter_mut().map(ModelSnapshot::take_frozen).collect();
        let ranges: Vec<_> = models.iter().flat_map(ModelSnapshot::frozen_ranges).collect();
        let earlier = if ranges.is_empty() { None } else { earlier() };
        let earlier = earlier.filter(|earlier| has_ranges(&earlier.file, &ranges));
        Self { models, ranges, earlier }
    }

    /// The bytes that are to be written: none where a file can probably be linked.
    pub(super) fn bytes(&self) -> u64 {
        match &self.earlier {
            Some(_) => 0,
            None => self.models.iter().map(|model| model.snapshot.bytes()).sum(),
        }
    }

    /// Links the earlier file into a save, or writes the values, which are only then copied to the host. Gives the units, and the file if anything is frozen.
    pub(super) fn save(
        self,
        storage: &dyn Storage,
        staging: &StagingDir,
        rank: usize,
    ) -> anyhow::Result<(Vec<UnitMetadata>, Option<WriteResult>)> {
        let Self { models, ranges, earlier } = self;
        if ranges.is_empty() {
            return Ok((Vec::new(), None));
        }
        let units = ranges.into_iter().map(|(unit, _)| unit).collect();
        if let Some(FrozenFile { step, file, is_known: true }) = &earlier
            && let Ok(entry) = link_frozen(storage, staging, *step, file)
        {
            return Ok((units, Some(entry)));
        }
        let mut items = Vec::new();
        for model in models {
            items.extend(model.read()?.1);
        }
        let unknown = earlier.filter(|earlier| !earlier.is_known).map(|earlier| earlier.step);
        let entry = write_frozen(storage, staging, rank, &RankShard { items }, unknown)?;
        Ok((units, Some(entry)))
    }
}

/// Whether a file has these ranges of units, and no others.
fn has_ranges(file: &FileMetadata, ranges: &[(UnitMetadata, Range<usize>)]) -> bool {
    let there = file.items.iter().map(|item| (&item.unit, item.start, item.elements));
    let here = ranges.iter().map(|(unit, range)| (&unit.name, range.start, range.len()));
    let (mut there, mut here): (Vec<_>, Vec<_>) = (there.collect(), here.collect());
    there.sort();
    here.sort();
    there == here
}
