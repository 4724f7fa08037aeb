//! From a corpus to token files, once.
//!
//! ```text
//! files ─▶ pieces (about 32 MiB each) ─▶ tokens of each piece ─▶ train, validation
//!          known from the files alone     by any process, and     one process copies the documents of all pieces
//!                                         kept if it is killed    in order, and deals them out
//! ```

mod cache;
mod parallel;
mod share;
mod sources;
mod spans;
mod split;
#[cfg(test)]
mod tests;
mod tokenize;
mod tokenizer;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use self::parallel::Workers;
pub use self::sources::{DataSource, PreparedSource};
use self::sources::{Preparation, SourceFiles};
use self::tokenizer::Trained;
use crate::text::dataset::FORMAT_VERSION;
use crate::{
    Corpus, Error, Progress, RecordEncoder, Result, RowOptions, SequenceLayout, Tokenizer, TokenizerSpec,
};

/// The version of what an entry of the cache holds for the same content and settings: a change of the tokenizing, of
/// the sample or of the split needs another number.
const CONTENT_VERSION: u32 = 4;

const TOKENIZER_FILE: &str = "tokenizer.json";
const COUNTS_FILE: &str = "counts.json";
const TRAIN: &str = "train";
const VALIDATION: &str = "validation";

/// What to prepare, and how.
#[derive(Debug, Clone)]
pub struct PrepareOptions {
    /// Where the text comes from; at least one source.
    pub sources: Vec<DataSource>,
    /// How text becomes tokens.
    pub tokenizer: TokenizerSpec,
    /// How documents become rows.
    pub rows: RowOptions,
    /// Makes examples from records other than plain texts; without it, every record is a text.
    pub records: Option<Arc<dyn RecordEncoder>>,
    /// The part of each source's documents that is kept for validation, at least 0 and below 1; 0 keeps none. A source with validation
    /// files of its own keeps none.
    pub validation_fraction: f64,
    /// Chooses which documents those are, among all of a source.
    pub split_seed: u64,
    /// The folder of the cache; it is made where it does not exist.
    pub cache_dir: PathBuf,
    /// How many threads tokenize; 0 is one a core. The result does not depend on it.
    pub threads: usize,
    /// How long another process that tokenizes the same text is waited for while none of its work is done.
    pub lock_timeout: Duration,
}

impl PrepareOptions {
    /// Prepares `corpus` with a cache in `cache_dir`, and otherwise with the default settings: `bpe:4096`, texts packed
    /// into rows of 256 tokens, 5% of the documents for validation, all cores, half an hour of waiting.
    pub fn new(corpus: Corpus, cache_dir: impl Into<PathBuf>) -> Self {
        Self::of(vec![DataSource::new(corpus)], cache_dir)
    }

    /// The same for several sources.
    pub fn of(sources: Vec<DataSource>, cache_dir: impl Into<PathBuf>) -> Self {
        Self {
            sources,
            tokenizer: TokenizerSpec::default(),
            rows: RowOptions::new(256, SequenceLayout::Auto),
            records: None,
            validation_fraction: 0.05,
            split_seed: 0,
            cache_dir: cache_dir.into(),
            threads: 0,
            lock_timeout: Duration::from_secs(1800),
        }
    }

    fn check(&self) -> Result<()> {
        if !(0.0..1.0).contains(&self.validation_fraction) {
            let allowed = "it must be at least 0 and below 1".into();
            let given = self.validation_fraction.to_string();
            return Err(Error::InvalidSetting { option: "validation_fraction", given, allowed });
        }
        if self.rows.sequence_length == 0 {
            let allowed = "it must be at least 1".into();
            return Err(Error::InvalidSetting { option: "sequence_length", given: "0".into(), allowed });
        }
        if self.sources.is_empty() {
            return Err(self.empty(&[]));
        }
        for DataSource { weight, .. } in &self.sources {
            if !(weight.is_finite() && *weight > 0.0) {
                let allowed = "it must be a number above 0; leave the source out to skip it".into();
                return Err(Error::InvalidSetting {
                    option: "data.source.weight",
                    given: weight.to_string(),
                    allowed,
                });
            }
        }
        Ok(())
    }

    fn describe(&self) -> String {
        self.sources.iter().map(|source| source.corpus.describe()).collect::<Vec<_>>().join(", ")
    }

    /// No text in any source.
    fn empty(&self, sources: &[&SourceFiles]) -> Error {
        let files = sources.iter().map(|source| source.files.len()).sum();
        let corpus =
            if self.sources.is_empty() { "an empty list of sources".into() } else { self.describe() };
        Error::EmptyCorpus { corpus, files }
    }

    /// Begins the name of an entry of the cache: a hash of all that its content depends on, and of nothing else.
    fn hasher(&self) -> blake3::Hasher {
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("{FORMAT_VERSION} {CONTENT_VERSION}\n").as_bytes());
        if let Some(records) = &self.records {
            hasher.update(format!("{}\n", blake3::hash(records.identity().as_bytes())).as_bytes());
        }
        hasher
    }
}

