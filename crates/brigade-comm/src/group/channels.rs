//! Several groups of the same ranks as one, so that collectives need not wait for each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::handle::Group;
use crate::Result;
use crate::error::Error;
use crate::op::stats::Stats;
use crate::process_group::{OpArgs, OpBuffer, ProcessGroup};

/// The largest group that has channels: a rank has connections of its own on each.
const LARGEST: usize = 64;

/// A group whose collectives take turns on several *channels*, groups of the same ranks with connections of their own. What is called first
/// need not end first: on a network with latency, a collective would otherwise wait for the last bytes of the one before it. Each
/// rank calls the same collectives in the same order, and so chooses the same channels. The bits are those of one channel. Messages
/// between two ranks, barriers and splits use the first.
pub struct Channels {
    channels: Vec<Group>,
    /// Collectives that were started.
    started: AtomicUsize,
}

impl Channels {
    /// So many channels of a group; the group itself if that is one, it is on one host, or it is large. All ranks call it together.
    ///
    /// # Errors
    /// If a rank failed.
    pub fn of(group: &Group, channels: usize) -> Result<Arc<dyn ProcessGroup>> {
        let hosts = (0..group.size()).map(|rank| group.place(rank).host);
        let is_on_one = hosts.clone().all(|host| host == group.place(0).host);
        if channels <= 1 || is_on_one || group.size() > LARGEST {
            return Ok(Arc::new(group.clone()));
        }
        let more = (1..channels).map(|number| {
            let name = format!("{}, channel {number}", group.name());
            group.split(&name, 0, group.rank() as u32)
        });
        let channels = [Ok(group.clone())].into_iter().chain(more).collect::<Result<Vec<_>>>()?;
        Ok(Arc::new(Self { channels, started: AtomicUsize::new(0) }))
    }

    fn first(&self) -> &Group {
        &self.channels[0]
    }
}

impl ProcessGroup for Channels {
    fn rank(&self) -> usize {
        self.first().rank()
    }

    fn size(&self) -> usize {
        self.first().size()
    }

    fn name(&self) -> &str {
        self.first().name()
    }

    fn start(&self, args: OpArgs, buffer: Box<dyn OpBuffer>) {
        let channel = match args.peer {
            Some(_) => 0,
            None => self.started.fetch_add(1, Ordering::Relaxed) % self.channels.len(),
        };
        ProcessGroup::start(&self.channels[channel], args, buffer);
    }

    fn barrier(&self) -> Result<()> {
        self.first().barrier()
    }

    fn split(&self, name: &str, color: u32, key: u32) -> Result<Arc<dyn ProcessGroup>> {
        Self::of(&self.first().split(name, color, key)?, self.channels.len())
    }

    fn stats(&self) -> Stats {
        self.channels.iter().map(|channel| channel.stats()).fold(Stats::default(), Stats::plus)
    }

    fn op_timeout(&self) -> Duration {
        self.first().op_timeout()
    }

    fn failure(&self) -> Option<Error> {
        self.first().failure()
    }

    fn abort(&self, reason: &str) {
        self.first().abort(reason);
    }
}
