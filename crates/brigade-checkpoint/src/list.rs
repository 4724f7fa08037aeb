//! Which checkpoints there are, and which of them are kept.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use crate::read::{find, load};
use crate::storage::Storage;
use crate::{Error, Result};

/// A visible checkpoint.
#[derive(Debug)]
pub struct ListedCheckpoint {
    /// Completed training steps.
    pub step: u64,
    /// What is in it, or why it is not whole.
    pub summary: Result<CheckpointSummary>,
}

/// A whole checkpoint in short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointSummary {
    /// Batches of the sampler that were consumed.
    pub position: u64,
    /// When it was published, in seconds since 1970 (UTC).
    pub created: u64,
    /// The mesh that wrote it.
    pub mesh: BTreeMap<String, u64>,
    /// Number of ranks' files.
    pub files: usize,
    /// Their size together.
    pub bytes: u64,
}

/// All visible checkpoints, newest first. It is cheap: manifests, their checksums and the sizes of files are checked,
/// no contents. One that a run removes meanwhile is left out.
///
/// # Errors
/// When the place cannot be listed. What is wrong with a single checkpoint is told in its [`ListedCheckpoint`].
pub fn list(storage: &dyn Storage) -> Result<Vec<ListedCheckpoint>> {
    let mut all = Vec::new();
    for published in storage.published()? {
        // What is wrong counts when it is seen twice: a run may be removing or replacing the checkpoint.
        let loaded = load(storage, &published).or_else(|_| load(storage, &find(storage, published.step)?));
        let summary = loaded.map(|manifest| CheckpointSummary {
            position: manifest.state.position,
            created: manifest.created,
            files: manifest.files.len(),
            bytes: manifest.bytes(),
            mesh: manifest.state.mesh,
        });
        if matches!(summary, Err(Error::StepNotFound { .. })) {
            continue;
        }
        all.push(ListedCheckpoint { step: published.step, summary });
    }
    Ok(all)
}

/// Removes all checkpoints that are older than the `newest` newest whole ones, but for the newest whole one whose step
/// `is_kept`, and returns the steps of those that are gone.
///
/// Older means of a smaller step. With fewer whole ones nothing is removed; what is not whole does not count.
///
/// # Errors
/// Errors of the storage. What was not removed can be removed by the next call.
pub fn keep_latest(
    storage: &dyn Storage,
    newest: NonZeroUsize,
    is_kept: impl Fn(u64) -> bool,
) -> Result<Vec<u64>> {
    let (mut whole, mut has_kept) = (0, false);
    let mut removed = Vec::new();
    for published in storage.published()? {
        let (counts, wanted) = (whole < newest.get(), !has_kept && is_kept(published.step));
        let is_whole = (counts || wanted) && load(storage, &published).is_ok();
        if is_whole {
            whole += usize::from(counts);
            has_kept |= wanted;
        } else if !counts {
            storage.remove(&published.folder)?;
            removed.push(published.step);
        }
    }
    Ok(removed)
}

/// Removes all checkpoints of later steps than `step`, which a run left that went back from them, and returns their steps.
///
/// # Errors
/// Errors of the storage. What was not removed can be removed by the next call.
pub fn remove_after(storage: &dyn Storage, step: u64) -> Result<Vec<u64>> {
    let later = storage.published()?.into_iter().filter(|published| published.step > step);
    later.map(|published| storage.remove(&published.folder).map(|()| published.step)).collect()
}

/// Removes what writers left that died: saves that were never published, and removals that were not finished.
/// Returns the folders. No save may be in progress.
///
/// # Errors
/// Errors of the storage.
pub fn remove_stale(storage: &dyn Storage) -> Result<Vec<String>> {
    let folders = storage.unpublished()?;
    folders.iter().try_for_each(|folder| storage.remove(folder))?;
    Ok(folders)
}
