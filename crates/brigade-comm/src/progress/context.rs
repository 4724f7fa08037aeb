//! What an engine knows of its rank and its group.

use std::sync::Arc;

use crate::fault::Fault;
use crate::flight::Recorder;
use crate::link::connector::Connector;
use crate::locality::Locality;
use crate::op::algorithm::{Algorithm, AlgorithmRow};
use crate::timeouts::OpTimeout;

/// Who this rank is in its group.
pub(crate) struct GroupSpec {
    pub(crate) group: u64,
    pub(crate) name: String,
    pub(crate) rank: usize,
    /// The world ranks of the members.
    pub(crate) members: Vec<usize>,
}

impl GroupSpec {
    pub(crate) fn world_rank(&self) -> usize {
        self.members[self.rank]
    }

    /// The world ranks of some ranks of the group.
    pub(crate) fn members(&self, ranks: &[usize]) -> Vec<usize> {
        ranks.iter().map(|rank| self.members[*rank]).collect()
    }
}

/// What all groups of a rank share.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) connector: Arc<dyn Connector>,
    pub(crate) fault: Arc<Fault>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) timeout: OpTimeout,
    /// Of every rank of the world.
    pub(crate) localities: Arc<[Locality]>,
    pub(crate) algorithm: Algorithm,
    /// What [`Algorithm::Auto`] uses for some sizes, in groups that are on several hosts if the world is.
    pub(crate) table: Arc<[AlgorithmRow]>,
}
