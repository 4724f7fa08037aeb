//! How much memory a piece of code allocates: an allocator that counts for each thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, which also counts for [`measure`]. Install it as the program's `#[global_allocator]`.
#[derive(Debug)]
pub struct Counting;

/// What a piece of code allocated, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    /// The largest allocation.
    pub largest: u64,
    /// The most that it held at one time.
    pub peak: u64,
    /// The sum of all allocations; a reallocation counts with its new size.
    pub total: u64,
}

impl Used {
    /// The larger of both in every respect.
    pub fn max(self, other: Self) -> Self {
        Self {
            largest: self.largest.max(other.largest),
            peak: self.peak.max(other.peak),
            total: self.total.max(other.total),
        }
    }
}

#[derive(Clone, Copy)]
struct Counts {
    counting: bool,
    /// May fall below 0: what was there before may be freed.
    held: i64,
    used: Used,
}

const NOTHING: Counts = Counts { counting: false, held: 0, used: Used { largest: 0, peak: 0, total: 0 } };

thread_local! {
    // Neither allocated on first use nor dropped, so that the allocator can use it at any time.
    static COUNTS: Cell<Counts> = const { Cell::new(NOTHING) };
}

/// Runs `work` and gives what it allocated on this thread: nothing where [`Counting`] is not installed. A panic
/// leaves the counting on until the next call.
pub fn measure<T>(work: impl FnOnce() -> T) -> (T, Used) {
    COUNTS.set(Counts { counting: true, ..NOTHING });
    let result = work();
    let used = COUNTS.replace(NOTHING).used;
    (result, used)
}

fn took(bytes: usize, instead_of: usize) {
    let mut counts = COUNTS.get();
    if counts.counting {
        let size = bytes as u64;
        counts.held += bytes as i64 - instead_of as i64;
        counts.used.largest = counts.used.largest.max(size);
        counts.used.peak = counts.used.peak.max(counts.held.max(0) as u64);
        counts.used.total = counts.used.total.saturating_add(size);
        COUNTS.set(counts);
    }
}

fn gave_back(bytes: usize) {
    let mut counts = COUNTS.get();
    if counts.counting {
        counts.held -= bytes as i64;
        COUNTS.set(counts);
    }
}

// SAFETY: every call goes to the system's allocator unchanged; counting neither allocates nor panics (sizes are at most
// `isize::MAX`).
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size(), 0);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        took(layout.size(), 0);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        took(size, layout.size());
        // SAFETY: the caller keeps the contract.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        gave_back(layout.size());
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}
