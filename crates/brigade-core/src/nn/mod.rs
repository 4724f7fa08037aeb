//! Layers that compute over ranks.

mod data_group;
mod sync_batch_norm;

pub(crate) use data_group::{leaving_running_state, with_data_group};
pub use sync_batch_norm::SyncBatchNorm;
