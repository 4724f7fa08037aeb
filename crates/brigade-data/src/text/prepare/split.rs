//! The pieces of a corpus as tokens to train on and tokens to validate on.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::counts::{COUNTS_FILE, DataCounts, TRAIN, VALIDATION};
use super::tokenize::{Piece, check_labels};
use crate::text::prepare::cache::write_synced;
use crate::{Error, Example, Permutation, Result, TokenFile, TokenWriter, Tokenizer};

/// Tokens that are copied at once.
const COPIED_TOKENS: usize = 1 << 18;

/// Which documents are for validation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Split {
    pub(super) fraction: f64,
    pub(super) seed: u64,
}

impl Split {
    /// How many of `documents` are for validation: the fraction of them, and where there are two, at least one and not all.
    fn count(self, documents: u64) -> u64 {
        if self.fraction == 0.0 || documents < 2 {
            return 0;
        }
        ((documents as f64 * self.fraction).round() as u64).clamp(1, documents - 1)
    }

    /// The number of a document among all, by that in its part of them, both from 0.
    pub(super) fn number(self, documents: u64, index: usize, validates: bool) -> Option<u64> {
        let (for_validation, order) = (self.count(documents), Permutation::new(documents, self.seed, 0));
        let is_for_validation = |number| order.apply(number).is_some_and(|place| place < for_validation);
        (0..documents).filter(|number| is_for_validation(*number) == validates).nth(index)
    }

    /// Writes the documents of all pieces into `folder`, in order. Those for validation are the ones that a permutation of all
    /// documents puts first. Says what it counted; there may be no document at all.
    pub(super) fn write(
        self,
        pieces: &[PathBuf],
        tokenizer: &Tokenizer,
        folder: &Path,
    ) -> Result<DataCounts> {
        let mut counts = DataCounts::default();
        let (mut documents, mut labels) = (0, None);
        let size = tokenizer.vocabulary_size();
        for path in pieces {
            let piece = Piece::open(path, size)?;
            if piece.counts.documents > 0 {
                let kind = piece.tokens.label_kind();
                check_labels(*labels.get_or_insert(kind), kind, &|| "a later part of the files".into())?;
            }
            documents += piece.counts.documents;
            counts.examples += piece.counts.examples;
            counts.cut_examples += piece.counts.cut_examples;
            counts.cut_tokens += piece.counts.cut_tokens;
            counts.text_bytes += piece.counts.text_bytes;
        }
        let (for_validation, order) = (self.count(documents), Permutation::new(documents, self.seed, 0));
        let mut train = TokenWriter::create(folder, TRAIN, size)?;
        let mut validation = TokenWriter::create(folder, VALIDATION, size)?;
        // The end of the only text validates.
        let cuts = documents == 1 && self.fraction > 0.0 && counts.examples == 0;
        let mut next = 0;
        for path in pieces {
            let tokens = Piece::open(path, size)?.tokens;
            for document in 0..tokens.document_count() {
                if cuts
                    && let Some(percent) =
                        self.cut(&tokens, document, [&mut train, &mut validation], tokenizer)?
                {
                    counts.notes.push(format!(
                        "the corpus is a single document, so its last {percent:.1}% of tokens are set aside for validation"
                    ));
                    continue;
                }
                let validates = order.apply(next).is_some_and(|place| place < for_validation);
                copy(&tokens, document, if validates { &mut validation } else { &mut train })?;
                next += 1;
            }
        }
        if documents == 1 && self.fraction > 0.0 && counts.examples > 0 {
            counts.notes.push("there is only one example, so none is set aside for validation".into());
        } else if cuts && validation.document_count() == 0 {
            counts.notes.push("the corpus is too short to set a part of it aside for validation".into());
        }
        counts.train_documents = train.document_count();
        counts.validation_documents = validation.document_count();
        counts.train_tokens = train.token_count();
        counts.validation_tokens = validation.token_count();
        counts.masked_tokens = train.masked_count() + validation.masked_count();
        train.finish()?;
        validation.finish()?;
        let path = folder.join(COUNTS_FILE);
        let json = serde_json::to_vec_pretty(&counts);
        write_synced(&path, &json.map_err(|error| Error::io("write", &path, error.into()))?)?;
        Ok(counts)
    }

    /// Copies the only document, with its end for validation; how much that is, in percent. None, with nothing copied, if it is too short.
    fn cut(
        self,
        from: &TokenFile,
        document: usize,
        [train, validation]: [&mut TokenWriter; 2],
        tokenizer: &Tokenizer,
    ) -> Result<Option<f64>> {
        let document = from.document(document);
        let start = split_point(document.len() as u64, self.fraction) as usize;
        if start == 0 {
            return Ok(None);
        }
        let at = document.start + start;
        copy_range(from, document.start..at, train)?;
        train.push(&[tokenizer.end_of_text()], false)?;
        train.end_document()?;
        copy_range(from, at..document.end, validation)?;
        validation.end_document()?;
        Ok(Some(100.0 * (document.len() - start) as f64 / document.len() as f64))
    }
}

/// Adds a document of `from` to `to`.
fn copy(from: &TokenFile, document: usize, to: &mut TokenWriter) -> Result<()> {
    let label = from.label(document);
    let document = from.document(document);
    if label.is_some() {
        let mut ids = vec![0; document.len()];
        let mut learned = vec![true; document.len()];
        from.read(document.clone(), &mut ids)?;
        for masked in from.masked_within(document.clone()) {
            learned[masked.start - document.start..masked.end - document.start].fill(false);
        }
        return to.push_example(&Example { ids, learned, label, cut: 0 });
    }
    copy_range(from, document, to)?;
    to.end_document()
}

/// Adds tokens of `from` to the document at hand, with what of them is masked.
fn copy_range(from: &TokenFile, range: Range<usize>, to: &mut TokenWriter) -> Result<()> {
    let mut push = |mut range: Range<usize>, masked| -> Result<()> {
        while !range.is_empty() {
            let some = range.start..range.end.min(range.start + COPIED_TOKENS);
            let mut tokens = vec![0; some.len()];
            from.read(some.clone(), &mut tokens)?;
            to.push(&tokens, masked)?;
            range.start = some.end;
        }
        Ok(())
    };
    let mut done = range.start;
    for masked in from.masked_within(range.clone()) {
        push(done..masked.start, false)?;
        done = masked.end;
        push(masked, true)?;
    }
    push(done..range.end, false)
}

/// Where a document of `tokens` tokens (end of text included) is cut: at least one token on either side of the cut
/// besides the end of text, or 0 where there are too few.
fn split_point(tokens: u64, fraction: f64) -> u64 {
    let text = tokens - 1;
    let kept = ((text as f64 * fraction).round() as u64).clamp(1, text.saturating_sub(1).max(1));
    text - kept.min(text)
}
