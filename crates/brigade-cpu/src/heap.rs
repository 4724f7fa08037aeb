//! Settings of the heap.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether [`keep_heap`] was called.
static KEPT: AtomicBool = AtomicBool::new(false);

/// Tells glibc's allocator to keep freed memory instead of returning it to the system. A training step frees and allocates the same
/// large buffers again and again; without this, each of them is unmapped, mapped and zeroed anew. Call it once, before the first
/// large allocation. With other C libraries it does nothing.
///
/// # Safety
/// The process has no other thread: glibc changes its settings without a lock.
pub unsafe fn keep_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: mallopt only sets parameters of the allocator, and the caller guarantees that no other thread allocates.
        unsafe {
            // Large blocks come from the heap, too. (A threshold above 32 MiB would be refused.)
            libc::mallopt(libc::M_MMAP_MAX, 0);
            // -1: the top of the heap is never returned.
            libc::mallopt(libc::M_TRIM_THRESHOLD, -1);
            libc::mallopt(libc::M_TOP_PAD, 64 << 20);
        }
        KEPT.store(true, Ordering::Relaxed);
    }
}

/// Gives the pages that are free in the heap back to the system. A training step takes other amounts than what comes before it: weights that were
/// loaded in fp32, say, leave free memory that its buffers do not fit into. With other C libraries it does nothing.
pub fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it locks the heap for itself, and gives free pages back.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Makes resident memory follow what is allocated: each large block has pages of its own, which are written to when it is given out and
/// returned when it is freed. Or ends that.
pub(crate) fn measure_exactly(begin: bool) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let settings = match begin {
            true => [
                (libc::M_MMAP_MAX, i32::MAX),
                (libc::M_MMAP_THRESHOLD, 64 << 10),
                // Any value but 0.
                (libc::M_PERTURB, 0x5a),
            ],
            false => [
                (libc::M_MMAP_MAX, if KEPT.load(Ordering::Relaxed) { 0 } else { 1 << 16 }),
                // What glibc comes to by itself where large blocks come and go; it no longer adapts it, once it was set.
                (libc::M_MMAP_THRESHOLD, 32 << 20),
                (libc::M_PERTURB, 0),
            ],
        };
        for (setting, value) in settings {
            // SAFETY: it sets a number, which other threads may see now or later: each value is good at any time.
            unsafe { libc::mallopt(setting, value) };
        }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = begin;
}

/// An environment variable, and its value, with which glibc backs the heap with huge pages if the system allows that on request.
/// glibc reads it when a process starts, so a launcher sets it for its ranks.
pub const HUGE_PAGES: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
