//! Giving up a save.

use crate::error::Result;
use crate::storage::{StagingDir, Storage};

/// Removes what was written of a save that will not be published, when no rank writes any more. What was published stays: an
/// object store may have taken the manifest although it did not say so.
///
/// # Errors
/// Those of the storage; nothing is removed then that may be published. It is not an error if nothing was written.
pub fn abort_save(storage: &dyn Storage, staging: &StagingDir) -> Result<()> {
    match is_published(storage, staging)? {
        true => Ok(()),
        false => storage.remove(&storage.staging_folder(staging)),
    }
}

/// Whether readers see the save.
pub(super) fn is_published(storage: &dyn Storage, staging: &StagingDir) -> Result<bool> {
    let folder = storage.staging_folder(staging);
    Ok(storage.published()?.iter().any(|published| published.folder == folder))
}
