//! What a launcher learns from the others.

use std::time::Instant;

use super::status::{NodeDescription, NodeStatus};
use crate::launcher::outcome::report::{LostNode, NodeReport};
#[cfg(feature = "clusters")]
use crate::launcher::rendezvous::{RendezvousEnd, Start};

pub enum NodeEvent {
    #[cfg(feature = "clusters")]
    /// Node 0 of an elastic world lets this node take part in a start, or does not.
    Rendezvous(Result<Start, RendezvousEnd>),
    /// All launchers have joined.
    Joined {
        /// What each of them reported.
        descriptions: Vec<NodeDescription>,
        /// The nodes whose clocks differ from node 0's, and by how many seconds they are ahead of it.
        ahead: Vec<(usize, f64)>,
    },
    /// They did not all join.
    JoinFailed(brigade_comm::Error),
    /// The statuses of all nodes, and when they arrived. That is the same moment everywhere, up to the travel time of a
    /// message.
    Statuses(Instant, Vec<NodeStatus>),
    /// The ranks of all nodes have exited: what each node reports.
    Reports(Vec<NodeReport>),
    /// All launchers wanted to leave and did.
    Left,
    /// A launcher is gone. Nothing comes after this.
    Lost(LostNode),
}
