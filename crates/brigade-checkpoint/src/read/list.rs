//! Listing checkpoints.

use brigade_sorted::SortedMap;

use super::load::{find, load};
use crate::error::{Error, Result};
use crate::storage::Storage;

/// A visible checkpoint.
#[derive(Debug)]
pub struct ListedCheckpoint {
    /// Completed training steps.
    pub step: u64,
    /// Its summary, or why it is not complete.
    pub summary: Result<CheckpointSummary>,
}

/// The summary of a complete checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointSummary {
    /// Batches of the sampler that were consumed.
    pub position: u64,
    /// When it was published, in seconds since 1970 (UTC).
    pub created: u64,
    /// The mesh that wrote it.
    pub mesh: SortedMap<String, u64>,
    /// Number of files of all ranks.
    pub files: usize,
    /// Their total size, also of what other checkpoints have in common with it.
    pub bytes: u64,
    /// The run's counters.
    pub counters: SortedMap<String, u64>,
}

/// All visible checkpoints, newest first. This is cheap: it checks manifests, their checksums and the sizes of files, but no
/// contents. A checkpoint that a run removes meanwhile is left out.
///
/// # Errors
/// If the storage cannot be listed. A problem of a single checkpoint is in its [`ListedCheckpoint`].
pub fn list(storage: &dyn Storage) -> Result<Vec<ListedCheckpoint>> {
    let mut all = Vec::new();
    for published in storage.published()? {
        // A problem counts only if it is seen twice: a run may be removing or replacing the checkpoint.
        let loaded = load(storage, &published).or_else(|_| load(storage, &find(storage, published.step)?));
        let summary = loaded.map(|manifest| CheckpointSummary {
            position: manifest.state.position,
            created: manifest.created,
            files: manifest.files.len(),
            bytes: manifest.bytes(),
            mesh: manifest.state.mesh,
            counters: manifest.state.counters,
        });
        if matches!(summary, Err(Error::StepNotFound { .. })) {
            continue;
        }
        all.push(ListedCheckpoint { step: published.step, summary });
    }
    Ok(all)
}
