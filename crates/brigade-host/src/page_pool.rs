//! Pages of freed regions for those that are filled next, so that the system need not clear new ones.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use crate::region::Region;

/// The regions of a rank that have pages. Freed ones keep theirs until another of the same length needs them, but together no more than were in use at once: memory is what it would be
/// if each gave its pages back to the system.
#[derive(Default)]
pub(crate) struct PagePool(Mutex<Resident>);

#[derive(Default)]
struct Resident {
    /// Bytes of regions in use.
    in_use: usize,
    /// The most that these were.
    most: usize,
    /// With pages, the one freed first at the front.
    freed: VecDeque<Arc<Region>>,
}

impl PagePool {
    /// Gives a region pages, if there are some, before it is written as a whole. What it contains is unknown.
    ///
    /// # Safety
    /// Nobody holds a reference to the memory of the region, or of one that is freed.
    pub(crate) unsafe fn fill(&self, region: &Arc<Region>) {
        if region.is_used.swap(true, Relaxed) {
            return;
        }
        let mut resident = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let resident = &mut *resident;
        resident.in_use += region.len();
        resident.most = resident.most.max(resident.in_use);
        let own = resident.freed.iter().position(|freed| Arc::ptr_eq(freed, region));
        let index = own.or_else(|| resident.freed.iter().position(|freed| freed.len() == region.len()));
        if let Some(freed) = index.and_then(|index| resident.freed.remove(index)) {
            // SAFETY: the caller vouches for both.
            if !Arc::ptr_eq(&freed, region) && unsafe { !region.take_pages(&freed) } {
                // SAFETY: as above.
                unsafe { freed.free() };
            }
        }
        // SAFETY: as above.
        unsafe { resident.shrink() };
    }

    /// Frees a region.
    ///
    /// # Safety
    /// Nobody holds a reference to its memory until it is filled again.
    pub(crate) unsafe fn free(&self, region: &Arc<Region>) {
        if !region.is_used.swap(false, Relaxed) {
            return;
        }
        let mut resident = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        resident.in_use -= region.len();
        resident.freed.push_back(Arc::clone(region));
        // SAFETY: the caller vouches for it.
        unsafe { resident.shrink() };
    }

    /// Forgets a region, which nobody will fill again.
    pub(crate) fn forget(&self, region: &Arc<Region>) {
        let mut resident = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        resident.freed.retain(|freed| !Arc::ptr_eq(freed, region));
        if region.is_used.swap(false, Relaxed) {
            resident.in_use -= region.len();
        }
    }
}

impl Resident {
    /// Gives pages back to the system, until all together are no more than were in use at once.
    ///
    /// # Safety
    /// Nobody holds a reference to the memory of a freed region.
    unsafe fn shrink(&mut self) {
        let mut kept: usize = self.freed.iter().map(|freed| freed.len()).sum();
        while self.in_use + kept > self.most
            && let Some(first) = self.freed.pop_front()
        {
            kept -= first.len();
            // SAFETY: the caller vouches for it.
            unsafe { first.free() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regions(lengths: &[usize]) -> Vec<Arc<Region>> {
        lengths.iter().map(|length| Arc::new(Region::new(*length).unwrap())).collect()
    }

    fn write(pool: &PagePool, region: &Arc<Region>, value: u8) {
        // SAFETY: this thread alone uses the region, and only here.
        unsafe {
            pool.fill(region);
            std::slice::from_raw_parts_mut(region.as_mut_ptr(), region.len()).fill(value);
        }
    }

    fn holds(region: &Region, value: u8) -> bool {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(region.as_mut_ptr(), region.len()) }
            .iter()
            .all(|byte| *byte == value)
    }

    /// Pages that the system has given this thread.
    #[cfg(target_os = "linux")]
    fn page_faults() -> i64 {
        // SAFETY: all zeros are a value of it, and the call only writes to it.
        unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &mut usage), 0);
            usage.ru_minflt
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn regions_that_are_filled_in_turn_get_no_new_pages() {
        for length in [5 << 12, (5 << 20) + (3 << 12)] {
            let (pool, regions) = (PagePool::default(), regions(&[length; 5]));
            let mut before = 0;
            for round in 0..4_u8 {
                if round == 2 {
                    before = page_faults();
                }
                for index in 0..regions.len() {
                    // Two are in use at a time.
                    write(&pool, &regions[index], round * 5 + index as u8);
                    if index > 0 {
                        assert!(holds(&regions[index - 1], round * 5 + index as u8 - 1));
                        // SAFETY: nobody uses it from here on.
                        unsafe { pool.free(&regions[index - 1]) };
                    }
                }
                // SAFETY: as above.
                unsafe { pool.free(&regions[4]) };
            }
            let faults = page_faults() - before;
            assert!(faults < 5, "{faults} pages of {length} bytes were new");
        }
    }

    #[test]
    fn no_more_is_kept_than_was_in_use_at_once() {
        let (pool, regions) = (PagePool::default(), regions(&[1 << 20, 3 << 20, 1 << 20]));
        let kept = || {
            let resident = pool.0.lock().unwrap();
            let kept: usize = resident.freed.iter().map(|freed| freed.len()).sum();
            (resident.in_use >> 20, kept >> 20)
        };
        for (index, expected) in [(0, (1, 0)), (1, (3, 0)), (2, (1, 0))] {
            write(&pool, &regions[index], 1);
            assert_eq!(kept(), expected);
            // SAFETY: nobody uses it from here on.
            unsafe { pool.free(&regions[index]) };
        }
        // Those of 1 MiB do not fit beside those of 3 MiB.
        assert_eq!(kept(), (0, 1));
        assert!(holds(&regions[1], 0));
        write(&pool, &regions[0], 2);
        assert!(holds(&regions[0], 2) && kept() == (1, 0));
        pool.forget(&regions[0]);
        assert_eq!(kept(), (0, 0));
    }
}
