//! The groups of ranks along the mesh's axes.

use std::sync::Arc;

use crate::dist::collectives::{Collectives, Traffic};
use crate::dist::mesh::Mesh;
use crate::dist::single_rank::SingleRankGroup;

/// This rank's groups: all ranks, those of its stage (`dp`), and those of its pipeline (`pp`).
///
/// Its number in `dp` is its data-parallel coordinate, its number in `pp` its stage. A group of one rank is [`SingleRankGroup`],
/// and an axis that holds all ranks is the world itself.
#[derive(Clone)]
pub struct Groups {
    /// All ranks.
    pub world: Arc<dyn Collectives>,
    /// The ranks that hold the same blocks and run other micro-batches.
    pub dp: Arc<dyn Collectives>,
    /// The ranks that hold the other blocks for the same micro-batches.
    pub pp: Arc<dyn Collectives>,
}

impl Groups {
    /// The groups of a mesh without a pipeline.
    pub fn data_parallel(world: Arc<dyn Collectives>) -> Self {
        Self { dp: world.clone(), world, pp: Arc::new(SingleRankGroup) }
    }

    /// The groups of a process that is alone.
    pub fn alone() -> Self {
        Self::data_parallel(Arc::new(SingleRankGroup))
    }

    /// The mesh that the groups make.
    pub fn mesh(&self) -> Mesh {
        Mesh { pp: self.pp.size(), dp: self.dp.size() }
    }

    /// Calls and bytes of all groups since they began.
    pub fn traffic(&self) -> Traffic {
        let mut traffic = self.world.traffic();
        for axis in [&self.dp, &self.pp] {
            if Arc::ptr_eq(axis, &self.world) {
                continue;
            }
            for (operation, (calls, bytes)) in axis.traffic() {
                let sum = traffic.entry(operation).or_default();
                *sum = (sum.0 + calls, sum.1 + bytes);
            }
        }
        traffic
    }
}
