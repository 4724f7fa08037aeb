//! Memory of this process.

/// The largest resident memory that this process has had, in bytes: `VmHWM` of `/proc/self/status`. 0 if the
/// system does not say.
#[cfg(target_os = "linux")]
pub fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// The largest resident memory that this process has had, in bytes: `ru_maxrss` of `getrusage`. 0 if the
/// system does not say.
#[cfg(all(unix, not(target_os = "linux")))]
pub fn peak_rss_bytes() -> u64 {
    // SAFETY: `getrusage` fills in the structure, for which all zeros is a valid value.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        if libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) != 0 {
            return 0;
        }
        usage
    };
    let unit = if cfg!(target_vendor = "apple") { 1 } else { 1024 };
    u64::try_from(usage.ru_maxrss).unwrap_or(0) * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_grows_with_what_is_touched_and_stays() {
        // The kernel counts in batches, hence the tolerance.
        let tolerance = 4 << 20;
        let touched = std::hint::black_box(vec![1u8; 64 << 20]);
        let with = peak_rss_bytes();
        assert!(with + tolerance > 64 << 20, "{with}");
        drop(touched);
        assert!(peak_rss_bytes() + tolerance > with);
    }
}
