//! Settings of the heap.

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
    }
}

/// An environment variable, and its value, with which glibc backs the heap with huge pages if the system allows that on request.
/// glibc reads it when a process starts, so a launcher sets it for its ranks.
pub const HUGE_PAGES: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
