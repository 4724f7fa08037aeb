//! Tokenizing a corpus into a folder.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use brigade_random::keyed;

use super::{COUNTS_FILE, DataCounts, PrepareOptions, StoredCounts, TOKENIZER_FILE, TRAIN, VALIDATION};
use crate::text::corpus::{BytesRead, TextChunk, chunks, text_of_record};
use crate::text::prepare::cache::{HashedFile, write_synced};
use crate::text::prepare::parallel::Workers;
use crate::text::tokenizer::Encoder;
use crate::{
    Error, Example, Label, LabelKind, Place, Progress, RecordEncoder, Result, TRAINING_SAMPLE_BYTES,
    TokenWriter, Tokenizer, TokenizerSpec,
};

/// Text that is held at once while tokenizing.
const BATCH_BYTES: usize = 8 << 20;

/// A file gives at most this much to the tokenizer's sample, or its even share where the files are few.
const SAMPLE_FILE_BYTES: u64 = 128 << 10;

/// Writes an entry of the cache into `folder`.
pub(super) fn entry(
    settings: &PrepareOptions,
    given: Option<Tokenizer>,
    files: &[HashedFile],
    workers: &Workers,
    folder: &Path,
    progress: &dyn Progress,
) -> Result<()> {
    let mut counts = DataCounts::default();
    let tokenizer = match (given, &settings.tokenizer) {
        (Some(tokenizer), _) => tokenizer,
        (None, TokenizerSpec::Bpe(size)) => trained(*size, settings, files, &mut counts, progress)?,
        (None, TokenizerSpec::Bytes | TokenizerSpec::File(_)) => Tokenizer::bytes()?,
    };
    write_synced(&folder.join(TOKENIZER_FILE), tokenizer.json().as_bytes())?;

    let mut splits = Splits::create(settings, &tokenizer, folder)?;
    progress.start(files.iter().map(|file| file.stamp.size).sum(), "tokenizing");
    tokenize(settings, &tokenizer, files, workers, &mut splits, &mut counts, progress)?;
    progress.finish();
    splits.balance(settings, files.len(), &mut counts)?;
    splits.finish(&mut counts)?;
    if let Some(changed) = files.iter().find(|file| !file.is_unchanged()) {
        return Err(Error::ChangedWhileReading { path: changed.file.path.clone() });
    }
    let tokenizer_hash = blake3::hash(tokenizer.json().as_bytes()).to_hex().to_string();
    let path = folder.join(COUNTS_FILE);
    let counts = serde_json::to_vec_pretty(&StoredCounts { tokenizer_hash, counts })
        .map_err(|error| Error::io("write", &path, error.into()))?;
    write_synced(&path, &counts)
}

/// BPE from the beginnings of files all over the corpus, in an order that a hash of their position gives.
fn trained(
    size: usize,
    settings: &PrepareOptions,
    files: &[HashedFile],
    counts: &mut DataCounts,
    progress: &dyn Progress,
) -> Result<Tokenizer> {
    let mut order: Vec<usize> = (0..files.len()).collect();
    order.sort_unstable_by_key(|&index| (keyed(0, index as u64), index));
    let share = (TRAINING_SAMPLE_BYTES / files.len().max(1) as u64).max(SAMPLE_FILE_BYTES);
    let available: u64 = files.iter().map(|file| file.stamp.size.min(share)).sum();
    progress.start(available.min(TRAINING_SAMPLE_BYTES), "training the tokenizer");
    let (mut texts, mut total) = (Vec::new(), 0);
    'files: for index in order {
        let mut from_file = 0;
        for chunk in chunks(
            &files[index].file,
            &None,
            &settings.columns,
            settings.records.as_ref(),
            &BytesRead::default(),
        )? {
            let chunk = chunk?;
            let text = if chunk.record.is_some() { text_of_record(&chunk.text) } else { chunk.text };
            let bytes = text.len() as u64;
            from_file += bytes;
            total += bytes;
            progress.advance(bytes);
            texts.push(text);
            if total >= TRAINING_SAMPLE_BYTES {
                break 'files;
            }
            if from_file >= share {
                break;
            }
        }
    }
    if total == 0 {
        return Err(Error::EmptyCorpus { corpus: settings.corpus.describe(), files: files.len() });
    }
    let tokenizer = Tokenizer::train_bpe(size, &texts)?;
    progress.finish();
    counts.tokenizer_training_bytes = total;
    if tokenizer.vocabulary_size() < size {
        counts.notes.push(format!(
            "the corpus gives a vocabulary of {} tokens, fewer than the {size} asked for",
            tokenizer.vocabulary_size()
        ));
    }
    Ok(tokenizer)
}

