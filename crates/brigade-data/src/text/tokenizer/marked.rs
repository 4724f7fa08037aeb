//! Encoding of texts that name special tokens.

use std::ops::Range;

use super::Tokenizer;
use crate::Result;
use crate::text::panics::catch_panics;

impl Tokenizer {
    /// The ids of a text in which the names of special tokens stand for them, as templates of chats write it, and of each the bytes of the text
    /// that it stands for: none for those that the tokenizer adds itself, which it does if `add_special_tokens`.
    ///
    /// # Errors
    /// [`Error::Tokenizer`](crate::Error::Tokenizer) where the library fails.
    pub fn encode_marked(
        &self,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<(Vec<u32>, Vec<Range<usize>>)> {
        let library = match self.splits_special_tokens() {
            false => &self.inner.library,
            true => self.inner.marking.get_or_init(|| {
                let mut library = self.inner.library.clone();
                library.set_encode_special_tokens(false);
                library
            }),
        };
        let encoding = catch_panics(|| library.encode(text, add_special_tokens));
        let encoding = encoding.map_err(|message| self.error(message))?;
        let offsets = encoding.get_offsets().iter().map(|(start, end)| *start..*end).collect();
        Ok((encoding.get_ids().to_vec(), offsets))
    }
}
