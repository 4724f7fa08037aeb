//! Where parameters are: in units, each of which is one flat buffer, whole or in shards.

mod coded_gather;
pub(crate) mod groups;
pub(crate) mod layout;
mod parallel_groups;
mod served;
pub(crate) mod store;
pub(crate) mod unit;
mod unshard;
mod whole_buffer;
pub(crate) mod zero;

pub use groups::ParameterGroup;
pub use layout::{FlatLayout, FlatParam};
pub(crate) use parallel_groups::ParallelGroups;
pub use served::SeparateWorlds;
pub use zero::{ReduceEvery, ReshardAfterForward, Zero};
