//! Saving: each rank writes its shard, then one rank publishes the checkpoint.

mod abort;
mod publish;
mod shard;

pub use abort::abort_save;
pub use publish::publish;
pub use shard::{RankShard, WriteItem, WriteResult, write_shard};
