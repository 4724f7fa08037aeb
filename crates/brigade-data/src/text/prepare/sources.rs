//! The sources of a corpus, each with its own tokens.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::cache::{CacheEntry, HashedFile, hashed_files};
use super::counts::{COUNTS_FILE, DataCounts, TRAIN, VALIDATION, files_in_words};
use super::options::{DataSource, PrepareOptions};
use super::parallel::Workers;
use super::share::SharedPieces;
use super::spans::{PIECE_BYTES, pieces, spans};
use super::split::Split;
use super::tokenize::{Encoders, PieceWriter};
use crate::text::corpus::{BytesRead, chunks};
use crate::{
    Columns, Corpus, Error, LongExamples, Progress, RecordLocation, Result, RowOptions, SequenceLayout,
    TokenFile, TokenSequences, Tokenizer,
};

/// A source that is ready to train on.
#[derive(Debug, Clone)]
pub struct PreparedSource {
    /// The source in a few words.
    pub name: String,
    /// Its share of the samples, as a part of the sum of all weights.
    pub weight: f64,
    /// What to train on; at least one sequence.
    pub train: TokenSequences,
    /// What to validate on; empty where nothing is kept for it, or there is too little text. Documents without labels that would be
    /// [cut](LongExamples::Cut) are split instead, so that every token counts.
    pub validation: TokenSequences,
    /// What was counted while tokenizing, without the training of the tokenizer.
    pub counts: DataCounts,
    /// The number of files.
    pub files: usize,
    /// Their size together.
    pub file_bytes: u64,
    /// A hash of all that decides its tokens.
    pub key: String,
    /// The folder in the cache with the tokens to train on.
    pub cache_entry: PathBuf,
    /// Whether it was there already.
    pub from_cache: bool,
}

/// The files of a source with their contents' hashes.
pub(super) struct SourceFiles {
    pub(super) name: String,
    pub(super) columns: Columns,
    pub(super) files: Vec<HashedFile>,
}

impl SourceFiles {
    /// The files to train on, and those to validate on if there are any.
    pub(super) fn read(
        source: &DataSource,
        settings: &PrepareOptions,
        workers: &Workers,
        progress: &dyn Progress,
    ) -> Result<(Self, Option<Self>)> {
        let read = |corpus: &Corpus| Self::of(corpus, source, settings, workers, progress);
        Ok((read(&source.corpus)?, source.validation.as_ref().map(read).transpose()?))
    }

    /// Those of a corpus, which is one of the source's.
    pub(super) fn of(
        corpus: &Corpus,
        source: &DataSource,
        settings: &PrepareOptions,
        workers: &Workers,
        progress: &dyn Progress,
    ) -> Result<Self> {
        let files = hashed_files(corpus, &settings.cache_dir, settings.lock_timeout, workers, progress)?;
        Ok(Self { name: corpus.describe(), columns: source.columns.clone(), files })
    }

    /// Adds all that decides the texts to the name of an entry.
    pub(super) fn hash_into(&self, hasher: &mut blake3::Hasher) {
        hasher.update(format!("{:?}\n", self.columns).as_bytes());
        for HashedFile { file, hash, .. } in &self.files {
            hasher.update(format!("{:?} {:?} {hash}\n", file.format, file.compression).as_bytes());
        }
    }
}

/// Takes the files that some source validates on out of those to train on, whatever they are called, and says which they are.
///
/// # Errors
/// [`Error::InvalidSetting`] where nothing is left of a source.
pub(super) fn leave_out_validation(
    files: &mut [(SourceFiles, Option<SourceFiles>)],
) -> Result<Option<String>> {
    let own = files.iter().filter_map(|(_, validation)| validation.as_ref());
    let validated: HashSet<String> = own
        .flat_map(|own| &own.files)
        .filter(|file| file.stamp.size > 0)
        .map(|file| file.hash.clone())
        .collect();
    let mut left_out = Vec::new();
    for (train, validation) in files {
        let all = std::mem::take(&mut train.files);
        let (both, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|file| validated.contains(&file.hash));
        if rest.is_empty() && !both.is_empty() {
            return Err(Error::InvalidSetting {
                option: "data.validation",
                given: validation.as_ref().unwrap_or(train).name.clone(),
                allowed: format!(
                    "all files of {} are among those to validate on, so there are none to train on",
                    train.name
                ),
            });
        }
        (train.files, left_out) = (rest, [left_out, both].concat());
    }
    let paths = left_out.iter().map(|both| both.file.path.as_path());
    let in_words =
        || format!("left out of training, as data.validation has the same: {}", files_in_words(paths));
    Ok((!left_out.is_empty()).then(in_words))
}

/// What is needed to make the tokens of sources.
pub(super) struct Preparation<'a> {
    pub(super) settings: &'a PrepareOptions,
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) workers: &'a Workers,
    pub(super) progress: &'a dyn Progress,
}

