//! The folder of a run's results: its files and its lock.

mod contents;
mod lock;

pub use contents::WEIGHTS_FILE;
pub(crate) use contents::{
    added_weights_file, create_folder, refuse_earlier, refuse_other, remove_weights, write_config,
};
pub use lock::lock_folder;

/// The folder of flight records in a run's folder: what each rank did last before a failure.
pub const FLIGHT_FOLDER: &str = "flight";
