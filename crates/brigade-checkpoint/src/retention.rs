//! Which checkpoints are kept and which are removed.

use std::num::NonZeroUsize;

use crate::error::Result;
use crate::read::load;
use crate::storage::{CheckpointDir, Storage};

/// Of the checkpoints in `published`, newest first, removes all that are older than the `newest` newest complete ones, except the
/// newest complete one whose step `is_kept` and that of the step `best`, and returns the steps of those it removed.
///
/// Older means of a smaller step. If there are fewer complete ones, nothing is removed; incomplete ones do not count. What has
/// been published since that list was made stays.
///
/// # Errors
/// Errors of the storage. What was not removed can be removed by the next call.
pub fn keep_latest(
    storage: &dyn Storage,
    published: &[CheckpointDir],
    newest: NonZeroUsize,
    is_kept: impl Fn(u64) -> bool,
    best: Option<u64>,
) -> Result<Vec<u64>> {
    let (mut whole, mut has_kept) = (0, false);
    let mut removed = Vec::new();
    for published in published {
        let (counts, wanted) = (whole < newest.get(), !has_kept && is_kept(published.step));
        let is_whole = (counts || wanted) && load(storage, published).is_ok();
        if is_whole {
            whole += usize::from(counts);
            has_kept |= wanted;
        } else if !counts && best != Some(published.step) {
            storage.remove(&published.folder)?;
            removed.push(published.step);
        }
    }
    Ok(removed)
}

/// Of the checkpoints in `published`, removes all of later steps than `step`, left by a run that rolled back, and returns their
/// steps.
///
/// # Errors
/// Errors of the storage. What was not removed can be removed by the next call.
pub fn remove_after(storage: &dyn Storage, published: &[CheckpointDir], step: u64) -> Result<Vec<u64>> {
    let later = published.iter().filter(|published| published.step > step);
    later.map(|published| storage.remove(&published.folder).map(|()| published.step)).collect()
}

/// Removes the leftovers of writers that died: saves that were never published, and removals that were not finished.
/// Returns the folders. No save may be in progress.
///
/// # Errors
/// Errors of the storage.
pub fn remove_stale(storage: &dyn Storage) -> Result<Vec<String>> {
    let folders = storage.unpublished()?;
    folders.iter().try_for_each(|folder| storage.remove(folder))?;
    Ok(folders)
}
