//! The tokenizer of a preparation: given, of bytes, or trained on the text and kept in the cache.

use std::path::Path;

use brigade_random::keyed;
use serde::{Deserialize, Serialize};

use super::counts::COUNTS_FILE;
use super::options::PrepareOptions;
use super::sources::SourceFiles;
use super::spans::{PIECE_BYTES, spans};
use crate::text::corpus::{BytesRead, chunks, text_of_record};
use crate::text::prepare::cache::{CacheEntry, write_synced};
use crate::{Error, Progress, Result, TRAINING_SAMPLE_BYTES, Tokenizer, TokenizerSpec};

const TOKENIZER_FILE: &str = "tokenizer.json";

/// A span of the text gives at most this much to the sample, or its even share where spans are few.
const SAMPLE_SPAN_BYTES: u64 = 128 << 10;

/// A tokenizer, and how it was trained.
pub(super) struct Trained {
    pub(super) tokenizer: Tokenizer,
    /// Bytes of text that it was trained on; 0 where it was not trained.
    pub(super) training_bytes: u64,
    pub(super) notes: Vec<String>,
}

/// What is stored with a trained tokenizer.
#[derive(Serialize, Deserialize)]
struct Stored {
    hash: String,
    training_bytes: u64,
    notes: Vec<String>,
}

impl Trained {
    /// The tokenizer that `settings` ask for.
    pub(super) fn new(
        settings: &PrepareOptions,
        sources: &[&SourceFiles],
        progress: &dyn Progress,
    ) -> Result<Self> {
        let untrained = |tokenizer| Self { tokenizer, training_bytes: 0, notes: Vec::new() };
        let size = match &settings.tokenizer {
            TokenizerSpec::File(path) => return Tokenizer::from_file(path).map(untrained),
            TokenizerSpec::Bytes => return Tokenizer::bytes().map(untrained),
            TokenizerSpec::Bpe(size) => *size,
        };
        let mut hasher = settings.hasher();
        hasher.update(settings.tokenizer.to_string().as_bytes());
        sources.iter().for_each(|source| source.hash_into(&mut hasher));
        let place = CacheEntry::named(&settings.cache_dir, &hasher);
        if let Ok(trained) = Self::open(&place.folder()) {
            return Ok(trained);
        }
        let _lock = place.lock(settings.lock_timeout, progress)?;
        if let Ok(trained) = Self::open(&place.folder()) {
            return Ok(trained);
        }
        place.build(|folder| {
            let trained = Self::train(size, settings, sources, progress)?;
            // The entry is named by what was in the files.
            match sources.iter().flat_map(|source| &source.files).find(|file| !file.is_unchanged()) {
                Some(changed) => Err(Error::ChangedWhileReading { path: changed.file.path.clone() }),
                None => trained.write(folder),
            }
        })?;
        Self::open(&place.folder())
    }

    fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(COUNTS_FILE);
        let stored = std::fs::read(&path).map_err(|source| Error::io("read", &path, source))?;
        let damaged = |message| Error::TokenFile { path: path.clone(), message };
        let stored: Stored = serde_json::from_slice(&stored).map_err(|error| damaged(error.to_string()))?;
        let tokenizer = Tokenizer::from_file(&folder.join(TOKENIZER_FILE))?;
        if blake3::hash(tokenizer.json().as_bytes()).to_hex().as_str() != stored.hash {
            return Err(damaged("the tokenizer does not match its checksum".into()));
        }
        Ok(Self { tokenizer, training_bytes: stored.training_bytes, notes: stored.notes })
    }

    fn write(self, folder: &Path) -> Result<()> {
        let json = self.tokenizer.json().as_bytes();
        write_synced(&folder.join(TOKENIZER_FILE), json)?;
        let hash = blake3::hash(json).to_hex().to_string();
        let stored = Stored { hash, training_bytes: self.training_bytes, notes: self.notes };
        let path = folder.join(COUNTS_FILE);
        let stored = serde_json::to_vec_pretty(&stored);
        write_synced(&path, &stored.map_err(|error| Error::io("write", &path, error.into()))?)
    }

    /// BPE from the beginnings of files, and of parts of large files, all over the corpus, in an order that a hash of their position
    /// gives.
    fn train(
        size: usize,
        settings: &PrepareOptions,
        sources: &[&SourceFiles],
        progress: &dyn Progress,
    ) -> Result<Self> {
        let mut all = Vec::new();
        for source in sources {
            all.extend(spans(&source.files, PIECE_BYTES)?.into_iter().map(|span| (source, span)));
        }
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.sort_unstable_by_key(|&index| (keyed(0, index as u64), index));
        let share = (TRAINING_SAMPLE_BYTES / all.len().max(1) as u64).max(SAMPLE_SPAN_BYTES);
        let available: u64 = all.iter().map(|(_, span)| span.bytes.min(share)).sum();
        progress.start(available.min(TRAINING_SAMPLE_BYTES), "training the tokenizer");
        let (mut texts, mut total) = (Vec::new(), 0);
        'spans: for index in order {
            let (source, span) = &all[index];
            let (file, mut from_span) = (&source.files[span.file].file, 0);
            let records = settings.records.as_ref();
            for chunk in chunks(file, &span.part, &source.columns, records, &BytesRead::default())? {
                let chunk = chunk?;
                let text = if chunk.is_record { text_of_record(&chunk.text) } else { chunk.text };
                let bytes = text.len() as u64;
                from_span += bytes;
                total += bytes;
                progress.advance(bytes);
                texts.push(text);
                if total >= TRAINING_SAMPLE_BYTES {
                    break 'spans;
                }
                if from_span >= share {
                    break;
                }
            }
        }
        if total == 0 {
            return Err(settings.empty(sources.iter().map(|source| source.files.len()).sum()));
        }
        let tokenizer = Tokenizer::train_bpe(size, &texts)?;
        progress.finish();
        let mut notes = Vec::new();
        if tokenizer.vocabulary_size() < size {
            notes.push(format!(
                "the corpus only gives a vocabulary of {} tokens, fewer than the {size} requested",
                tokenizer.vocabulary_size()
            ));
        }
        Ok(Self { tokenizer, training_bytes: total, notes })
    }
}