/// Reads batches of chunks, encodes each batch on all threads, and writes it in order.
fn tokenize(
    settings: &PrepareOptions,
    tokenizer: &Tokenizer,
    files: &[HashedFile],
    workers: &Workers,
    splits: &mut Splits,
    counts: &mut DataCounts,
    progress: &dyn Progress,
) -> Result<()> {
    let encoders = Encoders { tokenizer, records: settings.records.as_deref(), idle: Mutex::default() };
    let (mut batch, mut bytes) = (Vec::new(), 0);
    let (read, mut shown) = (BytesRead::default(), 0);
    let mut show = || {
        let now = read.load(Ordering::Relaxed);
        progress.advance(now - std::mem::replace(&mut shown, now));
    };
    for file in files {
        for chunk in chunks(&file.file, &None, &settings.columns, settings.records.as_ref(), &read)? {
            let chunk = chunk?;
            bytes += chunk.text.len();
            batch.push(chunk);
            if bytes >= BATCH_BYTES {
                counts.text_bytes += bytes as u64;
                encode_batch(workers, &encoders, &batch, splits)?;
                show();
                batch.clear();
                bytes = 0;
            }
        }
    }
    counts.text_bytes += bytes as u64;
    encode_batch(workers, &encoders, &batch, splits)?;
    show();
    Ok(())
}

fn encode_batch(
    workers: &Workers,
    encoders: &Encoders,
    batch: &[TextChunk],
    splits: &mut Splits,
) -> Result<()> {
    let encoded = workers.map(batch, |chunk| encoders.encode(chunk));
    for (chunk, encoded) in batch.iter().zip(encoded) {
        splits.push(&encoded?, chunk)?;
    }
    Ok(())
}

/// What a chunk becomes.
enum Encoded {
    /// Tokens of a part of a document.
    Text(Vec<u32>),
    /// A document of its own.
    Example(Example),
}

/// Encoders that keep the words they know from one text to the next: as many as texts are encoded at once.
struct Encoders<'a> {
    tokenizer: &'a Tokenizer,
    records: Option<&'a dyn RecordEncoder>,
    idle: Mutex<Vec<Encoder>>,
}

impl Encoders<'_> {
    fn encode(&self, chunk: &TextChunk) -> Result<Encoded> {
        if let (Some(place), Some(records)) = (&chunk.record, self.records) {
            return records.example(place, &chunk.text, self.tokenizer).map(Encoded::Example);
        }
        self.encode_text(&chunk.text).map(Encoded::Text)
    }

    fn encode_text(&self, text: &str) -> Result<Vec<u32>> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let known = idle().pop();
        let mut encoder = known.unwrap_or_else(|| self.tokenizer.encoder());
        let mut ids = Vec::with_capacity(text.len() / 2);
        encoder.encode(text, &mut ids)?;
        idle().push(encoder);
        Ok(ids)
    }
}

/// The two splits while documents are dealt out to them.
struct Splits {
    train: TokenWriter,
    validation: TokenWriter,
    end_of_text: u32,
    seed: u64,
    /// A document whose hash is below it is for validation.
    threshold: u64,
    documents: u64,
    /// Tokens of the document at hand.
    in_document: u64,
    /// Documents that were whole examples.
    examples: u64,
    /// The kind of label that all documents have, since the first is known.
    labels: Option<Option<LabelKind>>,
}

impl Splits {
    fn create(settings: &PrepareOptions, tokenizer: &Tokenizer, folder: &Path) -> Result<Self> {
        let vocabulary_size = tokenizer.vocabulary_size();
        Ok(Self {
            train: TokenWriter::create(folder, TRAIN, vocabulary_size)?,
            validation: TokenWriter::create(folder, VALIDATION, vocabulary_size)?,
            end_of_text: tokenizer.end_of_text(),
            seed: settings.split_seed,
            threshold: (settings.validation_fraction * 2f64.powi(64)) as u64,
            documents: 0,
            in_document: 0,
            examples: 0,
            labels: None,
        })
    }