impl Preparation<'_> {
    /// The tokens of a source's files: to train on, and to validate on if there are any.
    pub(super) fn entries(&self, train: &SourceFiles, validation: Option<&SourceFiles>) -> Result<Entries> {
        let fraction = if validation.is_some() { 0.0 } else { self.settings.validation_fraction };
        let validation = validation.map(|files| self.entry(files, 0.0)).transpose()?;
        Ok(Entries { train: self.entry(train, fraction)?, validation })
    }

    /// How documents become rows, the same for all sources: examples without labels are kept whole unless the settings say otherwise.
    pub(super) fn rows(&self, entries: &[Entries]) -> RowOptions {
        let mut rows = self.settings.rows;
        let keeps_whole = |entry: &Entry| entry.counts.examples > 0 && entry.train.label_kind().is_none();
        let mut all = entries.iter().flat_map(|entries| entries.validation.iter().chain([&entries.train]));
        if rows.layout == SequenceLayout::Auto && all.any(keeps_whole) {
            rows.layout = SequenceLayout::Bfd;
        }
        rows
    }

    /// The rows of a source.
    pub(super) fn prepared(
        &self,
        source: &DataSource,
        (train_files, validation_files): &(SourceFiles, Option<SourceFiles>),
        entries: Entries,
        rows: RowOptions,
    ) -> Result<PreparedSource> {
        let Entries { train, validation } = entries;
        let fraction = if validation.is_some() { 0.0 } else { self.settings.validation_fraction };
        let split = Split { fraction, seed: self.settings.split_seed };
        let documents = (train.counts.train_documents + train.counts.validation_documents) as u64;
        let number = |index, validates| split.number(documents, index, validates);
        let (mut key, mut counts) = (train.key, train.counts);
        let (mut files, mut file_bytes, mut from_cache) = (train.files, train.file_bytes, train.from_cache);
        let validates = match validation {
            None => (train.validation, train.folder.clone(), VALIDATION),
            Some(own) => {
                key = format!("{key}-{}", own.key);
                counts = counts.with_validation(own.counts);
                (files, file_bytes) = (files + own.files, file_bytes + own.file_bytes);
                from_cache &= own.from_cache;
                (own.train, own.folder, TRAIN)
            }
        };
        let sequences = |(file, folder, name): (TokenFile, PathBuf, &str), rows| {
            TokenSequences::of(file, &folder, name, rows, self.tokenizer.end_of_text())
        };
        let train_rows = sequences((train.train, train.folder.clone(), TRAIN), rows)
            .map_err(|error| self.placed(error, train_files, rows, |index| number(index, false)))?;
        // Every token counts, as in an evaluation; a part of a text has no label of its own.
        let long = match rows.long {
            LongExamples::Cut if validates.0.label_kind().is_none() => LongExamples::Split,
            long => long,
        };
        let validation_rows =
            sequences(validates, RowOptions { long, ..rows }).map_err(|error| match validation_files {
                Some(own) => self.placed(error, own, rows, |index| Some(index as u64)),
                None => self.placed(error, train_files, rows, |index| number(index, true)),
            })?;
        Ok(PreparedSource {
            name: source.corpus.describe(),
            weight: source.weight,
            train: train_rows,
            validation: validation_rows,
            counts,
            files,
            file_bytes,
            key,
            cache_entry: train.folder,
            from_cache,
        })
    }

    /// The error of documents that are too long, with the place of the first. `number` has a document's number among all, by that in its
    /// split, both from 0.
    fn placed(
        &self,
        error: Error,
        files: &SourceFiles,
        rows: RowOptions,
        number: impl FnOnce(usize) -> Option<u64>,
    ) -> Error {
        let Error::LongExample { document, given, most, .. } = error else { return error };
        let tokens = given + rows.beyond_inputs();
        let found = number(document - 1).and_then(|number| self.place(files, number, tokens).ok().flatten());
        let place = found.map_or_else(|| format!(" of {}", files.name), |place| format!(" ({place})"));
        Error::LongExample { document, place, given, most }
    }

    /// Where the document `number` of files is, found by reading them again; `None` if that one has another number of tokens. Only it is
    /// tokenized, and those without a character are not counted.
    fn place(&self, files: &SourceFiles, number: u64, tokens: usize) -> Result<Option<RecordLocation>> {
        let records = self.settings.records.as_ref();
        let encoders = Encoders::new(self.tokenizer, self.settings.records.clone());
        let (mut before, mut is_empty, mut found) = (number, true, 0);
        for HashedFile { file, .. } in &files.files {
            for chunk in chunks(file, &None, &files.columns, records, &BytesRead::default())? {
                let chunk = chunk?;
                is_empty &= chunk.text.is_empty();
                if before == 0 {
                    found += encoders.count(&chunk)?;
                }
                if !chunk.ends_document || std::mem::replace(&mut is_empty, true) {
                    continue;
                }
                if before == 0 {
                    let around = if chunk.is_record { 0 } else { self.tokenizer.beginning()?.len() + 1 };
                    return Ok((found + around == tokens).then_some(chunk.place));
                }
                before -= 1;
            }
        }
        Ok(None)
    }

    /// The tokens of files, from the cache or made.
    fn entry(&self, files: &SourceFiles, fraction: f64) -> Result<Entry> {
        let split = Split { fraction, seed: self.settings.split_seed };
        let mut hasher = self.settings.hasher();
        hasher.update(blake3::hash(self.tokenizer.json().as_bytes()).as_bytes());
        // What its own file does not say.
        let (beginning, end) = (self.tokenizer.beginning()?, self.tokenizer.end_named_beside());
        let beside = self.tokenizer.set_beside();
        hasher.update(format!("\n{beginning:?} {end:?} {beside}").as_bytes());
        hasher.update(format!("\n{} {}\n", fraction.to_bits(), split.seed).as_bytes());
        files.hash_into(&mut hasher);
        let place = CacheEntry::named(&self.settings.cache_dir, &hasher);
        if let Ok(entry) = self.open(&place, files, true) {
            return Ok(entry);
        }
        self.remove_damaged(&place, files)?;
        let pieces = pieces(spans(&files.files, PIECE_BYTES)?, PIECE_BYTES);
        let shared = SharedPieces {
            place: &place,
            pieces: &pieces,
            writer: PieceWriter {
                files: &files.files,
                columns: &files.columns,
                encoders: Encoders::new(self.tokenizer, self.settings.records.clone()),
                workers: self.workers,
                progress: self.progress,
            },
            vocabulary_size: self.tokenizer.vocabulary_size(),
            timeout: self.settings.lock_timeout,
        };
        let (folders, _lock) = loop {
            let folders = shared.make(self.workers.count())?;
            let lock = place.lock(self.settings.lock_timeout, self.progress)?;
            // Else another process has removed them, as it found that the corpus is empty or has changed.
            if place.folder().exists() || folders.iter().all(|folder| folder.exists()) {
                break (folders, lock);
            }
        };
        let entry = self.open(&place, files, true).or_else(|_| {
            place.build(|folder| {
                let counts = split.write(&folders, self.tokenizer, folder)?;
                if counts.train_documents == 0 {
                    return Err(Error::EmptyCorpus { corpus: files.name.clone(), files: files.files.len() });
                }
                match files.files.iter().find(|file| !file.is_unchanged()) {
                    Some(changed) => Err(Error::ChangedWhileReading { path: changed.file.path.clone() }),
                    None => Ok(()),
                }
            })?;
            self.open(&place, files, false)
        });
        // Not before the whole entry is there: until then a killed process continues from them.
        if entry.is_ok()
            || matches!(entry, Err(Error::EmptyCorpus { .. } | Error::ChangedWhileReading { .. }))
        {
            place.remove_pieces()?;
        }
        entry
    }

    /// Removes an entry that is there and cannot be opened.
    fn remove_damaged(&self, place: &CacheEntry, files: &SourceFiles) -> Result<()> {
        if !place.folder().exists() {
            return Ok(());
        }
        let _lock = place.lock(self.settings.lock_timeout, self.progress)?;
        match self.open(place, files, true) {
            Ok(_) => Ok(()),
            Err(error) => {
                tracing::warn!("building the token cache again: {error}");
                place.remove()
            }
        }
    }

    fn open(&self, place: &CacheEntry, files: &SourceFiles, from_cache: bool) -> Result<Entry> {
        let folder = place.folder();
        let path = folder.join(COUNTS_FILE);
        let counts = std::fs::read(&path).map_err(|source| Error::io("read", &path, source))?;
        let counts = serde_json::from_slice(&counts)
            .map_err(|error| Error::TokenFile { path: path.clone(), message: error.to_string() })?;
        let (train, validation) = (self.split(&folder, TRAIN)?, self.split(&folder, VALIDATION)?);
        let (key, file_bytes) = (place.key().into(), size(files));
        let files = files.files.len();
        Ok(Entry { key, folder, files, file_bytes, train, validation, counts, from_cache })
    }

    fn split(&self, folder: &Path, name: &str) -> Result<TokenFile> {
        let file = TokenFile::open(folder, name)?;
        let (made_for, size) = (file.vocabulary_size(), self.tokenizer.vocabulary_size());
        if made_for != size {
            let message = format!("made for {made_for} ids, not {size}");
            return Err(Error::TokenFile { path: folder.into(), message });
        }
        Ok(file)
    }
}

fn size(files: &SourceFiles) -> u64 {
    files.files.iter().map(|file| file.stamp.size).sum()
}

/// The entries of a source.
pub(super) struct Entries {
    train: Entry,
    /// That of files to validate on, if the source has any.
    validation: Option<Entry>,
}

/// An entry of the cache, opened and checked.
struct Entry {
    key: String,
    folder: PathBuf,
    files: usize,
    file_bytes: u64,
    train: TokenFile,
    validation: TokenFile,
    counts: DataCounts,
    from_cache: bool,
}
