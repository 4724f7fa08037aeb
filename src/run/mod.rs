//! A run, from the command line to the exit code.

mod auto;
mod buckets;
mod dry_run;
mod elastic;
mod ending;
mod lost_lease;
mod node;
mod program;
mod rank;
mod ranks;
mod run_folder;
mod session;

pub use auto::{CHOICE_FILE, Choice, Chosen, ElasticArgs, earlier_choice, has_option, without};
pub(crate) use ending::catch_panic;
pub use program::launch::{Launch, launch};
pub use program::{Program, Role};
pub use ranks::Ranks;
pub(crate) use run_folder::{StartFrom, write_choice};
pub(crate) use session::CountedModel;
pub use session::Session;
