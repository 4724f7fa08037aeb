//! Writing a rank's file in the background, while training goes on.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::layout::Staging;
use crate::manifest::RankEntry;
use crate::storage::Storage;
use crate::write::{Snapshot, write_rank};
use crate::{Error, Result};

/// A rank's file that is being written by a thread of its own.
///
/// Dropping it does not stop the thread. Nothing becomes visible by itself: the entry is for [`publish`](crate::publish).
#[derive(Debug)]
pub struct Save {
    rank: usize,
    step: u64,
    thread: JoinHandle<()>,
    result: Receiver<Result<Saved>>,
}

/// What a save gives back.
#[derive(Debug)]
pub struct Saved {
    /// For the rank that publishes.
    pub entry: RankEntry,
    /// What was written: its memory can serve the next snapshot.
    pub snapshot: Snapshot,
}

impl Save {
    /// Starts [`write_rank`] in a thread.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(
        storage: Arc<dyn Storage>,
        staging: Staging,
        rank: usize,
        snapshot: Snapshot,
    ) -> Result<Self> {
        let step = staging.step();
        let (sender, result) = sync_channel(1);
        let body = move || {
            let write = || write_rank(&*storage, &staging, rank, &snapshot);
            let written = catch_unwind(AssertUnwindSafe(write))
                .unwrap_or_else(|panic| Err(Error::SavePanicked { rank, step, message: panic_text(panic) }));
            // Nobody listens any more when the save was dropped.
            let _ = sender.send(written.map(|entry| Saved { entry, snapshot }));
        };
        let name = format!("save-{rank}");
        let thread = Builder::new().name(name).spawn(body).map_err(|source| Error::Io {
            operation: "start",
            path: format!("the thread that saves rank {rank}"),
            source,
        })?;
        Ok(Self { rank, step, thread, result })
    }

    /// Whether [`wait`](Self::wait) would return at once.
    pub fn is_done(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the result, at most `deadline`. It is given once; after [`Error::SaveDeadline`] one may wait again.
    ///
    /// # Errors
    /// Those of [`write_rank`]; [`Error::SaveDeadline`], [`Error::SavePanicked`], [`Error::SaveTaken`].
    pub fn wait(&mut self, deadline: Duration) -> Result<Saved> {
        let (rank, step) = (self.rank, self.step);
        match self.result.recv_timeout(deadline) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => Err(Error::SaveDeadline { rank, step, waited: deadline }),
            Err(RecvTimeoutError::Disconnected) => Err(Error::SaveTaken { rank, step }),
        }
    }
}

fn panic_text(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast::<&str>().map_or_else(|_| "no text".into(), |text| (*text).into()),
    }
}
