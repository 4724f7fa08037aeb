//! Tokenizing one piece of a corpus.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::parallel::Workers;
use super::spans::Span;
use crate::text::corpus::{BytesRead, TextChunk, chunks};
use crate::text::prepare::cache::{HashedFile, write_synced};
use crate::text::tokenizer::CachingEncoder;
use crate::{
    Columns, Error, Example, Label, LabelKind, Progress, RecordEncoder, RecordLocation, Result, TokenFile,
    TokenWriter, Tokenizer,
};

/// Text that is held at once while tokenizing.
const BATCH_BYTES: usize = 8 << 20;

const TOKENS: &str = "tokens";
const COUNTS_FILE: &str = "counts.json";

/// What was counted in a piece.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PieceCounts {
    pub(super) text_bytes: u64,
    pub(super) documents: u64,
    /// Documents that were whole examples.
    pub(super) examples: u64,
    /// Examples that were cut.
    #[serde(default)]
    pub(super) cut_examples: u64,
    /// What was cut of them.
    #[serde(default)]
    pub(super) cut_tokens: u64,
}

/// The tokens of a piece, with all its documents.
pub(super) struct Piece {
    pub(super) counts: PieceCounts,
    pub(super) tokens: TokenFile,
}

impl Piece {
    /// Opens a finished piece and checks it.
    pub(super) fn open(folder: &Path, vocabulary_size: usize) -> Result<Self> {
        let path = folder.join(COUNTS_FILE);
        let bytes = std::fs::read(&path).map_err(|source| Error::io("read", &path, source))?;
        let damaged = |message| Error::TokenFile { path: path.clone(), message };
        let counts: PieceCounts =
            serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        let tokens = TokenFile::open(folder, TOKENS)?;
        if tokens.document_count() as u64 != counts.documents || tokens.vocabulary_size() != vocabulary_size {
            return Err(damaged("it does not match the tokens".into()));
        }
        Ok(Self { counts, tokens })
    }
}

/// Makes pieces of one corpus.
pub(super) struct PieceWriter<'a> {
    pub(super) files: &'a [HashedFile],
    pub(super) columns: &'a Columns,
    pub(super) encoders: Encoders<'a>,
    pub(super) workers: &'a Workers,
    pub(super) progress: &'a dyn Progress,
}

impl PieceWriter<'_> {
    /// Reads batches of chunks, encodes each batch on all threads, and writes it into `folder` in order.
    ///
    /// # Errors
    /// [`Error::ChangedWhileReading`], whatever is found in a file that changes meanwhile.
    pub(super) fn write(&self, spans: &[Span], folder: &Path) -> Result<()> {
        let written = self.write_spans(spans, folder);
        match spans.iter().find(|span| !self.files[span.file].is_unchanged()) {
            Some(changed) => {
                Err(Error::ChangedWhileReading { path: self.files[changed.file].file.path.clone() })
            }
            None => written,
        }
    }

    fn write_spans(&self, spans: &[Span], folder: &Path) -> Result<()> {
        let tokenizer = self.encoders.tokenizer;
        let mut tokens = Documents {
            writer: TokenWriter::create(folder, TOKENS, tokenizer.vocabulary_size())?,
            beginning: tokenizer.beginning()?,
            end_of_text: tokenizer.end_of_text(),
            in_document: 0,
            counts: PieceCounts::default(),
            labels: None,
        };
        let mut shown = Shown { progress: self.progress, left: spans.iter().map(|span| span.bytes).sum() };
        let (mut batch, mut bytes, mut text_bytes) = (Vec::new(), 0, 0);
        for span in spans {
            let (file, read) = (&self.files[span.file].file, BytesRead::default());
            for chunk in chunks(file, &span.part, self.columns, self.encoders.records.as_ref(), &read)? {
                let chunk = chunk?;
                bytes += chunk.text.len();
                batch.push(chunk);
                if bytes >= BATCH_BYTES {
                    text_bytes += std::mem::take(&mut bytes) as u64;
                    self.encode(&batch, &mut tokens)?;
                    shown.advance(read.swap(0, Ordering::Relaxed));
                    batch.clear();
                }
            }
            shown.advance(read.load(Ordering::Relaxed));
        }
        self.encode(&batch, &mut tokens)?;
        shown.advance(u64::MAX);
        let documents = tokens.writer.document_count() as u64;
        let counts = PieceCounts { text_bytes: text_bytes + bytes as u64, documents, ..tokens.counts };
        tokens.writer.finish()?;
        let path = folder.join(COUNTS_FILE);
        let counts = serde_json::to_vec(&counts).map_err(|error| Error::io("write", &path, error.into()))?;
        write_synced(&path, &counts)
    }

    fn encode(&self, batch: &[TextChunk], tokens: &mut Documents) -> Result<()> {
        let encoded = self.workers.map(batch, |chunk| self.encoders.encode(chunk));
        batch.iter().zip(encoded).try_for_each(|(chunk, encoded)| tokens.push(&encoded?, chunk))
    }
}

