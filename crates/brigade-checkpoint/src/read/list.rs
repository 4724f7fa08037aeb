//! Which checkpoints there are, and which of them are kept.

use std::collections::BTreeMap;

use super::load::{find, load};
use crate::error::{Error, Result};
use crate::storage::Storage;

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
