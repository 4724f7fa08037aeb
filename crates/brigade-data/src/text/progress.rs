//! How long-running work reports its progress.

/// Receives the progress of long work; the caller draws the bar.
///
/// [`Progress::advance`] may be called from several threads at once. A phase that fails does not finish.
pub trait Progress: Sync {
    /// A phase begins: `total` bytes of `what`. A `total` of 0 means that the length is unknown, for example while
    /// waiting for another process.
    fn start(&self, total: u64, what: &str);

    /// `bytes` more bytes are done.
    fn advance(&self, bytes: u64);

    /// The latest phase is over.
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
