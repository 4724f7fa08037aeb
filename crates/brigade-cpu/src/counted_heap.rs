//! A heap that counts what each thread takes of it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;

use brigade_core::HeapMeter;

/// The system's heap, counted to the byte: what models need is then measured exactly, and in small measurements. A program that leaves the choice to Rust measures
/// by what glibc and the kernel count; with any other global allocator nothing can be measured.
///
/// ```
/// #[global_allocator]
/// static HEAP: brigade_cpu::CountedHeap = brigade_cpu::CountedHeap;
/// # fn main() {}
/// ```
#[derive(Debug)]
pub struct CountedHeap;

thread_local! {
    static IN_USE: Cell<i64> = const { Cell::new(0) };
    static MOST: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    let in_use = IN_USE.get() + bytes;
    IN_USE.set(in_use);
    if in_use > MOST.get() {
        MOST.set(in_use);
    }
}

// SAFETY: all memory is the system's; the counters are no memory of the heap.
unsafe impl GlobalAlloc for CountedHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: as the caller vouches.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: as the caller vouches.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: as the caller vouches.
        unsafe { System.realloc(place, layout, size) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: as the caller vouches.
        unsafe { System.dealloc(place, layout) }
    }
}

/// What is in use is counted from here: a thread that has freed what others allocated is below 0.
const LEAST: i64 = -(1 << 60);

/// Measures what the calling thread takes of a [`CountedHeap`].
#[derive(Debug)]
pub(crate) struct ThreadHeap {
    /// What was in use at the beginning.
    before: Cell<i64>,
}

impl ThreadHeap {
    /// None where the program has another global allocator.
    pub(crate) fn find() -> Option<Self> {
        let before = IN_USE.get();
        let some = black_box(Box::new(0u8));
        let is_counted = IN_USE.get() != before;
        drop(some);
        is_counted.then(|| Self { before: Cell::new(before) })
    }
}

impl HeapMeter for ThreadHeap {
    fn in_use(&self) -> u64 {
        (IN_USE.get() - LEAST) as u64
    }

    fn begin(&self) {
        let in_use = IN_USE.get();
        MOST.set(in_use);
        self.before.set(in_use);
    }

    fn most_added(&self) -> u64 {
        (MOST.get() - self.before.get()).max(0) as u64
    }
}
