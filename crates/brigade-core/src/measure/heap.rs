//! What a measurement needs of the process's heap.

/// Measures the process's heap, as an allocator or the system can.
pub trait HeapMeter {
    /// Bytes that are allocated now.
    fn in_use(&self) -> u64;
    /// Begins to look for the most that is in use from now on.
    fn begin(&self);
    /// By how many bytes the most that was in use since [`begin`](Self::begin) exceeds what was in use then.
    fn most_added(&self) -> u64;
}
