//! From a corpus to token files, once.

mod build;
mod cache;
mod parallel;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use self::cache::{CacheEntry, FileLock, HashedFile, hashed_files};
use self::parallel::Workers;
use crate::text::dataset::{FORMAT_VERSION, TokenFile};
use crate::{
    Columns, Corpus, Error, Progress, RecordEncoder, Result, RowOptions, SequenceLayout, TokenSequences,
    Tokenizer, TokenizerSpec,
};

/// The version of what an entry of the cache holds for the same content and settings: a change of the tokenizing, of
/// the sample or of the split needs another number.
const CONTENT_VERSION: u32 = 1;

const TOKENIZER_FILE: &str = "tokenizer.json";
const COUNTS_FILE: &str = "counts.json";
const TRAIN: &str = "train";
const VALIDATION: &str = "validation";

/// What to prepare, and how.
#[derive(Debug, Clone)]
pub struct PrepareOptions {
    /// Where the text comes from.
    pub corpus: Corpus,
    /// Which columns of records are read.
    pub columns: Columns,
    /// How text becomes tokens.
    pub tokenizer: TokenizerSpec,
    /// How documents become rows.
    pub rows: RowOptions,
    /// What makes examples of records that are no plain texts; without it, every record is a text.
    pub records: Option<Arc<dyn RecordEncoder>>,
    /// The part of the documents that is kept for validation, at least 0 and below 1; 0 keeps none.
    pub validation_fraction: f64,
    /// Chooses which documents those are.
    pub split_seed: u64,
    /// The folder of the cache; it is made where it does not exist.
    pub cache_dir: PathBuf,
    /// How many threads tokenize; 0 is one a core. The result does not depend on it.
    pub threads: usize,
    /// How long another process that tokenizes the same text is waited for.
    pub lock_timeout: Duration,
}

impl PrepareOptions {
    /// Prepares `corpus` with a cache in `cache_dir`, and otherwise with the default settings: `bpe:4096`, texts packed
    /// into rows of 256 tokens, 5% of the documents for validation, all cores, half an hour of waiting.
    pub fn new(corpus: Corpus, cache_dir: impl Into<PathBuf>) -> Self {
        Self {
            corpus,
            columns: Columns::default(),
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
        Ok(())
    }

    /// The entry under its lock: as another process has just made it, or made here (then false).
    fn wait_or_build(
        &self,
        place: &CacheEntry,
        given: Option<Tokenizer>,
        files: &[HashedFile],
        workers: &Workers,
        progress: &dyn Progress,
    ) -> Result<(CachedData, bool)> {
        let _lock = self.lock(place, progress)?;
        let error = match CachedData::open(&place.folder()) {
            Ok(entry) => return Ok((entry, true)),
            Err(error) => error,
        };
        if place.folder().exists() {
            tracing::warn!("building the token cache again: {error}");
        }
        place.build(|folder| build::entry(self, given, files, workers, folder, progress))?;
        Ok((CachedData::open(&place.folder())?, false))
    }

    fn lock(&self, place: &CacheEntry, progress: &dyn Progress) -> Result<FileLock> {
        let mut waited = false;
        let lock = FileLock::acquire(&place.lock_path(), self.lock_timeout, || {
            waited = true;
            progress.start(0, "waiting for another process to tokenize the same text");
        });
        if waited {
            progress.finish();
        }
        lock
    }

    /// The entry's name: a hash of all that its content depends on, and of nothing else.
    fn key(&self, files: &[HashedFile], given: Option<&Tokenizer>) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("{FORMAT_VERSION} {CONTENT_VERSION}\n").as_bytes());
        match given {
            Some(tokenizer) => hasher.update(blake3::hash(tokenizer.json().as_bytes()).as_bytes()),
            None => hasher.update(self.tokenizer.to_string().as_bytes()),
        };
        hasher.update(format!("\n{} {}\n", self.validation_fraction.to_bits(), self.split_seed).as_bytes());
        if let Some(records) = &self.records {
            hasher.update(format!("{}\n", blake3::hash(records.identity().as_bytes())).as_bytes());
        }
        hasher.update(format!("{:?}\n", self.columns).as_bytes());
        for file in files {
            hasher.update(format!("{:?} {}\n", file.file.format, file.hash).as_bytes());
        }
        hasher.finalize().to_hex()[..32].to_string()
    }
}

