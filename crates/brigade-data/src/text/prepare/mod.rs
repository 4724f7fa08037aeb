//! From a corpus to token files, once.
//!
//! ```text
//! files ─▶ pieces (about 32 MiB each) ─▶ tokens of each piece ─▶ train, validation
//!          known from the files alone     by any process, and     one process copies the documents of all pieces
//!                                         kept if it is killed    in order, and deals them out
//! ```

mod cache;
mod cached_list;
mod counts;
mod options;
mod parallel;
mod share;
mod sources;
mod spans;
mod split;
#[cfg(test)]
mod tests;
mod tokenize;
mod tokenizer;

use std::time::Instant;

use serde::{Deserialize, Serialize};

pub use self::cached_list::cached_list;
pub use self::counts::DataCounts;
pub use self::options::{DataSource, PrepareOptions};
use self::parallel::Workers;
pub use self::sources::PreparedSource;
use self::sources::{Preparation, SourceFiles, leave_out_validation};
use self::tokenizer::Trained;
use crate::{Error, Progress, Result, Tokenizer};

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
    std::fs::create_dir_all(cache).map_err(|source| {
        Error::io("create the token cache (data.cache_dir, or BRIGADE_CACHE_DIR)", cache, source)
    })?;
    let workers = Workers::start(settings.threads)?;
    let read = |source| SourceFiles::read(source, settings, &workers, progress);
    let mut files: Vec<(SourceFiles, Option<SourceFiles>)> =
        settings.sources.iter().map(read).collect::<Result<_>>()?;
    let left_out = leave_out_validation(&mut files)?;
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
    let mut counts =
        DataCounts { notes: left_out.into_iter().chain(trained.notes).collect(), ..DataCounts::default() };
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
