//! Bytes that have arrived, where they lie.

use std::marker::PhantomData;

/// Bytes that a peer may have written, and that another process could write still, although the rules of a ring forbid it. So
/// nothing here borrows them: what is needed is copied out. A peer that breaks the rules only sends other bytes than it meant to.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    start: *const u8,
    count: usize,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> View<'a> {
    /// # Safety
    ///
    /// For `'a`, `count` bytes from `start` on can be read, and no thread of this process writes them.
    pub(crate) unsafe fn new(start: *const u8, count: usize) -> Self {
        Self { start, count, memory: PhantomData }
    }

    pub(crate) fn len(self) -> usize {
        self.count
    }

    /// The first `count` bytes.
    ///
    /// # Panics
    ///
    /// If there are fewer.
    pub(crate) fn first(self, count: usize) -> Self {
        assert!(count <= self.count);
        Self { count, ..self }
    }

    /// The first bytes as they are at one moment; `None` if there are too few.
    pub(crate) fn snapshot<const N: usize>(self) -> Option<[u8; N]> {
        // SAFETY: these bytes can be read (`new`), and an array of bytes lies at any address. Read as volatile, each is read
        // once, so that what is checked is what is used.
        (N <= self.count).then(|| unsafe { self.start.cast::<[u8; N]>().read_volatile() })
    }

    /// The cells of `N` bytes from number `from` on; bytes that fill none are left out.
    #[inline(always)]
    pub(crate) fn cells<const N: usize>(self, from: usize) -> impl Iterator<Item = [u8; N]> + use<'a, N> {
        // SAFETY: only whole cells of the bytes that can be read (`new`), and arrays of bytes lie at any address.
        (from..self.count / N).map(move |cell| unsafe { self.start.cast::<[u8; N]>().add(cell).read() })
    }

    /// Copies the first bytes to `into`.
    ///
    /// # Panics
    ///
    /// If there are fewer than `into` takes.
    pub(crate) fn copy_to(self, into: &mut [u8]) {
        assert!(into.len() <= self.count);
        // SAFETY: as many bytes can be read (`new`), and `into` is borrowed by nobody else.
        unsafe { self.start.copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) }
    }
}

impl<'a> From<&'a [u8]> for View<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self { start: bytes.as_ptr(), count: bytes.len(), memory: PhantomData }
    }
}
