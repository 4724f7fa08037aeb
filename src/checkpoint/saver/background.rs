//! Work on a background thread that can be polled.

use std::thread::{Builder, JoinHandle};

use anyhow::{Context, anyhow};

/// A function that runs on a thread of its own. Dropping this lets it run to its end.
pub(super) struct Background<T>(JoinHandle<anyhow::Result<T>>);

impl<T: Send + 'static> Background<T> {
    pub(super) fn start(
        name: &str,
        work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let thread = Builder::new().name(name.to_owned()).spawn(work);
        Ok(Self(thread.with_context(|| format!("cannot start the thread `{name}`"))?))
    }

    pub(super) fn is_done(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits for its result; a panic is an error.
    pub(super) fn finish(self) -> anyhow::Result<T> {
        let panicked = |panic: Box<dyn std::any::Any + Send>| {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            Err(anyhow!("panic: {}", text.unwrap_or_else(|| "of unknown text".into())))
        };
        self.0.join().unwrap_or_else(panicked)
    }
}
