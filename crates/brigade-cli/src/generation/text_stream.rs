//! Text of tokens that come one by one.

use brigade::data::Tokenizer;

/// A character has at most four bytes, so that many tokens; where more give no whole character, their bytes are none.
const MAX_OPEN: usize = 4;

/// Gives text, without special tokens, as soon as it is certain: a character whose bytes are incomplete is held back, and what may be the beginning of a stop string. The text ends before
/// the first stop string.
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    stops: &'a [String],
    /// The last tokens: those before, on whose text that of the others may depend, and those whose text is not whole yet.
    tokens: Vec<u32>,
    /// How many of the tokens are those before.
    before: usize,
    /// What has been taken of the tokens' text.
    taken: String,
    /// What has been taken, but may belong to a stop string.
    held: String,
}

impl<'a> TextStream<'a> {
    /// What follows `before`, up to any of `stops`, none of which is empty.
    pub fn new(tokenizer: &'a Tokenizer, stops: &'a [String], before: &[u32]) -> anyhow::Result<Self> {
        let mut start = before.len().saturating_sub(MAX_OPEN);
        let least = (start + 1).saturating_sub(MAX_OPEN);
        // At the beginning of a character: some tokenizers take a run of bytes that begins within one for no characters at all.
        while start > least
            && tokenizer.decode_text(&before[start..])?.starts_with(char::REPLACEMENT_CHARACTER)
        {
            start -= 1;
        }
        let tokens = before[start..].to_vec();
        let (before, taken) = (tokens.len(), tokenizer.decode_text(&tokens)?);
        Ok(Self { tokenizer, stops, tokens, before, taken, held: String::new() })
    }

    /// Adds a token; gives the text that is certain now, and whether a stop string ends it.
    pub fn push(&mut self, token: u32) -> anyhow::Result<(String, bool)> {
        self.tokens.push(token);
        self.take(false)?;
        if let Some(end) = self.stops.iter().filter_map(|stop| self.held.find(stop)).min() {
            self.held.truncate(end);
            return Ok((std::mem::take(&mut self.held), true));
        }
        let may_be_stop =
            |start: &usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[*start..]));
        let starts = self.held.char_indices().map(|(start, _)| start);
        let certain = starts.into_iter().find(may_be_stop).unwrap_or(self.held.len());
        let rest = self.held.split_off(certain);
        Ok((std::mem::replace(&mut self.held, rest), false))
    }

    /// The rest of the text, where no stop string ends it.
    pub fn finish(mut self) -> anyhow::Result<String> {
        self.take(true)?;
        Ok(self.held)
    }

    /// Takes the text that is whole, or all of it at the end.
    fn take(&mut self, ends: bool) -> anyhow::Result<()> {
        let text = self.tokenizer.decode_text(&self.tokens)?;
        let whole = text.trim_end_matches(char::REPLACEMENT_CHARACTER);
        let is_over = ends || whole.len() == text.len() || self.tokens.len() - self.before > MAX_OPEN;
        let whole = if is_over { &text } else { whole };
        self.held.push_str(whole.strip_prefix(&self.taken).unwrap_or_default());
        if is_over {
            let last = self.tokenizer.decode_text(&self.tokens[self.before..])?;
            if last.is_empty() {
                // Whether a space follows depends on the text before special tokens.
                self.taken = text;
            } else {
                self.tokens.drain(..self.before);
                self.taken = last;
            }
            self.before = self.tokens.len();
        } else if whole.starts_with(&self.taken) {
            self.taken = whole.to_owned();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of a text as they come, and whether a stop string ended it.
    fn parts(text: &[u8], stops: &[&str]) -> (Vec<String>, bool) {
        let (tokenizer, stops) = (Tokenizer::bytes().unwrap(), stops.iter().map(|stop| (*stop).to_owned()));
        let (stops, mut parts) = (stops.collect::<Vec<_>>(), Vec::new());
        let mut stream = TextStream::new(&tokenizer, &stops, &tokenizer.encode("é").unwrap()).unwrap();
        for byte in text {
            let (part, stopped) = stream.push(u32::from(*byte)).unwrap();
            parts.push(part);
            if stopped {
                return (parts, true);
            }
        }
        parts.push(stream.finish().unwrap());
        (parts, false)
    }

    #[test]
    fn characters_come_whole() {
        let (parts, _) = parts("aé🦀b".as_bytes(), &[]);
        assert_eq!(parts, ["a", "", "é", "", "", "", "🦀", "b", ""]);
    }

    #[test]
    fn bytes_that_are_no_text_are_not_waited_for() {
        let (parts, _) = parts(b"\xf0\xf0\xf0\xf0\xf0\xf0ab\xf0", &[]);
        let (first, rest): (String, _) = (parts[..6].concat(), parts[6..].concat());
        assert!(first.chars().count() >= 2, "{parts:?}");
        assert_eq!(first + &rest, "\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}ab\u{fffd}");
    }

    #[test]
    fn a_text_ends_before_the_first_stop_string() {
        assert_eq!(
            parts(b"one. two", &[". ", "tw"]),
            (vec!["o".into(), "n".into(), "e".into(), String::new(), String::new()], true)
        );
        assert_eq!(parts(b"aab", &["aaa"]).0.concat(), "aab");
        assert_eq!(parts(b"aaab", &["aab"]).0.concat(), "a");
        assert_eq!(parts("é".as_bytes(), &["é"]), (vec![String::new(), String::new()], true));
        assert_eq!(parts(b"xa", &["ab"]).0, ["x", "", "a"]);
    }

    /// A tokenizer of bytes as Llama's are where nothing else is in the vocabulary: a run of bytes that is no text is no characters at all.
    fn byte_fallback() -> Tokenizer {
        let vocabulary: serde_json::Map<_, _> =
            (0..256).map(|byte| (format!("<0x{byte:02X}>"), byte.into())).collect();
        let json = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "pre_tokenizer": null, "post_processor": null,
            "added_tokens": [{
                "id": 256, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true,
            }],
            "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
            "model": {"type": "BPE", "byte_fallback": true, "vocab": vocabulary, "merges": []},
        });
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        std::fs::write(&path, json.to_string()).unwrap();
        Tokenizer::from_file(&path).unwrap()
    }

    #[test]
    fn what_is_before_begins_with_a_character() {
        let tokenizer = byte_fallback();
        let ids = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
        for before in ["ሰላም", "ሰላምa", "a🦀é", "ሰ", ""] {
            let mut stream = TextStream::new(&tokenizer, &[], &ids(before)).unwrap();
            let parts: Vec<_> =
                ids("ልጅ🦀ነው").into_iter().map(|token| stream.push(token).unwrap().0).collect();
            assert_eq!(parts.concat() + &stream.finish().unwrap(), "ልጅ🦀ነው", "{before}");
        }
    }
}