    /// Adds a chunk of the document at hand. Documents without a token are skipped. The first document is always for
    /// training, so that there is something to train on.
    fn push(&mut self, encoded: &Encoded, chunk: &TextChunk) -> Result<()> {
        self.check_label(encoded, chunk)?;
        let for_validation = self.documents > 0 && keyed(self.seed, self.documents) < self.threshold;
        let split = if for_validation { &mut self.validation } else { &mut self.train };
        let ids = match encoded {
            Encoded::Text(ids) => ids,
            Encoded::Example(example) => {
                split.push_example(example)?;
                let is_one = u64::from(!example.ids.is_empty());
                self.documents += is_one;
                self.examples += is_one;
                return Ok(());
            }
        };
        split.push(ids, chunk.masked)?;
        self.in_document += ids.len() as u64;
        if chunk.ends_document && self.in_document > 0 {
            split.push(&[self.end_of_text], false)?;
            split.end_document();
            self.documents += 1;
            self.in_document = 0;
        }
        Ok(())
    }

    /// Either all documents have a label, or none.
    fn check_label(&mut self, encoded: &Encoded, chunk: &TextChunk) -> Result<()> {
        let kind = match encoded {
            Encoded::Text(_) => None,
            Encoded::Example(example) => example.label.map(Label::kind),
        };
        let before = *self.labels.get_or_insert(kind);
        if kind == before {
            return Ok(());
        }
        let in_words =
            |kind: Option<LabelKind>| kind.map_or("no label".into(), |kind| format!("{kind} as its label"));
        let message = format!("it has {}, and what comes before it has {}", in_words(kind), in_words(before));
        let place = chunk.record.as_ref().map_or_else(|| "a text".into(), Place::to_string);
        Err(Error::Record { place, message })
    }

    /// Sees to it that neither split is empty where both are wanted: moves the last document to validation, or the end
    /// of the only one.
    fn balance(&mut self, settings: &PrepareOptions, files: usize, counts: &mut DataCounts) -> Result<()> {
        let Some(last) = self.train.last_document() else {
            return Err(Error::EmptyCorpus { corpus: settings.corpus.describe(), files });
        };
        if settings.validation_fraction == 0.0 || self.validation.document_count() > 0 {
            return Ok(());
        }
        let only = self.documents == 1;
        if only && self.examples > 0 {
            counts.notes.push("there is one example, so there is none to keep for validation".into());
            return Ok(());
        }
        let tokens = self.train.token_count();
        let start = if only { split_point(tokens, settings.validation_fraction) } else { last };
        if only && start == 0 {
            counts.notes.push("the corpus is too short to keep a part of it for validation".into());
            return Ok(());
        }
        let tail = self.train.take_tail(start)?;
        self.validation.push_tail(&tail)?;
        self.validation.end_document();
        if only {
            self.train.push(&[self.end_of_text], false)?;
            self.train.end_document();
            let percent = 100.0 * tail.tokens.len() as f64 / tokens as f64;
            counts.notes.push(format!(
                "the corpus is one document, which cannot be split by documents: its last {percent:.1}% of tokens \
                 are kept for validation"
            ));
        } else {
            counts.notes.push("no document was drawn for validation, so the last one is kept for it".into());
        }
        Ok(())
    }

    fn finish(self, counts: &mut DataCounts) -> Result<()> {
        counts.examples = self.examples;
        counts.train_documents = self.train.document_count();
        counts.validation_documents = self.validation.document_count();
        counts.train_tokens = self.train.token_count();
        counts.validation_tokens = self.validation.token_count();
        counts.masked_tokens = self.train.masked_count() + self.validation.masked_count();
        self.train.finish()?;
        self.validation.finish()
    }
}

/// Where a document of `tokens` tokens (end of text included) is cut: at least one token on either side of the cut
/// besides the end of text, or 0 where there are too few.
fn split_point(tokens: u64, fraction: f64) -> u64 {
    let text = tokens - 1;
    let kept = ((text as f64 * fraction).round() as u64).clamp(1, text.saturating_sub(1).max(1));
    text - kept.min(text)
}
