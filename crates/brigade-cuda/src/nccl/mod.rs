//! NCCL: its library, and communicators with deadlines.

mod communicator;
mod config;
mod data_type;
mod environment;
mod group_call;
mod handle;
mod library;
mod unique_id;

pub use communicator::Communicator;
pub(crate) use environment::refusal;
pub use group_call::GroupCall;
pub(crate) use handle::CommHandle;
pub use library::{NCCL_FILE, Nccl, nccl};
pub use unique_id::UniqueId;
