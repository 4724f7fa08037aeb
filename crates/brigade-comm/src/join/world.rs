//! A rank's membership in a world of processes.

use std::sync::Arc;

use super::control::thread::Control;
use crate::Result;
use crate::error::Error;
use crate::fault::Fault;
use crate::group::handle::Group;
use crate::join::network::acceptor::AcceptorThread;
use crate::timeouts::Timeouts;

/// A rank's membership in a world of processes. Dropping it without [`shutdown`](Self::shutdown) tells the others
/// that this rank failed.
pub struct World {
    pub(super) group: Group,
    pub(super) rank: usize,
    pub(super) fault: Arc<Fault>,
    pub(super) timeouts: Timeouts,
    pub(super) done: bool,
    // A world of one rank has no control plane.
    pub(super) control: Option<Control>,
    pub(super) _acceptor_thread: Option<AcceptorThread>,
}

impl World {
    /// The group of all ranks.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Waits until every rank has called it, and leaves. Wait for all operations on sub-groups and all transfers before. When it
    /// returns without an error, all ranks have finished their work.
    pub fn shutdown(mut self) -> Result<()> {
        self.group.barrier()?;
        if let Some(control) = &self.control
            && !control.leave(self.timeouts.step)?
        {
            let reason = format!("not all ranks left within {:?}", self.timeouts.step);
            let error = Error::Aborted { rank: self.rank, reason };
            self.fault.raise(self.rank, error.clone());
            return Err(error);
        }
        self.done = true;
        Ok(())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if !self.done {
            let reason = match std::thread::panicking() {
                true => "a thread that held its world panicked",
                false => "it dropped its world without shutting it down",
            };
            let error = Error::Aborted { rank: self.rank, reason: reason.into() };
            self.fault.raise(self.rank, error);
        }
    }
}
