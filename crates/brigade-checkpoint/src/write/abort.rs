//! Giving up a save.

use crate::error::Result;
use crate::storage::{StagingDir, Storage};

/// Removes what was written of a save that will not be published, when no rank writes any more.
///
/// # Errors
/// Those of the storage. It is not an error if nothing was written.
pub fn abort_save(storage: &dyn Storage, staging: &StagingDir) -> Result<()> {
    storage.remove(&storage.staging_folder(staging))
}
