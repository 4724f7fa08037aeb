//! The ranks: the mesh that they form, its groups, and what a group can do.

mod bucketed;
mod buffers;
mod collectives;
mod groups;
mod mesh;
mod pending;
mod single_rank;

pub(crate) use bucketed::BucketedCollectives;
pub use bucketed::Buckets;
pub use buffers::{ReshardedBuffer, UnshardedBuffer};
pub(crate) use collectives::add_traffic;
pub use collectives::{CollectiveKind, Collectives, Message, Traffic};
pub use groups::Groups;
pub use mesh::{Axis, DATA, DP, Mesh, PP, REPLICATE, WORKERS};
pub use pending::{Pending, PendingTensor, PendingValues};
pub use single_rank::SingleRankGroup;
