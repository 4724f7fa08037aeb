//! Encoding of texts that name special tokens.

use std::ops::Range;

use tokenizers::processors::PostProcessorWrapper;

use super::Tokenizer;
use crate::Result;
use crate::text::panics::catch_panics;

impl Tokenizer {
    /// The ids of a text in which the names of special tokens stand for them, as templates of chats write it, and of each the bytes of the text
    /// that it stands for, spaces included: none for those that the tokenizer adds itself, which it does if `add_special_tokens`.
    ///
    /// # Errors
    /// [`Error::Tokenizer`](crate::Error::Tokenizer) where the library fails.
    pub fn encode_marked(
        &self,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<(Vec<u32>, Vec<Range<usize>>)> {
        let library = self.inner.marking.get_or_init(|| marking(&self.inner.library));
        let library = library.as_ref().unwrap_or(&self.inner.library);
        let encoding = catch_panics(|| library.encode(text, add_special_tokens));
        let encoding = encoding.map_err(|message| self.error(message))?;
        let offsets = encoding.get_offsets().iter().map(|(start, end)| *start..*end).collect();
        Ok((encoding.get_ids().to_vec(), offsets))
    }
}

/// What encodes marked texts, if it is not the library as it is.
fn marking(library: &tokenizers::Tokenizer) -> Option<tokenizers::Tokenizer> {
    let processor = library.get_post_processor();
    let whole = processor.cloned().map(with_spaces);
    if !library.get_encode_special_tokens() && whole.as_ref() == processor {
        return None;
    }
    let mut library = library.clone();
    library.set_encode_special_tokens(false);
    library.with_post_processor(whole);
    Some(library)
}

/// The same without `trim_offsets`, by which a token of spaces has no bytes.
fn with_spaces(processor: PostProcessorWrapper) -> PostProcessorWrapper {
    match processor {
        PostProcessorWrapper::ByteLevel(bytes) => bytes.trim_offsets(false).into(),
        PostProcessorWrapper::Roberta(roberta) => roberta.trim_offsets(false).into(),
        PostProcessorWrapper::Sequence(mut all) => {
            for part in all.as_mut() {
                *part = with_spaces(part.clone());
            }
            all.into()
        }
        other => other,
    }
}
