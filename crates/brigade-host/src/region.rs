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
    // SAFETY: both ranges stay mapped: that of `to` anew with the pages, that of `from` by the last flag.
    unsafe { libc::mremap(from, part.len(), part.len(), flags, to) != libc::MAP_FAILED }
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
