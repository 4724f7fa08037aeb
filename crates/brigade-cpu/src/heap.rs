//! Keeping the heap between steps.

/// Tells glibc's allocator to keep freed memory instead of giving it back to the system. A training
/// step frees and allocates the same large buffers again and again; without this each of them is
/// unmapped, mapped and zeroed anew. Call it once, before the first large allocation. Elsewhere
/// than on glibc it does nothing.
pub fn keep_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        const NEVER: libc::c_int = libc::c_int::MAX;
        // SAFETY: mallopt only sets parameters of the allocator and may be called at any time.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, NEVER);
            libc::mallopt(libc::M_TRIM_THRESHOLD, NEVER);
            libc::mallopt(libc::M_TOP_PAD, 64 << 20);
        }
    }
}
