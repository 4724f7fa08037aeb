//! What to prepare, and how.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::text::dataset::FORMAT_VERSION;
use crate::{Columns, Corpus, Error, RecordEncoder, Result, RowOptions, SequenceLayout, TokenizerSpec};

/// The version of what an entry of the cache holds for the same content and settings: a change of the tokenizing, of
/// the sample or of the split needs another number.
const CONTENT_VERSION: u32 = 5;

/// One source of text.
#[derive(Debug, Clone, PartialEq)]
pub struct DataSource {
    /// Its files.
    pub corpus: Corpus,
    /// Which columns of lines and rows are read.
    pub columns: Columns,
    /// Its share of the samples, as a part of the sum of all weights; above 0.
    pub weight: f64,
    /// Files to validate on, which no source trains on. Without them, a part of the documents is kept for it.
    pub validation: Option<Corpus>,
}

impl DataSource {
    /// A source with weight 1 and the usual columns.
    pub fn new(corpus: Corpus) -> Self {
        Self { corpus, columns: Columns::default(), weight: 1.0, validation: None }
    }
}

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
    /// How long another process that tokenizes the same text is waited for while nothing shows that it works.
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

    pub(super) fn check(&self) -> Result<()> {
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
            return Err(self.empty(0));
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

    pub(super) fn describe(&self) -> String {
        self.sources.iter().map(|source| source.corpus.describe()).collect::<Vec<_>>().join(", ")
    }

    /// No text in any of the sources' files.
    pub(super) fn empty(&self, files: usize) -> Error {
        let corpus =
            if self.sources.is_empty() { "an empty list of sources".into() } else { self.describe() };
        Error::EmptyCorpus { corpus, files }
    }

    /// Begins the name of an entry of the cache: a hash of all that its content depends on, and of nothing else.
    pub(super) fn hasher(&self) -> blake3::Hasher {
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("{FORMAT_VERSION} {CONTENT_VERSION}\n").as_bytes());
        if let Some(records) = &self.records {
            hasher.update(format!("{}\n", blake3::hash(records.identity().as_bytes())).as_bytes());
        }
        hasher
    }
}
