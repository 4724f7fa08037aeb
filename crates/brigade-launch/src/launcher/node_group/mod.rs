//! The group of the launchers of all nodes.
//!
//! They form a small world of their own, one rank each, with node 0 as its rank 0. In lockstep, every [`TICK`],
//! they all-gather a [`NodeStatus`]; so all see the same statuses in the same order and come to the same decisions without
//! asking each other. A launcher that dies, is stopped or cut off for [`NodeGroupConfig::host_timeout`] fails the next tick of
//! all others.

mod before_ranks;
mod clocks;
mod event;
mod gather;
mod join;
mod status;

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use brigade_comm::{Group, World};

use self::join::{Joined, join};
pub use self::{
    before_ranks::LauncherGroup,
    event::NodeEvent,
    join::NodeGroupConfig,
    status::{NodeDescription, NodeState, NodeStatus, StopCause, check_alike},
};
use super::outcome::report::{LostNode, NodeReport};
use crate::error::{Error, Result};

/// Between two exchanges of statuses.
pub const TICK: Duration = Duration::from_millis(250);

/// This launcher as a member of the group. Dropping it tells the others that it is gone, unless all have left.
pub struct NodeGroup {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// The status for the next tick, and this node's report once its ranks have exited.
    own: Mutex<(NodeStatus, Vec<u8>)>,
    /// Set once the launchers have joined.
    group: OnceLock<Group>,
}

impl NodeGroup {
    /// Starts the thread that joins the others and exchanges statuses with them. What it learns goes to `send`.
    pub fn start(config: NodeGroupConfig, send: impl Fn(NodeEvent) + Send + 'static) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let member = Member { shared: Arc::clone(&shared), send };
        let started = thread::Builder::new().name("node-group".into()).spawn(move || member.run(config));
        let thread = started.map_err(|source| Error::System { operation: "start a thread", source })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Sets the status for the next tick; `NodeState::Finished` comes with this node's report.
    pub fn publish(&self, status: NodeStatus, report: Option<&NodeReport>) {
        let mut own = self.shared.own();
        own.0 = status;
        if let Some(report) = report {
            // Serializing plain data to memory cannot fail; the others would say that they cannot read it.
            own.1 = serde_json::to_vec(report).unwrap_or_default();
        }
    }

    /// Tells the others why this launcher leaves.
    pub fn abort(&self, reason: &str) {
        if let Some(group) = self.shared.group.get() {
            group.abort(reason);
        }
    }
}

impl Drop for NodeGroup {
    fn drop(&mut self) {
        // Before they have joined, only the deadline ends the thread, or the end of the process.
        if self.shared.group.get().is_some()
            && let Some(thread) = self.thread.take()
        {
            self.abort("its launcher has ended");
            // It has nothing more to send.
            drop(thread.join());
        }
    }
}

impl Shared {
    fn own(&self) -> MutexGuard<'_, (NodeStatus, Vec<u8>)> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread of the group.
struct Member<F> {
    shared: Arc<Shared>,
    send: F,
}

impl<F: Fn(NodeEvent)> Member<F> {
    fn run(self, config: NodeGroupConfig) {
        let event = match join(&config) {
            Err(error) => NodeEvent::JoinFailed(error),
            Ok(Joined { world, descriptions, clocks, fits }) => {
                // The thread runs once.
                drop(self.shared.group.set(world.group().clone()));
                (self.send)(NodeEvent::Joined { descriptions, ahead: clocks::differing(&clocks) });
                match if fits { self.exchange_statuses(world) } else { world.shutdown() } {
                    Ok(()) => NodeEvent::Left,
                    Err(error) => NodeEvent::Lost(lost_node(error)),
                }
            }
        };
        (self.send)(event);
    }

    /// Ends when all leave. When the launcher learns of that, nobody listens at the endpoint any more.
    fn exchange_statuses(&self, world: World) -> brigade_comm::Result<()> {
        let group = world.group();
        let mut reported = None;
        loop {
            thread::sleep(TICK);
            let status = self.shared.own().0;
            let statuses = gather::statuses(group, status)?;
            let restart_count = statuses[0].restart_count;
            let all = |state| {
                statuses.iter().all(|status| status.state == state && status.restart_count == restart_count)
            };
            let (finished, leaving) = (all(NodeState::Finished), all(NodeState::Leaving));
            (self.send)(NodeEvent::Statuses(Instant::now(), statuses));
            if leaving {
                return world.shutdown();
            }
            if finished && reported != Some(restart_count) {
                reported = Some(restart_count);
                let report = self.shared.own().1.clone();
                (self.send)(NodeEvent::Reports(gather::values(group, report)?));
            }
        }
    }
}

/// Which node is gone. A launcher's rank is its node.
fn lost_node(error: brigade_comm::Error) -> LostNode {
    use brigade_comm::Error as E;
    let (node, reason) = match error {
        E::PeerDied { peer, reason } => (Some(peer), reason),
        E::PeerFailed { peer, reason } => match reason.strip_prefix(&format!("rank {peer} aborted: ")) {
            Some(why) => (Some(peer), why.to_owned()),
            // What another launcher noticed: its text names the one that it misses.
            None => (None, format!("launcher {peer} says: {reason} (a launcher's rank is its node)")),
        },
        E::Timeout { absent, stalled, waited, .. } => {
            let reason = format!("its launcher gave no sign of life for {} s", waited.as_secs());
            (absent.first().or(stalled.first()).copied(), reason)
        }
        other => (None, other.to_string()),
    };
    LostNode { node, reason, after: None }
}