/// Shows no more of a piece than there is.
struct Shown<'a> {
    progress: &'a dyn Progress,
    left: u64,
}

impl Shown<'_> {
    fn advance(&mut self, bytes: u64) {
        let bytes = bytes.min(self.left);
        self.left -= bytes;
        self.progress.advance(bytes);
    }
}

/// The documents of a piece while they are written.
struct Documents {
    writer: TokenWriter,
    /// What the tokenizer puts before a text.
    beginning: Vec<u32>,
    end_of_text: u32,
    /// Tokens of the document at hand.
    in_document: u64,
    /// Of examples.
    counts: PieceCounts,
    /// The kind of label that all documents have, since the first is known.
    labels: Option<Option<LabelKind>>,
}

impl Documents {
    /// Adds a chunk of the document at hand. Documents without a token are skipped.
    fn push(&mut self, encoded: &Encoded, chunk: &TextChunk) -> Result<()> {
        let (kind, place) = match encoded {
            Encoded::Text { .. } => (None, None),
            Encoded::Example(example) => (example.label.map(Label::kind), Some(&chunk.place)),
        };
        let before = *self.labels.get_or_insert(kind);
        let place = || place.map_or_else(|| "a text".into(), RecordLocation::to_string);
        check_labels(before, kind, &place)?;
        let (ids, of_prompt) = match encoded {
            Encoded::Text { ids, of_prompt } => (ids, *of_prompt),
            Encoded::Example(example) => {
                self.counts.examples += u64::from(!example.ids.is_empty());
                self.counts.cut_examples += u64::from(example.cut > 0);
                self.counts.cut_tokens += example.cut as u64;
                return self.writer.push_example(example);
            }
        };
        if self.in_document == 0 && !ids.is_empty() {
            self.writer.push(&self.beginning, true)?;
        }
        let (prompt, text) = ids.split_at(of_prompt);
        self.writer.push(prompt, true)?;
        self.writer.push(text, false)?;
        self.in_document += ids.len() as u64;
        if chunk.ends_document && self.in_document > 0 {
            self.writer.push(&[self.end_of_text], false)?;
            self.writer.end_document()?;
            self.in_document = 0;
        }
        Ok(())
    }
}

/// Refuses labels of another kind than those `before`.
pub(super) fn check_labels(
    before: Option<LabelKind>,
    kind: Option<LabelKind>,
    place: &dyn Fn() -> String,
) -> Result<()> {
    if kind == before {
        return Ok(());
    }
    let in_words =
        |kind: Option<LabelKind>| kind.map_or("no label".into(), |kind| format!("{kind} as its label"));
    let message = format!("it has {}, but the examples before it have {}", in_words(kind), in_words(before));
    Err(Error::Record { place: place(), message })
}

/// What a chunk becomes.
enum Encoded {
    /// Tokens of a part of a document.
    Text {
        ids: Vec<u32>,
        /// How many of the first ones belong to the prompt.
        of_prompt: usize,
    },
    /// A document of its own.
    Example(Example),
}

/// Encoders that keep the words they know from one text to the next: as many as texts are encoded at once.
pub(super) struct Encoders<'a> {
    tokenizer: &'a Tokenizer,
    records: Option<Arc<dyn RecordEncoder>>,
    idle: Mutex<Vec<CachingEncoder>>,
}

impl<'a> Encoders<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, records: Option<Arc<dyn RecordEncoder>>) -> Self {
        Self { tokenizer, records, idle: Mutex::default() }
    }

    fn encode(&self, chunk: &TextChunk) -> Result<Encoded> {
        match &self.records {
            Some(records) if chunk.is_record => {
                records.example(&chunk.place, &chunk.text, self.tokenizer).map(Encoded::Example)
            }
            _ => self.encode_text(chunk),
        }
    }

    /// How many tokens a chunk has.
    pub(super) fn count(&self, chunk: &TextChunk) -> Result<usize> {
        Ok(match self.encode(chunk)? {
            Encoded::Text { ids, .. } => ids.len(),
            Encoded::Example(example) => example.ids.len(),
        })
    }

    fn encode_text(&self, chunk: &TextChunk) -> Result<Encoded> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let known = idle().pop();
        let mut encoder = known.unwrap_or_else(|| self.tokenizer.encoder());
        let mut ids = Vec::with_capacity(chunk.text.len() / 2);
        let of_prompt = if (1..chunk.text.len()).contains(&chunk.prompt) {
            encoder.encode_prompted(&chunk.text, chunk.prompt, &mut ids)?
        } else {
            encoder.encode_after(&chunk.before, &chunk.text, &mut ids)?;
            if chunk.prompt > 0 { ids.len() } else { 0 }
        };
        idle().push(encoder);
        Ok(Encoded::Text { ids, of_prompt })
    }
}
