//! Saving: each rank writes its shard, then one rank publishes the checkpoint.

mod abort;
mod frozen;
mod publish;
mod shard;
mod units;

pub use abort::abort_save;
pub use frozen::{link_frozen, write_frozen};
pub use publish::publish;
pub use shard::{RankShard, WriteItem, WriteResult, write_shard};
pub use units::merge_units;
