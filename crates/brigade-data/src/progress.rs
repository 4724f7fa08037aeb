//! How long work reports how far it is.

/// Receives the progress of long work; the caller draws the bar.
///
/// Calls of [`Progress::advance`] may come from several threads at once. A phase that fails does not finish.
pub trait Progress: Sync {
    /// A phase begins: `total` bytes of `what`. A `total` of 0 means that the end is not known, for example while
    /// another process is waited for.
    fn start(&self, total: u64, what: &str);

    /// `bytes` more are done.
    fn advance(&self, bytes: u64);

    /// The phase that was started last is over.
    fn finish(&self);
}

/// Draws nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn start(&self, _total: u64, _what: &str) {}
    fn advance(&self, _bytes: u64) {}
    fn finish(&self) {}
}
