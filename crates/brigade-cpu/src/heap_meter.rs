//! What the process's heap takes, as glibc and the kernel count it.

use std::cell::Cell;
use std::fs;

use brigade_core::HeapMeter;

use crate::heap::{measure_exactly, trim_heap};

/// Counts what the whole process takes: bytes that are allocated by glibc's own books, their peak by the kernel's, in whole pages. Until it
/// is dropped, what is larger than a few pages has pages of its own, and glibc writes to all memory that it gives out, so that the kernel also counts what
/// a program allocates and never touches. Other threads should allocate little meanwhile.
pub struct GlibcHeap {
    book: Mallinfo2,
    /// Resident bytes at the beginning.
    before: Cell<u64>,
}

/// `mallinfo2` of glibc from 2.33 on.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
type Mallinfo2 = unsafe extern "C" fn() -> libc::mallinfo2;

/// There is none.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
type Mallinfo2 = std::convert::Infallible;

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn mallinfo2() -> Option<Mallinfo2> {
    // SAFETY: the name ends with a zero byte.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"mallinfo2".as_ptr()) };
    // SAFETY: this is the function's type in every glibc that has it.
    (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut libc::c_void, Mallinfo2>(found) })
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn mallinfo2() -> Option<Mallinfo2> {
    None
}

impl GlibcHeap {
    /// None where the C library is not glibc 2.33 or newer, the program's allocator is another one than glibc's, or the kernel keeps no peak that can be reset.
    pub fn find() -> Option<Self> {
        let book = mallinfo2()?;
        if !counts(book) || reset_peak().is_err() || status("VmHWM:")? == 0 {
            return None;
        }
        measure_exactly(true);
        Some(Self { book, before: Cell::new(0) })
    }
}

impl Drop for GlibcHeap {
    fn drop(&mut self) {
        measure_exactly(false);
        trim_heap();
        // The process's peak is that of its work, not of the measurement.
        drop(reset_peak());
    }
}

/// Makes the peak of resident memory what is resident now (proc(5), `/proc/pid/clear_refs`).
fn reset_peak() -> std::io::Result<()> {
    fs::write("/proc/self/clear_refs", "5")
}

/// A size in bytes of `/proc/self/status`.
fn status(name: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn in_use(book: Mallinfo2) -> u64 {
    // SAFETY: it locks the heap for itself, and only counts.
    let counts = unsafe { book() };
    (counts.uordblks + counts.hblkhd) as u64
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn in_use(book: Mallinfo2) -> u64 {
    match book {}
}

/// Whether the program's allocations are in the book.
fn counts(book: Mallinfo2) -> bool {
    const SOME: usize = 4 << 20;
    let before = in_use(book);
    let some = std::hint::black_box(Vec::<u8>::with_capacity(SOME));
    let is_counted = in_use(book).saturating_sub(before) >= SOME as u64 / 2;
    drop(some);
    is_counted
}

impl HeapMeter for GlibcHeap {
    fn in_use(&self) -> u64 {
        in_use(self.book)
    }

    fn begin(&self) {
        // What was freed must not be taken again unseen.
        trim_heap();
        drop(reset_peak());
        self.before.set(status("VmRSS:").unwrap_or(0));
    }

    fn most_added(&self) -> u64 {
        status("VmHWM:").unwrap_or(0).saturating_sub(self.before.get())
    }
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_stays_and_what_was_there_for_a_moment_are_told_apart() {
        let meter = GlibcHeap::find().unwrap();
        let touched = |bytes: u64| std::hint::black_box(vec![1u8; bytes as usize]);
        // Kernels count resident pages in batches, and tests run beside this one in its process.
        let near = |found: u64, expected: u64| found.abs_diff(expected) < 4 * MIB;
        // What was freed before counts again.
        drop(touched(64 * MIB));
        for _ in 0..2 {
            let before = meter.in_use();
            meter.begin();
            let kept = touched(32 * MIB);
            // All zeros, which the system has without writing.
            drop(std::hint::black_box(vec![0u8; 48 << 20]));
            assert!(near(meter.in_use() - before, 32 * MIB), "{}", meter.in_use() - before);
            assert!(near(meter.most_added(), 80 * MIB), "{}", meter.most_added());
            drop(kept);
        }
    }
}
