//! Text to token ids and back.

mod class;
mod companion_files;
mod conversion;
mod encode;
mod encode_marked;
mod pre_tokenizer;
mod spec;
mod train;
mod whole_text;

use std::path::Path;
use std::sync::{Arc, OnceLock};

use brigade_files::write_atomic;
use tokenizers::models::ModelWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{Encoding, PostProcessor, TruncationDirection, TruncationParams, truncate_encodings};

use class::ClassSettings;
use companion_files::{CompanionFiles, SPECIAL_TOKENS};
pub use conversion::conversion_hint;
pub use encode::CachingEncoder;
use encode::SpecialNames;
pub use spec::TokenizerSpec;
pub use whole_text::WholeText;

use crate::text::panics::catch_panics;
use crate::{Error, Result};

/// The token that ends a text, in the tokenizers that are made here.
pub const END_OF_TEXT: &str = "<|endoftext|>";

/// BPE is trained on at most about this many bytes: parts of files from all over the corpus.
pub const TRAINING_SAMPLE_BYTES: u64 = 8 << 20;

/// Names of the end-of-text token in the files of well-known models, in order of preference.
const END_OF_TEXT_NAMES: [&str; 7] =
    [END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[EOS]", "[SEP]"];

/// A tokenizer with a known end-of-text token. Cloning it is cheap.
///
/// The names of special tokens in a text are these tokens, as for the `transformers` library: `<|endoftext|>` ends a text there. A tokenizer
/// whose `tokenizer_config.json` sets `split_special_tokens` splits them like any other text, but in
/// [`encode_marked`](Self::encode_marked).
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    json: String,
    library: tokenizers::Tokenizer,
    /// What encodes marked texts, if it differs.
    marking: OnceLock<Option<tokenizers::Tokenizer>>,
    encoding: EncodingMethod,
    /// The names that only the library finds; `None` if they are split, or if it encodes everything.
    special: Option<SpecialNames>,
    end_of_text: u32,
    /// Whether another token would end a text if no other file named one.
    is_end_named_beside: bool,
    class: Option<ClassSettings>,
    /// Where texts are cut that are too long.
    truncation: TruncationDirection,
    vocabulary_size: usize,
}

/// How text is encoded; the results are the library's, but faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EncodingMethod {
    /// Bytes are ids.
    Bytes,
    /// GPT-2's words, each encoded by the model once.
    Words,
    /// Everything by the library.
    Library,
}

impl Tokenizer {
    /// The tokenizer in which every byte is the token of its own number.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] where the library refuses the vocabulary.
    pub fn bytes() -> Result<Self> {
        train::byte_level()
    }

    /// Byte-level BPE of at most `vocabulary_size` tokens, from `texts`. The same texts give the same bytes of
    /// [`Tokenizer::json`].
    ///
    /// # Errors
    /// [`Error::Tokenizer`] where the training fails.
    pub fn train_bpe(vocabulary_size: usize, texts: &[String]) -> Result<Self> {
        train::bpe(vocabulary_size, texts)
    }

