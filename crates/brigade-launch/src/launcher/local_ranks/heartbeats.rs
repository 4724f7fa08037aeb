//! Finds ranks that send no heartbeats any more.

use std::time::{Duration, Instant};

use super::{phase::Phase, supervisor::Supervisor};
use crate::launcher::{config::LaunchConfig, process::HeartbeatMonitor};

impl Supervisor<'_> {
    /// Reads the heartbeats. If a rank has sent none, or has been stopped, for too long, the root cause is a rank that a
    /// signal has stopped, since the others wait for it; if there is none, the rank that has been silent for longest.
    pub(super) fn poll_heartbeats(&mut self) {
        let now = Instant::now();
        let elapsed = now - std::mem::replace(&mut self.last_poll, now);
        self.group.ranks.iter_mut().for_each(|rank| rank.poll(elapsed));
        if self.phase != Phase::Running {
            return;
        }
        let LaunchConfig { heartbeat_timeout, stopped_timeout, .. } = *self.group.launch;
        let limit = |heartbeat: &HeartbeatMonitor| match heartbeat.is_stopped_for(stopped_timeout) {
            true => Some(stopped_timeout),
            false => heartbeat_timeout,
        };
        let alive = self.group.ranks.iter().enumerate().filter(|(_, rank)| rank.exit.is_none());
        let silent = alive.clone().filter_map(|(i, rank)| {
            let limit = limit(&rank.heartbeat)?;
            Some((i, rank.heartbeat.silent_for(limit)?, limit))
        });
        let Some((longest, silence, limit)) = silent.max_by_key(|(_, silence, _)| *silence) else { return };
        let mut stopped = alive.filter(|(_, rank)| rank.heartbeat.is_stopped());
        let stopped = stopped.find_map(|(i, rank)| Some((i, rank.heartbeat.silent_for(Duration::ZERO)?)));
        let (i, silence) = stopped.unwrap_or((longest, silence));
        // Before `fail`, which records which ranks are stopped.
        let after = (self.group.epoch.elapsed() + limit).saturating_sub(silence);
        self.fail();
        self.group.ranks[i].time_out(after, silence);
    }
}