/// Finds the tokenized corpus in the cache, or makes it. Of several processes that ask for the same at once, one makes
/// it and the others wait.
///
/// # Errors
/// What is wrong with the settings, the corpus or the tokenizer file; [`Error::DiskFull`], [`Error::Io`];
/// [`Error::LockTimeout`]; [`Error::ChangedWhileReading`] where a file is written to meanwhile.
pub fn prepare(settings: &PrepareOptions, progress: &dyn Progress) -> Result<PreparedData> {
    let begin = Instant::now();
    settings.check()?;
    let cache = &settings.cache_dir;
    std::fs::create_dir_all(cache).map_err(|source| Error::io("create cache folder", cache, source))?;
    let given = match &settings.tokenizer {
        TokenizerSpec::File(path) => Some(Tokenizer::from_file(path)?),
        TokenizerSpec::Bytes | TokenizerSpec::Bpe(_) => None,
    };
    let workers = Workers::start(settings.threads)?;
    let files = hashed_files(&settings.corpus, cache, &workers, progress)?;
    let place = CacheEntry::new(cache, settings.key(&files, given.as_ref()));
    let (entry, from_cache) = match CachedData::open(&place.folder()) {
        Ok(entry) => (entry, true),
        Err(_) => settings.wait_or_build(&place, given, &files, &workers, progress)?,
    };
    entry.prepared(settings, &files, place.folder(), from_cache, begin)
}

/// A corpus that is ready to train on.
#[derive(Debug, Clone)]
pub struct PreparedData {
    /// Made or read for this corpus.
    pub tokenizer: Tokenizer,
    /// What to train on; at least one sequence.
    pub train: TokenSequences,
    /// What to validate on; empty where the validation fraction is 0 or there is too little text.
    pub validation: TokenSequences,
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
    /// The entry's folder in the cache.
    pub cache_entry: PathBuf,
    /// Whether it was there already.
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

/// An entry of the cache, opened and checked.
struct CachedData {
    tokenizer: Tokenizer,
    train: TokenFile,
    validation: TokenFile,
    counts: DataCounts,
}

impl CachedData {
    fn open(folder: &Path) -> Result<Self> {
        let counts_path = folder.join(COUNTS_FILE);
        let counts = std::fs::read(&counts_path).map_err(|source| Error::io("read", &counts_path, source))?;
        let counts: StoredCounts = serde_json::from_slice(&counts)
            .map_err(|error| Error::TokenFile { path: counts_path.clone(), message: error.to_string() })?;
        let tokenizer = Tokenizer::from_file(&folder.join(TOKENIZER_FILE))?;
        if blake3::hash(tokenizer.json().as_bytes()).to_hex().as_str() != counts.tokenizer_hash {
            let message = "it does not match its checksum".into();
            return Err(Error::TokenFile { path: folder.join(TOKENIZER_FILE), message });
        }
        let (train, validation) = (TokenFile::open(folder, TRAIN)?, TokenFile::open(folder, VALIDATION)?);
        if let Some(file) =
            [&train, &validation].iter().find(|file| file.vocabulary_size() != tokenizer.vocabulary_size())
        {
            let message =
                format!("made for {} ids, not {}", file.vocabulary_size(), tokenizer.vocabulary_size());
            return Err(Error::TokenFile { path: folder.into(), message });
        }
        Ok(Self { tokenizer, train, validation, counts: counts.counts })
    }

    fn prepared(
        self,
        settings: &PrepareOptions,
        files: &[HashedFile],
        cache_entry: PathBuf,
        from_cache: bool,
        begin: Instant,
    ) -> Result<PreparedData> {
        let (end, mut rows) = (self.tokenizer.end_of_text(), settings.rows);
        if rows.layout == SequenceLayout::Auto
            && self.counts.examples > 0
            && self.train.label_kind().is_none()
        {
            rows.layout = SequenceLayout::Bfd;
        }
        let sequences = |file, name| TokenSequences::of(file, &cache_entry, name, rows, end);
        let (train, validation) = (sequences(self.train, TRAIN)?, sequences(self.validation, VALIDATION)?);
        let summary = DataSummary {
            corpus: settings.corpus.describe(),
            tokenizer: settings.tokenizer.to_string(),
            vocabulary_size: self.tokenizer.vocabulary_size(),
            files: files.len(),
            file_bytes: files.iter().map(|file| file.stamp.size).sum(),
            counts: self.counts,
            train_sequences: train.len(),
            validation_sequences: validation.len(),
            cache_entry,
            from_cache,
            seconds: begin.elapsed().as_secs_f64(),
        };
        Ok(PreparedData { tokenizer: self.tokenizer, train, validation, summary })
    }
}

/// The counts with the checksum of the tokenizer beside them.
#[derive(Serialize, Deserialize)]
struct StoredCounts {
    tokenizer_hash: String,
    counts: DataCounts,
}
