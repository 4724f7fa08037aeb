//! What is counted while tokenizing, and where an entry of the cache has it.

use std::path::Path;

use serde::{Deserialize, Serialize};

pub(super) const COUNTS_FILE: &str = "counts.json";
pub(super) const TRAIN: &str = "train";
pub(super) const VALIDATION: &str = "validation";

/// How many files of a list are named in a note.
const NAMED: usize = 3;

/// Files in words: how many there are, and which are the first.
pub(super) fn files_in_words<'a>(paths: impl ExactSizeIterator<Item = &'a Path>) -> String {
    let (count, s) = (paths.len(), if paths.len() == 1 { "" } else { "s" });
    let mut named: Vec<String> = paths.take(NAMED).map(|path| path.display().to_string()).collect();
    if count > NAMED {
        named.push("…".into());
    }
    format!("{count} file{s} ({})", named.join(", "))
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
    pub(super) fn add(&mut self, other: &Self) {
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

    /// These counts with those of files to validate on.
    pub(super) fn with_validation(mut self, own: Self) -> Self {
        self.add(&Self {
            train_documents: 0,
            train_tokens: 0,
            validation_documents: own.train_documents,
            validation_tokens: own.train_tokens,
            ..own
        });
        self
    }
}
