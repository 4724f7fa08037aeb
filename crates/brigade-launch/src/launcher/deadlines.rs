//! How long each part of ending a run may take. Together the parts keep the promised limits.

use std::time::Duration;

use super::{config::DEFAULT_GRACE_PERIOD, node_group::TICK};

/// How long after the first failure the other ranks may continue, so that the root cause can show itself: the other
/// ranks notice a peer's death about as fast as the launcher does.
pub const ROOT_CAUSE_WINDOW: Duration = Duration::from_millis(300);

/// How long a killed process may take to disappear.
pub const KILL_WAIT: Duration = Duration::from_secs(1);

/// How much earlier a preempted rank ends itself than the launcher would kill it, so that it can say why it exits.
pub const PREEMPTION_MARGIN: Duration = Duration::from_secs(1);

/// How long the other ranks may continue after a rank that died of the preemption signal itself: it had no time to save, or
/// does not know how.
pub const AFTER_UNSAVED_RANK: Duration = Duration::from_secs(3);

/// How long the output of ranks that have exited may still arrive.
pub const OUTPUT_DRAIN: Duration = Duration::from_millis(400);

/// An interrupted run is over within 2 s.
const _: () = assert!(DEFAULT_GRACE_PERIOD.as_millis() + OUTPUT_DRAIN.as_millis() < 2000);

/// A failed run is over within 5 s. Another node learns of the failure at the next tick.
const _: () = assert!(
    (TICK.as_millis()
        + ROOT_CAUSE_WINDOW.as_millis()
        + DEFAULT_GRACE_PERIOD.as_millis()
        + KILL_WAIT.as_millis()
        + OUTPUT_DRAIN.as_millis())
        < 5000
);
