//! Making tokenizers: one for bytes, and BPE trained on a sample of text.

use tokenizers::decoders::DecoderWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Trainer};

use super::pre_tokenizer::{byte_to_unicode, bytes_to_unicode, pre_tokenize};
use super::{END_OF_TEXT, Tokenizer};
use crate::{Error, Result};

/// A pair of tokens that occurs less often does not become a token.
const MIN_PAIR_COUNT: u64 = 2;

/// Every byte is the token with its own number; 256 ends a text.
pub(super) fn byte_level() -> Result<Tokenizer> {
    let tokens = (0..=255u8).map(|byte| byte_to_unicode(byte).to_string()).chain([END_OF_TEXT.to_string()]);
    let vocabulary: Vec<(String, u32)> = tokens.zip(0..).collect();
    let model =
        BPE::builder().vocab_and_merges(vocabulary.into_iter().collect::<Vocabulary>(), Vec::new()).build();
    assemble("bytes", model.map_err(|error| failed("bytes", error))?)
}

/// Byte-level BPE of at most `size` tokens, from `texts`. The same texts give the same tokenizer, byte for byte:
/// counts do not depend on the order of counting, and among pairs with equal counts the older tokens win.
pub(super) fn bpe(size: usize, texts: &[String]) -> Result<Tokenizer> {
    let name = format!("bpe:{size}");
    let mut trainer = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(size)
        .min_frequency(MIN_PAIR_COUNT)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(vec![AddedToken::from(END_OF_TEXT, true)])
        .build();
    let mut model = BPE::default();
    trainer
        .feed(texts.iter(), |text| Ok(pre_tokenize(text).map(bytes_to_unicode).collect()))
        .and_then(|()| trainer.train(&mut model))
        .map_err(|error| failed(&name, error))?;
    assemble(&name, model)
}

type Vocabulary = tokenizers::models::bpe::Vocab;

fn assemble(name: &str, model: BPE) -> Result<Tokenizer> {
    let bytes = ByteLevel::new(false, false, true);
    let mut tokenizer = tokenizers::Tokenizer::new(model);
    tokenizer.with_pre_tokenizer(Some(PreTokenizerWrapper::ByteLevel(bytes)));
    tokenizer.with_decoder(Some(DecoderWrapper::ByteLevel(bytes)));
    tokenizer.add_special_tokens(&[AddedToken::from(END_OF_TEXT, true)]);
    Tokenizer::from_json(name, tokenizer.to_string(false).map_err(|error| failed(name, error))?)
}

fn failed(name: &str, error: tokenizers::Error) -> Error {
    Error::Tokenizer { tokenizer: name.into(), message: error.to_string() }
}
