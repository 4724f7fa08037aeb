//! Text on standard output.

use std::io::{ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use anyhow::{Context, anyhow};

/// Prints a text. It is not an error if the reader closes the pipe early.
pub fn print(text: &str) -> anyhow::Result<()> {
    show(text).map(drop)
}

/// Prints a text at once; `false` if nobody reads any more.
pub fn show(text: &str) -> anyhow::Result<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true).context("cannot write to standard output"),
    }
}

/// Standard output of a rank, whose peers must not wait for a slow reader (a pager): a thread writes what is shown.
pub struct BackgroundOutput {
    texts: Sender<String>,
    is_read: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<()>>,
}

impl BackgroundOutput {
    pub fn open() -> anyhow::Result<Self> {
        let (texts, receiver) = channel::<String>();
        let is_read = Arc::new(AtomicBool::new(true));
        let is_read_there = Arc::clone(&is_read);
        let write = move || {
            for text in receiver {
                match show(&text) {
                    Ok(true) => {}
                    ended => {
                        is_read_there.store(false, Ordering::Relaxed);
                        return ended.map(drop);
                    }
                }
            }
            Ok(())
        };
        let thread = thread::Builder::new().name("output".into()).spawn(write);
        Ok(Self { texts, is_read, thread: thread.context("cannot start a thread")? })
    }

    /// Whether somebody reads it, as far as is known, and it could be written.
    pub fn is_read(&self) -> bool {
        self.is_read.load(Ordering::Relaxed)
    }

    /// Shows a text soon, if somebody reads it.
    pub fn show(&self, text: &str) {
        // Nobody receives it where it cannot be written, which `finish` says.
        drop(self.texts.send(text.to_owned()));
    }

    /// Waits until all is written.
    ///
    /// # Errors
    /// If it cannot be.
    pub fn finish(self) -> anyhow::Result<()> {
        let Self { texts, thread, .. } = self;
        drop(texts);
        thread
            .join()
            .unwrap_or_else(|_| Err(anyhow!("the thread that writes to standard output has panicked")))
    }
}
