//! What connects the members of a group.

use std::sync::Arc;

use crate::error::{Diagnosis, Error, StalledRank};
use crate::link::endpoint::Link;
use crate::link::role::LinkRole;
use crate::link::shared::event_fd::EventFd;

/// A link between two members of a group, as one of them sees it.
pub(crate) struct LinkSpec<'a> {
    /// The group's number; the same on all members, and of no other group.
    pub(crate) group: u64,
    pub(crate) name: &'a str,
    /// The number of members.
    pub(crate) members: usize,
    /// This rank of the world, and the other one.
    pub(crate) rank: usize,
    pub(crate) peer: usize,
    pub(crate) role: LinkRole,
}

/// Why there is no link.
#[derive(Debug)]
pub(crate) enum LinkUnavailable {
    /// The peer has left the group.
    Left,
    Failed(Error),
}

impl From<Error> for LinkUnavailable {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Makes the links of groups, each when it is first used.
pub(crate) trait Connector: Send + Sync {
    /// Rank `rank` of the world becomes a member of a group. Returns the event fd that wakes it, also when a link is ready.
    fn join_group(&self, group: u64, rank: usize) -> Result<Arc<EventFd>, Error>;

    /// Rank `rank` leaves a group: it makes no more links there.
    fn leave_group(&self, group: u64, rank: usize);

    /// Returns a link, once, if it is ready. Otherwise starts to make it, without waiting.
    fn link(&self, link_spec: &LinkSpec<'_>) -> Result<Option<Link>, LinkUnavailable>;

    /// Asks all ranks what they wait for, and finds out within seconds which of them hold up rank `asker` of the world.
    fn diagnose(&self, asker: usize) -> Diagnosis;

    /// Rank 0, which passes on failures, if it has been silent for so long that it must have stalled.
    fn unresponsive_rank_0(&self) -> Option<StalledRank> {
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