    /// Reads a `tokenizer.json`, one of this crate's or of the `tokenizers` library. Its end-of-text token is the `eos_token` of the
    /// `tokenizer_config.json` or `special_tokens_map.json` beside it, or else one that well-known models have. The former may set
    /// `split_special_tokens` and `truncation_side`, and what its `tokenizer_class` takes from there in `transformers`, such as `do_lower_case` and `add_prefix_space`.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the file cannot be read, is not a tokenizer, has no end-of-text token, or encodes at
    /// random.
    pub fn from_file(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(json) => Self::with_companions(&name, json, CompanionFiles::read(path)),
            Err(error) => {
                let message = format!("it cannot be read: {error}{}", conversion_hint(path));
                Err(Error::Tokenizer { tokenizer: name, message })
            }
        }
    }

    pub(crate) fn from_json(name: &str, json: String) -> Result<Self> {
        Self::with_companions(name, json, CompanionFiles::default())
    }

    fn with_companions(name: &str, json: String, companions: CompanionFiles) -> Result<Self> {
        let refuse = |message: String| Error::Tokenizer { tokenizer: name.into(), message };
        let mut library =
            catch_panics(|| tokenizers::Tokenizer::from_bytes(json.as_bytes())).map_err(refuse)?;
        if let ModelWrapper::BPE(model) = library.get_model()
            && model.dropout.is_some_and(|dropout| dropout > 0.0)
        {
            return Err(refuse(
                "it has BPE dropout, which makes encoding random; set \"dropout\" to null".into(),
            ));
        }
        if let Some(class) = companions.class {
            class.apply(&mut library);
        }
        library.set_encode_special_tokens(companions.split_special_tokens);
        let own = library.get_truncation().map(|own| own.direction);
        let truncation = companions.truncation.or(own).unwrap_or_default();
        library.with_padding(None);
        library.with_truncation(None).map_err(|error| refuse(error.to_string()))?;
        let usual = END_OF_TEXT_NAMES.iter().find_map(|token| library.token_to_id(token));
        let named = companions.end_of_text.and_then(|token| library.token_to_id(&token));
        let is_end_named_beside = named.is_some() && named != usual;
        let end_of_text = named.or(usual).ok_or_else(|| {
            refuse(format!(
                "it has no end-of-text token; one of {} is needed, or an `eos_token` in the {} beside it",
                END_OF_TEXT_NAMES.join(" "),
                SPECIAL_TOKENS[0]
            ))
        })?;
        let vocabulary_size = library.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1);
        let encoding = choose_encoding(&library, vocabulary_size);
        let by_library = companions.split_special_tokens || encoding == EncodingMethod::Library;
        let special = (!by_library).then(|| SpecialNames::of(&library)).transpose();
        let special = special.map_err(|error| refuse(error.to_string()))?;
        let (name, marking) = (name.into(), OnceLock::new());
        Ok(Self {
            inner: Arc::new(Inner {
                name,
                json,
                library,
                marking,
                encoding,
                special,
                end_of_text,
                is_end_named_beside,
                class: companions.class,
                truncation,
                vocabulary_size,
            }),
        })
    }

    /// Writes the tokenizer as a `tokenizer.json` that [`Tokenizer::from_file`] and the `tokenizers` library read.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::DiskFull`].
    pub fn save(&self, path: &Path) -> Result<()> {
        write_atomic(path, self.inner.json.as_bytes())
            .map_err(|source| Error::io("write tokenizer", path, source))
    }

    /// The content of its `tokenizer.json`.
    pub fn json(&self) -> &str {
        &self.inner.json
    }

    /// The number of ids; all ids are below it. A model's vocabulary must be at least as large.
    pub fn vocabulary_size(&self) -> usize {
        self.inner.vocabulary_size
    }

    /// The number of ids without those of added tokens above all others: a text has these only where it has their names.
    pub fn size_without_added(&self) -> usize {
        let added = self.inner.library.get_added_tokens_decoder();
        let ids = self.inner.library.get_vocab(false).into_values();
        ids.filter(|id| !added.contains_key(id)).max().map_or(0, |id| id as usize + 1)
    }

    /// The id that ends a text.
    pub fn end_of_text(&self) -> u32 {
        self.inner.end_of_text
    }

    /// The id that ends a text, if that is another one than without the files beside `tokenizer.json`.
    pub(crate) fn end_named_beside(&self) -> Option<u32> {
        self.inner.is_end_named_beside.then_some(self.inner.end_of_text)
    }

    /// What else the files beside `tokenizer.json` change of the ids, as text to compare.
    pub(crate) fn set_beside(&self) -> String {
        let side = match self.inner.truncation {
            TruncationDirection::Left => " left",
            TruncationDirection::Right => "",
        };
        format!("{} {:?}{side}", self.splits_special_tokens(), self.inner.class)
    }

    /// Whether the names of special tokens are split like any other text.
    fn splits_special_tokens(&self) -> bool {
        self.inner.library.get_encode_special_tokens()
    }

    /// The ids of `text`, without an end-of-text token at its end. For many texts a [`CachingEncoder`] is faster.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] where the library fails.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        self.encoder().encode(text, &mut ids)?;
        Ok(ids)
    }

    /// The ids that the file puts before a text that a model is to continue: a beginning-of-text token, or none.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] where the library fails.
    pub fn beginning(&self) -> Result<Vec<u32>> {
        let [plain, whole] = [false, true].map(|special| {
            catch_panics(|| self.inner.library.encode_fast("a", special))
                .map_err(|message| self.error(message))
        });
        let (plain, whole) = (plain?, whole?);
        let (plain, whole) = (plain.get_ids(), whole.get_ids());
        let start = whole.windows(plain.len().max(1)).position(|window| window == plain);
        Ok(whole[..start.unwrap_or(0)].to_vec())
    }

    /// The ids of a text in which the names of special tokens stand for these, as a chat's template writes them.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] where the library fails.
    pub fn encode_special(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.encode_marked(text, false)?.0)
    }

    /// The ids of `text` with the special tokens that the tokenizer puts around a text, such as `[CLS]` and `[SEP]`; of a longer text as many of its first
    /// tokens as fit between them into `most`, or of its last ones where its files say that texts are truncated on the left.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] where the library fails, or `most` has no room for the special tokens.
    pub fn encode_whole(&self, text: &str, most: usize) -> Result<WholeText> {
        self.encode_texts(text, None, most)
    }

    /// As [`encode_whole`](Self::encode_whole) of two texts. What does not fit is cut from the longer text.
    ///
    /// # Errors
    /// As [`encode_whole`](Self::encode_whole).
    pub fn encode_pair(&self, texts: [&str; 2], most: usize) -> Result<WholeText> {
        self.encode_texts(texts[0], Some(texts[1]), most)
    }

    fn encode_texts(&self, text: &str, second: Option<&str>, most: usize) -> Result<WholeText> {
        let library = &self.inner.library;
        let is_pair = second.is_some();
        let added = library.get_post_processor().map_or(0, |processor| processor.added_tokens(is_pair));
        let most = most.checked_sub(added).ok_or_else(|| {
            let around = if is_pair { "two texts" } else { "a text" };
            self.error(format!(
                "it puts {added} special tokens around {around}, but at most {most} tokens are wanted"
            ))
        })?;
        let encoded = catch_panics(|| {
            let first = library.encode_fast(text, false)?;
            let second = second.map(|second| library.encode_fast(second, false)).transpose()?;
            let tokens = |first: &Encoding, second: Option<&Encoding>| {
                first.get_ids().len() + second.map_or(0, |second| second.get_ids().len())
            };
            let given = tokens(&first, second.as_ref());
            let direction = self.inner.truncation;
            let cut = TruncationParams { max_length: most, direction, ..TruncationParams::default() };
            let (first, second) = truncate_encodings(first, second, &cut)?;
            let cut = given - tokens(&first, second.as_ref());
            library.post_process(first, second, true).map(|encoding| (encoding, cut))
        });
        let (encoding, cut) = encoded.map_err(|message| self.error(message))?;
        let of_second = encoding.get_type_ids().iter().map(|kind| *kind > 0).collect();
        Ok(WholeText { ids: encoding.get_ids().to_vec(), of_second, cut })
    }

    /// The id of the token that stands for one that is masked (`[MASK]`, `<mask>`), if there is one.
    pub fn mask_token(&self) -> Option<u32> {
        ["[MASK]", "<mask>"].iter().find_map(|token| self.inner.library.token_to_id(token))
    }

    /// The id of the token that fills rows (`[PAD]`, `<pad>`), if there is one.
    pub fn padding_token(&self) -> Option<u32> {
        ["[PAD]", "<pad>"].iter().find_map(|token| self.inner.library.token_to_id(token))
    }

    /// The ids of all special tokens, in order.
    pub fn special_tokens(&self) -> Vec<u32> {
        let added = self.inner.library.get_added_tokens_decoder();
        let mut ids: Vec<u32> = added.iter().filter(|(_, token)| token.special).map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }

    /// An encoder that caches words; use one per thread.
    pub fn encoder(&self) -> CachingEncoder {
        CachingEncoder::new(self.clone())
    }

    /// The text of `ids`, special tokens by their names. Bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] where an id is outside the vocabulary or the library fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.decoded(ids, false)
    }

    /// The text of `ids`, as [`decode`](Self::decode) gives it, without special tokens.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    pub fn decode_text(&self, ids: &[u32]) -> Result<String> {
        self.decoded(ids, true)
    }

    fn decoded(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        if let Some(id) = ids.iter().find(|&&id| id as usize >= self.inner.vocabulary_size) {
            return Err(
                self.error(format!("id {id} is outside the vocabulary of {}", self.inner.vocabulary_size))
            );
        }
        catch_panics(|| self.inner.library.decode(ids, skip_special)).map_err(|message| self.error(message))
    }

    fn error(&self, message: String) -> Error {
        Error::Tokenizer { tokenizer: self.inner.name.clone(), message }
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("name", &self.inner.name)
            .field("vocabulary_size", &self.inner.vocabulary_size)
            .field("end_of_text", &self.inner.end_of_text)
            .finish_non_exhaustive()
    }
}

/// The fastest encoding that gives the library's results.
fn choose_encoding(library: &tokenizers::Tokenizer, vocabulary_size: usize) -> EncodingMethod {
    let gpt2_words = matches!(
        library.get_pre_tokenizer(),
        Some(PreTokenizerWrapper::ByteLevel(bytes)) if bytes.use_regex && !bytes.add_prefix_space
    );
    let plain = library.get_normalizer().is_none()
        && library.get_added_tokens_decoder().values().all(|token| token.special);
    if !(gpt2_words && plain && matches!(library.get_model(), ModelWrapper::BPE(_))) {
        return EncodingMethod::Library;
    }
    let is_byte = |byte: u8| {
        library.token_to_id(&pre_tokenizer::byte_to_unicode(byte).to_string()) == Some(u32::from(byte))
    };
    if vocabulary_size == 257 && (0..=255).all(is_byte) {
        EncodingMethod::Bytes
    } else {
        EncodingMethod::Words
    }
}

#[cfg(test)]
mod tests;
