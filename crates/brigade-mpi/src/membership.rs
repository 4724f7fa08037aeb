//! A rank's place in a group.

use brigade_comm::Group;
use brigade_comm::engine::Counters;

use crate::library::Communicator;
use crate::order::Order;

/// A rank's place in a group, and the communicator that the group is for MPI.
#[derive(Debug, Clone)]
pub(crate) struct Membership {
    pub(crate) comm: Communicator,
    /// The group's number, the same on all its ranks.
    pub(crate) number: u64,
    pub(crate) name: String,
    pub(crate) rank: usize,
    /// The world ranks of the members.
    pub(crate) members: Vec<usize>,
    pub(crate) order: Order,
}

impl Membership {
    pub(crate) fn size(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn world_rank(&self) -> usize {
        self.members[self.rank]
    }
}

/// What the thread that calls MPI needs of a group.
pub(crate) struct Shared {
    pub(crate) membership: Membership,
    /// All ranks, over the joined world.
    pub(crate) control: Group,
    pub(crate) counters: Counters,
}
