//! The folder of a run's results: its files, its lock, and leases.

mod contents;
mod lease;
mod lock;

pub use contents::{
    ADAPTERS_CONFIG_FILE, ADAPTERS_FILE, ADAPTERS_LABELS_FILE, TOKENIZER_COMPANIONS, WEIGHTS_FILE,
    WEIGHTS_INDEX_FILE,
};
pub(crate) use contents::{
    RESULTS, TEMPLATES_FOLDER, added_weights_file, create_folder, is_of_a_run, is_weights, last_step,
    refuse_earlier, refuse_earlier_names, refuse_other, refuse_results_without_checkpoint, refuse_unwritable,
    remove_models, write_config,
};
pub(crate) use lease::lease;
pub use lock::lock_folder;
pub(crate) use lock::{may_be_shared, name_host};

/// The folder of flight records in a run's folder: what each rank did last before a failure.
pub const FLIGHT_FOLDER: &str = "flight";

/// The folder of the ranks' logs in a run's folder.
pub(crate) const LOGS_FOLDER: &str = "logs";

/// The file in a run's folder in which rank 0 notes, for its launcher, how much memory the run will need.
pub(crate) const MEMORY_PLAN: &str = "logs/memory-plan.txt";
