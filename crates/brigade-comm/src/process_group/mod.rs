//! A process group as a trait: what an engine offers to the code that communicates through it.
//!
//! An engine moves bytes between ranks. This crate has two: [`Group`](crate::Group), over byte streams, with a thread of its
//! own for progress; and [`MemoryGroup`](crate::MemoryGroup), for the threads of one process, which exchange buffers in
//! memory. Neither streams nor descriptors appear in the trait, and an engine needs no thread: one without a thread makes
//! progress while somebody waits, through its [`Driver`].

mod args;
mod collectives;
pub(crate) mod split;
pub(crate) mod work;

use std::sync::Arc;
use std::time::Duration;

pub use args::OpArgs;
pub use work::{Driver, OpBuffer, Work};

use crate::Result;
use crate::error::Error;
use crate::op::stats::Stats;

/// An ordered set of ranks that communicate, as one of them sees it.
///
/// Operations with a buffer are started with [`start`](Self::start); `dyn ProcessGroup` has a method for each of them, which takes
/// any [`HostBuffer`](crate::HostBuffer) and gives a [`Work`]. The groups of this crate dereference to it. Every engine keeps the
/// [crate's invariants](crate): the order of sums, the order of operations, deadlines, and mismatches that are errors on
/// every rank.
pub trait ProcessGroup: Send + Sync {
    /// This rank's number in the group.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn size(&self) -> usize;

    /// The name that the group was made with; `world` for the group of all ranks.
    fn name(&self) -> &str;

    /// Starts an operation, without waiting for other ranks. The engine keeps the buffer until it
    /// [completes](OpBuffer::complete) it, which it does exactly once: with success, with the operation's own error, or with
    /// the first failure of the world. An operation that cannot be run fails the world.
    fn start(&self, args: OpArgs, buffer: Box<dyn OpBuffer>);

    /// Makes progress while somebody waits, if the engine has no thread for it.
    fn driver(&self) -> Option<Arc<dyn Driver>> {
        None
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// If the operation fails.
    fn barrier(&self) -> Result<()>;

    /// Makes one new group of all ranks that give the same `color`, ordered by `key`, then by rank. Every rank calls it,
    /// with the same `name` where the color is the same.
    ///
    /// # Errors
    /// If ranks disagree, or a rank failed.
    fn split(&self, name: &str, color: u32, key: u32) -> Result<Arc<dyn ProcessGroup>>;

    /// Whether its ranks are on several hosts, as far as the engine knows. By default it does not, and says no.
    fn spans_hosts(&self) -> bool {
        false
    }

    /// How many neighbouring ranks of a host add up first, where collectives are in two levels, inside hosts and between them. It divides
    /// every row of neighbours on a host, and so the number of ranks. By default none: collectives are in one level.
    fn neighbours(&self) -> Option<usize> {
        None
    }

    /// What this rank has done in this group so far. An all-reduce of L bytes over n ranks counts exactly 2·L·(n−1)/n sent bytes
    /// where n divides the number of elements.
    fn stats(&self) -> Stats;

    /// The current deadline of one operation of this rank.
    fn op_timeout(&self) -> Duration;

    /// The first failure of the world that this rank knows of, from its point of view.
    fn failure(&self) -> Option<Error>;

    /// Fails the world on every rank: operations in flight and later ones return an error with this rank and `reason`.
    fn abort(&self, reason: &str);
}

impl<G: ProcessGroup + ?Sized> ProcessGroup for Arc<G> {
    fn rank(&self) -> usize {
        (**self).rank()
    }

    fn size(&self) -> usize {
        (**self).size()
    }

    fn name(&self) -> &str {
        (**self).name()
    }

    fn start(&self, args: OpArgs, buffer: Box<dyn OpBuffer>) {
        (**self).start(args, buffer);
    }

    fn driver(&self) -> Option<Arc<dyn Driver>> {
        (**self).driver()
    }

    fn barrier(&self) -> Result<()> {
        (**self).barrier()
    }

    fn split(&self, name: &str, color: u32, key: u32) -> Result<Arc<dyn ProcessGroup>> {
        (**self).split(name, color, key)
    }

    fn spans_hosts(&self) -> bool {
        (**self).spans_hosts()
    }

    fn neighbours(&self) -> Option<usize> {
        (**self).neighbours()
    }

    fn stats(&self) -> Stats {
        (**self).stats()
    }

    fn op_timeout(&self) -> Duration {
        (**self).op_timeout()
    }

    fn failure(&self) -> Option<Error> {
        (**self).failure()
    }

    fn abort(&self, reason: &str) {
        (**self).abort(reason);
    }
}
