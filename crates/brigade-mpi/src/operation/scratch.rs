//! Memory of an operation's own.

/// Bytes at an address that numbers of any type may have.
#[derive(Debug, Default)]
pub(crate) struct Scratch(Vec<u64>);

impl Scratch {
    /// Memory of at least this many bytes, with any contents.
    ///
    /// # Errors
    /// If there is none, in words.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<*mut u8, String> {
        let words = bytes.div_ceil(size_of::<u64>());
        if self.0.len() < words {
            let more = words - self.0.len();
            let none = |error| format!("no memory for {bytes} bytes from other ranks: {error}");
            self.0.try_reserve_exact(more).map_err(none)?;
            self.0.resize(words, 0);
        }
        Ok(self.0.as_mut_ptr().cast())
    }

    /// Its first bytes.
    pub(crate) fn bytes(&self, count: usize) -> &[u8] {
        assert!(count <= size_of_val(&self.0[..]));
        // SAFETY: whole words are initialized, and this many bytes are in them.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), count) }
    }

    /// Its first words.
    pub(crate) fn words(&mut self, count: usize) -> &mut [u64] {
        &mut self.0[..count]
    }
}
