//! The corpus of `brigade train`: its text, the cache of its tokens, and the progress of tokenizing.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::anyhow;
use brigade::UsageError;
use brigade::data::{
    LongExamples, PrepareOptions, PreparedData, PreparedSource, Progress, SequenceLayout, prepare,
};
use brigade::report::{ByteProgress, ConsoleMode, HumanBytes, HumanCount, counted};

use crate::config::Config;
use crate::data::chats::Chats;
use crate::data::{DataSection, sources};
use crate::vocabulary::note_on_missing;

/// How many times the share of text for validation that is set the actual one may be, or the reverse, without a word.
const FAR: f64 = 1.5;

/// By how much the two must differ to be worth one.
const FAR_AT_LEAST: f64 = 0.02;

/// The tokens of a run's corpus, from the cache if they are there. `vocabulary`: how many tokens the model has embeddings for.
pub fn prepared(config: &Config, vocabulary: usize, show: ConsoleMode) -> anyhow::Result<PreparedData> {
    let Config { data, model, settings, .. } = config;
    let sources = sources(data, &config.task.columns())?;
    let numbered = config.task.numbered_labels(&sources).map_err(UsageError)?;
    if let Some(note) = numbered.note.filter(|_| show != ConsoleMode::Quiet) {
        brigade::print_stderr(format_args!("note: {note}"));
    }
    let mut work = PrepareOptions::of(sources, data.cache_folder()?);
    work.tokenizer = data.tokenizer.clone();
    let length = model.shape.sequence_length;
    work.rows = config.task.rows(data.rows(length));
    work.records = match config.task.records(length, data.long, numbered.outputs) {
        Some(labelled) => Some(labelled),
        None => Some(Arc::new(Chats::new(&data.tokenizer, data.learn, data.template())?)),
    };
    work.validation_fraction = data.validation_fraction;
    let prepared = prepare(&work, &PhaseProgress { show, phase: Mutex::new(None) })?;
    if show != ConsoleMode::Quiet {
        describe(&prepared, settings.train.validate_every);
        let are_windows = prepared.sources.iter().all(|source| source.train.row_counts().is_none());
        let unused = config.notes_on_unused(prepared.summary.counts.examples, are_windows)?;
        let missing = note_on_missing(prepared.tokenizer.vocabulary_size(), vocabulary);
        let notes = notes_on_amounts(&prepared, data, length).into_iter().chain(unused).chain(missing);
        notes.for_each(|note| {
            brigade::print_stderr(format_args!("note: {note}"));
        });
    }
    if prepared.sources.iter().any(|source| source.train.is_empty()) {
        let length = model.shape.sequence_length;
        let long = "longer rows, or data.long = \"split\", may reach the tokens to learn";
        return Err(UsageError(anyhow!(
            "no document of a source has tokens to learn within the {length} tokens of a row (model.sequence_length): {long}"
        ))
        .into());
    }
    config.check_tokens(&prepared, vocabulary).map_err(UsageError)?;
    Ok(prepared)
}

fn describe(prepared: &PreparedData, validate_every: u64) {
    let summary = &prepared.summary;
    let counts = &summary.counts;
    let tokens = match (counts.validation_tokens, validate_every) {
        (0, 0) => format!("{} tokens", HumanCount(counts.train_tokens)),
        (validation, _) => {
            format!(
                "{} tokens to train on, {} to validate on",
                HumanCount(counts.train_tokens),
                HumanCount(validation)
            )
        }
    };
    brigade::print_stderr(format_args!(
        "{}: {}, {}; {tokens}; vocabulary {}{}",
        summary.corpus,
        counted(summary.files, "file"),
        HumanBytes(summary.file_bytes),
        summary.vocabulary_size,
        if summary.from_cache { " (from the cache)" } else { "" }
    ));
    let rows = prepared.sources.iter().flat_map(row_notes);
    for note in counts.notes.iter().cloned().chain(cut_note(prepared)).chain(rows) {
        brigade::print_stderr(format_args!("note: {note}"));
    }
    if prepared.sources.len() > 1 {
        let weights: f64 = prepared.sources.iter().map(|source| source.weight).sum();
        for PreparedSource { name, weight, train, .. } in &prepared.sources {
            brigade::print_stderr(format_args!(
                "  {:.1}% of the samples drawn from {name}, which has {:.1}% of all samples",
                100.0 * weight / weights,
                100.0 * train.len() as f64 / summary.train_sequences as f64
            ));
        }
    }
    if validate_every > 0 && summary.validation_sequences == 0 {
        brigade::print_stderr(format_args!(
            "note: there is no validation text (data.validation_fraction), so there will be no validation loss"
        ));
    }
}

