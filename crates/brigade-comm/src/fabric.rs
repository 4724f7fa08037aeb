//! What connects the members of a group.

use std::sync::Arc;

use crate::error::{Error, Suspect, Verdict};
use crate::link::{Channel, Doorbell, Link};

/// A link between two members of a group, as one of them sees it.
pub(crate) struct Pair<'a> {
    /// The group's number; the same on all members, and of no other group.
    pub(crate) group: u64,
    pub(crate) name: &'a str,
    /// The number of members.
    pub(crate) members: usize,
    /// This rank of the world, and the other one.
    pub(crate) rank: usize,
    pub(crate) peer: usize,
    pub(crate) channel: Channel,
}

/// Why there will be no link.
#[derive(Debug)]
pub(crate) enum Unlinked {
    /// The peer has let go of the group.
    Left,
    Failed(Error),
}

impl From<Error> for Unlinked {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Makes the links of groups, each when it is first used, by way of their world.
pub(crate) trait Fabric: Send + Sync {
    /// Rank `rank` of the world becomes a member of a group. Gives what wakes it, also when a link has come about.
    fn enter(&self, group: u64, rank: usize) -> Result<Arc<Doorbell>, Error>;

    /// Rank `rank` lets go of a group: it makes no more links there.
    fn leave(&self, group: u64, rank: usize);

    /// Gives a link, once, if it has come about. Otherwise it sees to it that it does, without waiting.
    fn link(&self, pair: &Pair<'_>) -> Result<Option<Link>, Unlinked>;

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
