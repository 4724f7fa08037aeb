//! How GPT-2 cuts text into words, and its letters for bytes.
//!
//! The pattern is that of the GPT-2 release (`encoder.py`):
//! `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`. Its only look-ahead makes the last character of
//! white space before a word part of the word's token. This is done by hand here, so that an automaton without backtracking can do
//! the rest; the result is the same, many times faster.

use std::sync::LazyLock;

use regex::Regex;

static WORD: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+").ok());

/// The letter that stands for each byte in the tokens of a byte-level vocabulary: printable Latin-1 characters stand
/// for themselves, the other bytes for the characters from U+0100 on.
static LETTERS: LazyLock<[char; 256]> = LazyLock::new(|| {
    let mut next = 0x100;
    std::array::from_fn(|byte| match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from(byte as u8),
        _ => {
            next += 1;
            char::from_u32(next - 1).unwrap_or(char::REPLACEMENT_CHARACTER)
        }
    })
});

/// The words of `text`, in order; together they are the whole text.
pub(super) fn pre_tokenize(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        // The pattern matches any character, so only the end of the text has no match.
        let end = WORD.as_ref()?.find(rest)?.end();
        let last = rest[..end].char_indices().next_back().map_or(0, |(start, _)| start);
        let before_a_word = end < rest.len() && last > 0 && rest[last..end].starts_with(char::is_whitespace);
        let (word, left) = rest.split_at(if before_a_word { last } else { end });
        rest = left;
        Some(word)
    })
}

/// The letter that stands for `byte`.
pub(super) fn byte_to_unicode(byte: u8) -> char {
    LETTERS[usize::from(byte)]
}

/// A word in the letters that stand for its bytes.
pub(super) fn bytes_to_unicode(word: &str) -> String {
    word.bytes().map(byte_to_unicode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

    fn reference(text: &str) -> Vec<String> {
        let mut split = PreTokenizedString::from(text);
        ByteLevel::new(false, false, true).pre_tokenize(&mut split).unwrap();
        let splits = split.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.into_iter().map(|(word, ..)| word.to_string()).collect()
    }

    fn check(text: &str) {
        assert_eq!(pre_tokenize(text).map(bytes_to_unicode).collect::<Vec<_>>(), reference(text), "{text:?}");
        assert_eq!(pre_tokenize(text).collect::<String>(), text);
    }

    #[test]
    fn words_are_those_of_gpt2() {
        for text in [
            "",
            " ",
            "  ",
            "fn main() {\n    println!(\"it's {} they'll\", 42);\n}\n",
            "a  b\t\tc \n\n d   ",
            "don't I'M we've x'd 's",
            "naïve 中文 ２３ ½ é\u{301} \u{a0}\u{3000}x 🦀🦀 \u{200d}",
            "\u{1c}\u{85}x\r\n\r\ny",
        ] {
            check(text);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_split_as_gpt2_does(text: String) {
            check(&text);
        }

        #[test]
        fn texts_of_few_kinds_of_characters_too(text in "[ \n\ta'sl1.é中\u{a0}]{0,40}") {
            check(&text);
        }
    }
}
