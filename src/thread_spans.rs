//! What threads beside the training thread did last, for timelines.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// How many are kept: more than a timeline has steps.
const KEPT: usize = 128;

/// What threads did last.
#[derive(Clone, Default)]
pub(crate) struct ThreadSpans(Arc<Mutex<VecDeque<ThreadSpan>>>);

/// What a thread did, from when to when.
#[derive(Clone)]
pub(crate) struct ThreadSpan {
    pub name: String,
    pub start: Instant,
    /// None while it is in progress.
    pub end: Option<Instant>,
}

impl ThreadSpans {
    /// Does some work of this name.
    pub fn during<R>(&self, name: String, work: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let mut spans = self.spans();
        spans.truncate(KEPT - 1);
        spans.push_front(ThreadSpan { name, start, end: None });
        drop(spans);
        let result = work();
        if let Some(own) = self.spans().iter_mut().find(|span| span.start == start && span.end.is_none()) {
            own.end = Some(Instant::now());
        }
        result
    }

    /// What ended since, or continues.
    pub fn since(&self, instant: Instant) -> Vec<ThreadSpan> {
        let is_since = |span: &&ThreadSpan| span.end.is_none_or(|end| end >= instant);
        self.spans().iter().filter(is_since).cloned().collect()
    }

    fn spans(&self) -> MutexGuard<'_, VecDeque<ThreadSpan>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
