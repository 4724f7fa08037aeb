//! What the launcher tells its ranks.

use std::path::PathBuf;

/// The variable that names the run's folder to the ranks that the launcher starts.
pub(crate) const RUN_DIR: &str = "BRIGADE_RUN_DIR";

/// The folder of results, in a rank that Brigade's launcher started.
pub(crate) fn launcher_folder() -> Option<PathBuf> {
    std::env::var_os(RUN_DIR).map(PathBuf::from)
}