/// Finds the tokenized sources in the cache, or makes them. Several processes that ask for the same at once share the work; what a
/// killed one has finished is kept.
///
/// # Errors
/// What is wrong with the settings, the sources or the tokenizer file; [`Error::DiskFull`], [`Error::Io`];
/// [`Error::LockTimeout`]; [`Error::ChangedWhileReading`] where a file is written to meanwhile.
pub fn prepare(settings: &PrepareOptions, progress: &dyn Progress) -> Result<PreparedData> {
    let begin = Instant::now();
    settings.check()?;
    let cache = &settings.cache_dir;
    std::fs::create_dir_all(cache).map_err(|source| Error::io("create cache folder", cache, source))?;
    let workers = Workers::start(settings.threads)?;
    let read = |source| SourceFiles::read(source, settings, &workers, progress);
    let files: Vec<(SourceFiles, Option<SourceFiles>)> =
        settings.sources.iter().map(read).collect::<Result<_>>()?;
    let all: Vec<&SourceFiles> = files.iter().map(|(train, _)| train).collect();
    let trained = Trained::new(settings, &all, progress)?;
    let preparation = Preparation { settings, tokenizer: &trained.tokenizer, workers: &workers, progress };
    let entries = files.iter().map(|(train, validation)| preparation.entries(train, validation.as_ref()));
    let entries = entries.collect::<Result<Vec<_>>>()?;
    let rows = preparation.rows(&entries);
    let entries = settings.sources.iter().zip(&files).zip(entries);
    let sources =
        entries.map(|((source, files), entries)| preparation.prepared(source, files, entries, rows));
    let sources: Vec<PreparedSource> = sources.collect::<Result<_>>()?;
    let mut counts = DataCounts { notes: trained.notes, ..DataCounts::default() };
    counts.tokenizer_training_bytes = trained.training_bytes;
    sources.iter().for_each(|source| counts.add(&source.counts));
    let mut hasher = blake3::Hasher::new();
    for source in &sources {
        hasher.update(format!("{} {}\n", source.key, source.weight.to_bits()).as_bytes());
    }
    let summary = DataSummary {
        corpus: settings.describe(),
        tokenizer: settings.tokenizer.to_string(),
        vocabulary_size: trained.tokenizer.vocabulary_size(),
        files: sources.iter().map(|source| source.files).sum(),
        file_bytes: sources.iter().map(|source| source.file_bytes).sum(),
        counts,
        train_sequences: sources.iter().map(|source| source.train.len()).sum(),
        validation_sequences: sources.iter().map(|source| source.validation.len()).sum(),
        key: hasher.finalize().to_hex()[..32].to_string(),
        from_cache: sources.iter().all(|source| source.from_cache),
        seconds: begin.elapsed().as_secs_f64(),
    };
    Ok(PreparedData { tokenizer: trained.tokenizer, sources, summary })
}

/// A corpus that is ready to train on.
#[derive(Debug, Clone)]
pub struct PreparedData {
    /// Made or read for this corpus.
    pub tokenizer: Tokenizer,
    /// The tokens, in the order of the sources.
    pub sources: Vec<PreparedSource>,
    /// What was found and done, in numbers.
    pub summary: DataSummary,
}

/// What a corpus holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataSummary {
    /// The corpus in a few words.
    pub corpus: String,
    /// The tokenizer as it was asked for.
    pub tokenizer: String,
    /// The number of ids.
    pub vocabulary_size: usize,
    /// The number of files.
    pub files: usize,
    /// Their size together.
    pub file_bytes: u64,
    /// What was counted while tokenizing.
    pub counts: DataCounts,
    /// The number of sequences to train on.
    pub train_sequences: usize,
    /// The number of sequences to validate on.
    pub validation_sequences: usize,
    /// A hash of all that decides the tokens and how they are mixed.
    pub key: String,
    /// Whether all of it was there already.
    pub from_cache: bool,
    /// How long all of it took.
    pub seconds: f64,
}

/// What was counted while tokenizing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataCounts {
    /// Bytes of text, prompts included.
    pub text_bytes: u64,
    /// Documents that were records of examples rather than texts.
    #[serde(default)]
    pub examples: u64,
    /// Examples that were cut because a row does not hold them.
    #[serde(default)]
    pub cut_examples: u64,
    /// How many tokens were cut of them.
    #[serde(default)]
    pub cut_tokens: u64,
    /// Documents to train on.
    pub train_documents: usize,
    /// Documents to validate on.
    pub validation_documents: usize,
    /// Tokens to train on, end-of-text tokens included.
    pub train_tokens: u64,
    /// Tokens to validate on, end-of-text tokens included.
    pub validation_tokens: u64,
    /// Tokens of prompts, which do not count in the loss.
    pub masked_tokens: u64,
    /// Bytes of text that the tokenizer was trained on; 0 where it was not trained.
    pub tokenizer_training_bytes: u64,
    /// What was done otherwise than the settings say, and why.
    pub notes: Vec<String>,
}

impl DataCounts {
    fn add(&mut self, other: &Self) {
        self.text_bytes += other.text_bytes;
        self.examples += other.examples;
        self.cut_examples += other.cut_examples;
        self.cut_tokens += other.cut_tokens;
        self.train_documents += other.train_documents;
        self.validation_documents += other.validation_documents;
        self.train_tokens += other.train_tokens;
        self.validation_tokens += other.validation_tokens;
        self.masked_tokens += other.masked_tokens;
        self.notes.extend_from_slice(&other.notes);
    }
}
