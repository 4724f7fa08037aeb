//! The folder of a run's results.

mod contents;
mod lock;

pub use contents::WEIGHTS_FILE;
pub(crate) use contents::{folder, refuse_earlier, refuse_other, remove_weights, write_config};
pub use lock::hold;

/// The folder in a run's folder with what each rank did last, after a failure.
pub const FLIGHT_FOLDER: &str = "flight";
