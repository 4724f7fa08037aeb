//! Wakes a thread that waits in `poll`, from any thread or process that holds the descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::error::Error;

/// An event descriptor. A notification stays pending until a wait sees it.
pub(crate) struct EventFd {
    event: OwnedFd,
}

impl EventFd {
    pub(crate) fn new() -> Result<Self, Error> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::system("make an event descriptor", error))?;
        Ok(Self { event })
    }

    /// The event descriptor of another process.
    pub(crate) fn from_peer(event: OwnedFd) -> Self {
        Self { event }
    }

    /// Notifies the waiter. This cannot fail in a way that matters: a full counter already notifies.
    pub(crate) fn notify(&self) {
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Waits for a notification or for one of `others`, at most for `limit`.
    pub(crate) fn wait(&self, others: &[(BorrowedFd<'_>, PollFlags)], limit: Duration) {
        let mut fds = Vec::with_capacity(others.len() + 1);
        fds.push(PollFd::new(&self.event, PollFlags::IN));
        fds.extend(others.iter().map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)));
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        // An interrupted or failed poll is a wait that ended early, which every caller expects.
        let _ = poll(&mut fds, Some(&limit));
        if !fds[0].revents().is_empty() {
            let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
        }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
