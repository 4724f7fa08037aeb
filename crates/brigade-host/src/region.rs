//! A region of memory whose pages come and go, while its address stays.

use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicBool;

use memmap2::{MmapMut, MmapOptions, MmapRaw, UncheckedAdvice};

/// The size of huge pages, where there are some.
const HUGE_PAGE: usize = 2 << 20;

/// Pages of its own. Where there are none, it reads as zeros.
pub(crate) struct Region {
    map: MmapRaw,
    /// Where it begins in the map: at a huge page, if it is as large as one, so that these move whole.
    start: usize,
    length: usize,
    /// Whether somebody writes or reads it.
    pub(crate) is_used: AtomicBool,
}

impl Region {
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        let length = bytes.max(1).next_multiple_of(page_size());
        let spare = if length < HUGE_PAGE { 0 } else { HUGE_PAGE };
        let map: MmapMut = MmapOptions::new().len(length + spare).map_anon()?;
        let start = if spare == 0 { 0 } else { map.as_ptr().align_offset(HUGE_PAGE).min(spare) };
        // Fewer and larger pages are cheaper; where the system has none, small ones will do.
        #[cfg(target_os = "linux")]
        drop(map.advise_range(memmap2::Advice::HugePage, start, length - length % HUGE_PAGE));
        Ok(Self { map: MmapRaw::from(map), start, length, is_used: AtomicBool::new(false) })
    }

    /// In bytes, whole pages.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    pub(crate) fn as_mut_ptr(&self) -> *mut u8 {
        self.map.as_mut_ptr().wrapping_add(self.start)
    }

    /// Gives the pages back to the system.
    ///
    /// # Safety
    /// Nobody holds a reference to its memory.
    pub(crate) unsafe fn free(&self) {
        // SAFETY: the map is anonymous and private, so its pages stay valid and turn into zeros; the caller vouches that
        // nobody holds a reference to them. Where the system refuses, the pages just stay.
        drop(unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, self.start, self.length) });
    }

    /// Takes the pages of another region of the same length, with what is written in them, in place of its own. Whether the system did so; if not, nobody knows what either contains.
    ///
    /// # Safety
    /// Nobody holds a reference to the memory of either.
    pub(crate) unsafe fn take_pages(&self, other: &Self) -> bool {
        assert_eq!(self.length, other.length, "the lengths of regions");
        // SAFETY: the caller vouches that nobody uses either.
        self.parts().into_iter().all(|part| unsafe {
            part.is_empty() || move_pages(other.as_mut_ptr(), self.as_mut_ptr(), &part)
        })
    }

    /// Of huge pages and of others: the system moves pages of one kind at a time.
    fn parts(&self) -> [Range<usize>; 2] {
        let huge = self.length - self.length % HUGE_PAGE;
        [0..huge, huge..self.length]
    }
}

/// Moves the pages of a part, and leaves the part without pages where they were.
///
/// # Safety
/// The part is of anonymous private maps from both addresses on, which nobody uses.
#[cfg(target_os = "linux")]
unsafe fn move_pages(from: *mut u8, to: *mut u8, part: &Range<usize>) -> bool {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    let [from, to] = [from, to].map(|start| start.wrapping_add(part.start).cast::<libc::c_void>());
    // SAFETY: both ranges stay mapped: that of `to` anew with the pages, that of `from` by the last flag. A failure leaves that of
    // `from` as it was.
    unsafe {
        let is_moved = libc::mremap(from, part.len(), part.len(), flags, to) != libc::MAP_FAILED;
        if !is_moved {
            keep_mapped(to, part.len());
        }
        is_moved
    }
}

/// Maps a range again if nothing is mapped there: the system takes the pages at the target of a move away before it can find that it has no memory for
/// the map of a moved one. Without a map the process ends, as whoever wrote there would hit what others map there later.
///
/// # Safety
/// The range is of an anonymous private map, or was and has no map since.
#[cfg(target_os = "linux")]
unsafe fn keep_mapped(start: *mut libc::c_void, length: usize) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: it replaces no other map.
    let map = unsafe { libc::mmap(start, length, access, flags, -1, 0) };
    if map != libc::MAP_FAILED && map != start {
        // The system does not know the last flag, and gives another place where this one is taken.
        // SAFETY: nobody else knows the new map.
        unsafe { libc::munmap(map, length) };
        return;
    }
    let is_there = map == libc::MAP_FAILED && io::Error::last_os_error().raw_os_error() == Some(libc::EEXIST);
    if !is_there && map != start {
        eprintln!("brigade: the system took memory away and has none to replace it");
        std::process::abort();
    }
}

#[cfg(not(target_os = "linux"))]
unsafe fn move_pages(_: *mut u8, _: *mut u8, _: &Range<usize>) -> bool {
    false
}

fn page_size() -> usize {
    // SAFETY: it only reads a number.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(1 << 16)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_target_of_a_move_that_fails_is_mapped() {
        let region = Region::new(1 << 16).unwrap();
        let start = region.as_mut_ptr().cast::<libc::c_void>();
        // SAFETY: nobody holds a reference to it; it is mapped again before it is read.
        unsafe {
            *region.as_mut_ptr() = 7;
            keep_mapped(start, region.len());
            assert_eq!(*region.as_mut_ptr(), 7, "what is there stays");
            assert_eq!(libc::munmap(start, region.len()), 0);
            keep_mapped(start, region.len());
            assert_eq!(*region.as_mut_ptr(), 0, "zeros in place of what was taken away");
        }
    }
}