/// Where there is less text than a row holds, or where the documents set aside are no fair share of it.
fn notes_on_amounts(prepared: &PreparedData, data: &DataSection, length: usize) -> Vec<String> {
    let counts = &prepared.summary.counts;
    let (trained, validated) = (counts.train_tokens, counts.validation_tokens);
    let mut notes = Vec::new();
    if prepared.summary.train_sequences == 1 && trained <= length as u64 {
        notes.push(format!(
            "a row holds up to {length} tokens (model.sequence_length), but there are only {} to train on",
            HumanCount(trained)
        ));
    }
    let (wanted, share) = (data.validation_fraction, validated as f64 / (trained + validated).max(1) as f64);
    let is_split =
        data.validation.is_empty() && data.source.iter().all(|source| source.validation.is_empty());
    // A single document that is divided has a note of its own.
    let are_whole = prepared.sources.iter().all(|source| source.counts.notes.is_empty());
    let is_far = share > FAR * wanted || share * FAR < wanted;
    if is_split && are_whole && validated > 0 && is_far && (share - wanted).abs() > FAR_AT_LEAST {
        let are = if counts.validation_documents == 1 { "is" } else { "are" };
        notes.push(format!(
            "{} of {} {are} set aside for validation, {:.1}% of all tokens instead of {:.1}% (data.validation_fraction), because \
            documents are not divided",
            HumanCount(counts.validation_documents as u64),
            counted(counts.train_documents + counts.validation_documents, "document"),
            100.0 * share,
            100.0 * wanted
        ));
    }
    notes
}

/// What was cut of texts with labels before they became rows.
fn cut_note(prepared: &PreparedData) -> Option<String> {
    let counts = &prepared.summary.counts;
    let length = prepared.sources.first()?.train.sequence_length();
    let done = format!("cut ({} dropped)", counted(counts.cut_tokens as usize, "token"));
    (counts.cut_examples > 0)
        .then(|| long_note((counts.cut_examples, counts.examples as usize), length, &done))
}

/// Of so many documents, and of how many, what was done as they are longer than a row.
fn long_note((long, documents): (u64, usize), length: usize, done: &str) -> String {
    format!(
        "{} of {} are longer than model.sequence_length = {length} and were {done} (data.long)",
        HumanCount(long),
        counted(documents, "document")
    )
}

/// What became of documents that rows hold whole.
fn row_notes(PreparedSource { train: rows, .. }: &PreparedSource) -> Vec<String> {
    let Some(met) = rows.row_counts() else { return Vec::new() };
    let length = rows.sequence_length();
    let (documents, filled) = (rows.tokens().document_count(), met.inputs as f64);
    let percent = 100.0 * filled / (rows.len() * length).max(1) as f64;
    let layout = rows.options().layout;
    let mut notes = Vec::new();
    if layout == SequenceLayout::Bfd {
        notes.push(format!(
            "{} in {} of {length} tokens, filled to {percent:.1}% (data.layout = \"bfd\")",
            counted(documents, "document"),
            counted(rows.len(), "row")
        ));
    }
    if met.long > 0 {
        let done = match rows.options().long {
            LongExamples::Split => "split into several".to_owned(),
            _ => format!("cut ({} dropped)", counted(met.cut_tokens as usize, "token")),
        };
        notes.push(long_note((met.long, documents), length, &done));
    }
    if met.unlearned > 0 {
        notes.push(format!(
            "{} left out, whole or in part: nothing to learn within a row",
            counted(met.unlearned as usize, "document")
        ));
    }
    notes
}

/// Phases over less text than this show no progress: they are over at once.
const WORTH_SHOWING: u64 = 1 << 20;

/// Shows the phases of preparation, one after the other.
struct PhaseProgress {
    show: ConsoleMode,
    phase: Mutex<Option<ByteProgress>>,
}

impl PhaseProgress {
    fn with<R>(&self, act: impl FnOnce(&mut Option<ByteProgress>) -> R) -> R {
        act(&mut self.phase.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Progress for PhaseProgress {
    fn start(&self, total: u64, what: &str) {
        // Without a total, it waits for another process: only the message is shown.
        if total == 0 && self.show != ConsoleMode::Quiet {
            brigade::print_stderr(format_args!("{what}"));
        }
        let shown = (total >= WORTH_SHOWING).then(|| ByteProgress::start(self.show, total, what));
        self.with(|phase| *phase = shown);
    }

    fn advance(&self, bytes: u64) {
        self.with(|phase| phase.iter().for_each(|phase| phase.advance(bytes)));
    }

    fn finish(&self) {
        if let Some(phase) = self.with(Option::take) {
            phase.finish();
        }
    }
}
