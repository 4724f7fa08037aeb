//! The groups that the parts of a step speak over.

use std::sync::Arc;

use crate::dist::{
    BucketedCollectives, Buckets, Collectives, DATA, DP, Groups, Mesh, PP, REPLICATE, Traffic, WORKERS,
};
use crate::sharding::zero::Zero;

/// A rank's groups by what they are for: which of the mesh's axes that is depends on what ZeRO shards.
///
/// Whatever is sharded, gradients are reduce-scattered over `shard` and then summed over `replicate`; without ZeRO, the
/// first is a single rank, and the second all that run other micro-batches. All of them are ranks of one worker; a run without workers
/// is one worker.
///
/// Operations over `shard`, `replicate` and `workers` may wait to [travel together](BucketedCollectives).
pub(crate) struct ParallelGroups {
    all: Groups,
    worker: Groups,
    /// The ranks of the worker.
    pub world: Arc<dyn Collectives>,
    /// The ranks that hold the other blocks for the same micro-batches.
    pub pp: Arc<dyn Collectives>,
    /// The ranks that hold the same blocks and run other micro-batches.
    pub data: Arc<dyn Collectives>,
    /// Those of them that a unit's elements are divided among.
    pub shard: Arc<dyn Collectives>,
    /// The same, for what the next block waits for.
    pub shard_at_once: Arc<dyn Collectives>,
    /// Those of them that hold the same elements.
    pub replicate: Arc<dyn Collectives>,
    /// The ranks at the same position in each worker.
    pub workers: Arc<dyn Collectives>,
}

impl ParallelGroups {
    pub(crate) fn new(groups: Groups, zero: &Zero, buckets: Buckets) -> Self {
        let (shard, replicate): (&[&str], &[&str]) = match zero.shards_optimizer() {
            true => (&[DP], &[REPLICATE]),
            false => (&[], &DATA),
        };
        let worker = groups.without(WORKERS);
        let bucketed = |group| BucketedCollectives::over(group, buckets);
        Self {
            world: worker.world().clone(),
            pp: worker.over(&[PP]),
            data: worker.over(&DATA),
            shard: bucketed(worker.over(shard)),
            shard_at_once: worker.over(shard),
            replicate: bucketed(worker.over(replicate)),
            workers: bucketed(groups.over(&[WORKERS])),
            worker,
            all: groups,
        }
    }

    /// The mesh of the worker.
    pub(crate) fn mesh(&self) -> &Mesh {
        self.worker.mesh()
    }

    /// The groups of all workers' ranks.
    pub(crate) fn all(&self) -> &Groups {
        &self.all
    }

    /// The rank among all workers' ranks of one of this worker.
    pub(crate) fn rank_of_all(&self, rank: usize) -> usize {
        self.workers.rank() * self.mesh().world() + rank
    }

    pub(crate) fn traffic(&self) -> Traffic {
        self.all.traffic()
    }
}
