//! What connects the members of a new group.

use std::sync::Arc;

use crate::error::{Error, Suspect, Verdict};
use crate::link::{Doorbell, PeerLinks};

/// A group that is being made, as one member sees it.
pub(crate) struct Gathering<'a> {
    /// The group's number; the same on all members, and of no other group.
    pub(crate) group: u64,
    pub(crate) name: &'a str,
    /// This rank's place among the members.
    pub(crate) rank: usize,
    /// The world ranks of the members.
    pub(crate) members: &'a [usize],
    /// What wakes this rank.
    pub(crate) doorbell: &'a Arc<Doorbell>,
}

/// Makes the links of a group, by way of its world.
pub(crate) trait Fabric: Send + Sync {
    /// Connects this rank with every other member, in the order of the group; nothing at its own place.
    fn connect(&self, gathering: &Gathering<'_>) -> Result<Vec<Option<PeerLinks>>, Error>;

    /// Asks all ranks what they wait for and finds out who holds up rank `asker` of the world, within seconds.
    fn inquire(&self, asker: usize) -> Verdict;

    /// The rank that passes on the news of failures, if it has been silent so long that it cannot be well.
    fn silent_hub(&self) -> Option<Suspect> {
        None
    }

    /// Whether every rank of this host has a core of its own.
    fn has_core_per_rank(&self) -> bool;
}

/// Whether this host has at least `ranks` cores, whichever this process may use.
pub(crate) fn has_cores_for(ranks: usize) -> bool {
    // SAFETY: sysconf reads a number and takes no pointers.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(online).is_ok_and(|online| ranks <= online)
}
