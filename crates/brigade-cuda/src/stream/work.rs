//! An operation that NCCL's stream has not finished yet.

use std::sync::Arc;

use super::comm_stream::Rank;
use crate::driver::Event;
use crate::error::Error;
use crate::watchdog::Ticket;

/// An operation under way. What it touches is held until all that is computed later comes after it.
pub struct InFlight {
    rank: Arc<Rank>,
    done: Arc<Event>,
    ticket: Ticket,
    /// None once it is over.
    memory: Option<Box<dyn Send>>,
}

impl InFlight {
    pub(crate) fn new(rank: Arc<Rank>, done: Arc<Event>, ticket: Ticket, memory: Box<dyn Send>) -> Self {
        Self { rank, done, ticket, memory: Some(memory) }
    }

    /// Makes all that is computed from now on come after it; the host does not wait, unless it waits for every
    /// operation.
    ///
    /// # Errors
    /// If anything of this rank has failed.
    pub fn order(mut self) -> Result<(), Error> {
        if self.rank.order.is_synchronous() {
            return self.wait();
        }
        self.rank.watch.check()?;
        self.rank.or_fail(self.rank.order.before_compute(&self.done))?;
        self.memory = None;
        Ok(())
    }

    /// Waits for it on the host.
    ///
    /// # Errors
    /// As [`order`](Self::order), or if its deadline passes.
    pub fn wait(mut self) -> Result<(), Error> {
        self.finish()?;
        self.memory = None;
        Ok(())
    }

    /// As [`wait`](Self::wait), and its memory is still held.
    pub(crate) fn finish(&self) -> Result<(), Error> {
        self.rank.or_fail(self.rank.until(|| Ok(self.ticket.is_done()?.then_some(()))))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let ordered = match self.rank.order.is_synchronous() {
            true => self.finish(),
            false => (self.rank.watch.check())
                .and_then(|()| self.rank.or_fail(self.rank.order.before_compute(&self.done))),
        };
        if ordered.is_err() {
            // NCCL may still write there; the rank is about to end.
            std::mem::forget(memory);
        }
    }
}
