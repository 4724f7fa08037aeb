//! The groups that the parts of a step speak over.

use std::sync::Arc;

use crate::dist::collectives::{Collectives, Traffic};
use crate::dist::groups::Groups;
use crate::dist::mesh::{DATA, DP, Mesh, PP, REPLICATE};
use crate::sharding::zero::Zero;

/// A rank's groups by what they are for: which of the mesh's axes that is depends on what ZeRO shards.
///
/// Whatever is sharded, gradients are reduce-scattered over `shard` and then summed over `replicate`; without ZeRO, the
/// first is a single rank, and the second all that run other micro-batches.
pub(crate) struct ParallelGroups {
    groups: Groups,
    pub world: Arc<dyn Collectives>,
    /// The ranks that hold the other blocks for the same micro-batches.
    pub pp: Arc<dyn Collectives>,
    /// The ranks that hold the same blocks and run other micro-batches.
    pub data: Arc<dyn Collectives>,
    /// Those of them that a unit's elements are divided among.
    pub shard: Arc<dyn Collectives>,
    /// Those of them that hold the same elements.
    pub replicate: Arc<dyn Collectives>,
}

impl ParallelGroups {
    pub(crate) fn new(groups: Groups, zero: &Zero) -> Self {
        let (shard, replicate): (&[&str], &[&str]) = match zero.shards_optimizer() {
            true => (&[DP], &[REPLICATE]),
            false => (&[], &DATA),
        };
        Self {
            world: groups.world().clone(),
            pp: groups.over(&[PP]),
            data: groups.over(&DATA),
            shard: groups.over(shard),
            replicate: groups.over(replicate),
            groups,
        }
    }

    pub(crate) fn mesh(&self) -> &Mesh {
        self.groups.mesh()
    }

    pub(crate) fn traffic(&self) -> Traffic {
        self.groups.traffic()
    }
}
