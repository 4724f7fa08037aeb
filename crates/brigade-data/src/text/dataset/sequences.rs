//! Token files as a dataset of rows.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::example::Label;
use super::layout::{RowOptions, SequenceLayout, TargetToken};
use super::rows::{RowCounts, RowTable};
use super::token_file::TokenFile;
use crate::{Error, Result};

/// One row of a batch: inputs, and for each the token that it is to predict. The three vectors of tokens have one length.
#[derive(Debug, Clone, PartialEq)]
pub struct Sequence {
    /// Token ids.
    pub inputs: Vec<u32>,
    /// `targets[t]` is the token after `inputs[t]`, or the same token ([`TargetToken::Same`]); end-of-text where `valid[t]` is false
    /// because of padding.
    pub targets: Vec<u32>,
    /// Whether `targets[t]` counts in the loss: false for padding and for tokens that are not learned, as those of a prompt.
    pub valid: Vec<bool>,
    /// The lengths of the row's documents, one after another from its beginning; what is left of it is padding. Empty where the whole row
    /// is seen as one document.
    pub documents: Vec<usize>,
    /// What belongs to the row's only document, if documents have labels.
    pub label: Option<Label>,
}

impl Sequence {
    /// A row without valid targets, to fill a batch that has too few sequences.
    pub fn padding(length: usize, end_of_text: u32) -> Self {
        let mut row = Self::empty();
        row.pad(length, end_of_text);
        row
    }

    /// Pads the row with `end_of_text` to this length; a longer one stays as it is.
    pub fn pad(&mut self, length: usize, end_of_text: u32) {
        let length = length.max(self.inputs.len());
        self.inputs.resize(length, end_of_text);
        self.targets.resize(length, end_of_text);
        self.valid.resize(length, false);
    }

    fn empty() -> Self {
        let (inputs, targets, valid, documents) = Default::default();
        Self { inputs, targets, valid, documents, label: None }
    }
}

/// The rows of one split. Cloning it is cheap: tokens and rows are shared memory maps.
#[derive(Debug, Clone)]
pub struct TokenSequences {
    file: Arc<TokenFile>,
    /// None where rows are windows.
    table: Option<Arc<RowTable>>,
    options: RowOptions,
    end_of_text: u32,
}

impl TokenSequences {
    /// The rows of the split `name` in `folder`, padded with `end_of_text`. Rows of whole documents are computed once, and kept in a file
    /// beside the split.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] where T is 0; [`Error::LongExample`] where long documents are refused; [`Error::TokenFile`],
    /// [`Error::Io`], [`Error::DiskFull`].
    pub fn open(folder: &Path, name: &str, options: RowOptions, end_of_text: u32) -> Result<Self> {
        Self::of(TokenFile::open(folder, name)?, folder, name, options, end_of_text)
    }

    /// The same of a split that is open.
    pub(crate) fn of(
        file: TokenFile,
        folder: &Path,
        name: &str,
        mut options: RowOptions,
        end_of_text: u32,
    ) -> Result<Self> {
        if options.sequence_length == 0 {
            let allowed = "it must be at least 1".into();
            return Err(Error::InvalidSetting { option: "sequence_length", given: "0".into(), allowed });
        }
        if options.layout == SequenceLayout::Auto {
            let is_labelled = file.label_kind().is_some();
            options.layout = if is_labelled { SequenceLayout::Documents } else { SequenceLayout::Packed };
        }
        let table = match options.layout {
            SequenceLayout::Packed => None,
            _ => {
                let path = RowTable::path(folder, name, &options);
                let table = RowTable::open(&path, &file, &options).or_else(|_| {
                    RowTable::write(&path, &file, &options)?;
                    RowTable::open(&path, &file, &options)
                });
                Some(Arc::new(table?))
            }
        };
        Ok(Self { file: Arc::new(file), table, options, end_of_text })
    }

    /// The number of sequences.
    pub fn len(&self) -> usize {
        match &self.table {
            Some(table) => table.len(),
            None => {
                let inputs = self.file.len().saturating_sub(self.options.beyond_inputs());
                inputs.div_ceil(self.options.sequence_length)
            }
        }
    }

    /// Whether there is no sequence.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// T, the most tokens of a row.
    pub fn sequence_length(&self) -> usize {
        self.options.sequence_length
    }

    /// How the rows were made; the layout is never [`SequenceLayout::Auto`].
    pub fn options(&self) -> &RowOptions {
        &self.options
    }

    /// The token of padding.
    pub fn end_of_text(&self) -> u32 {
        self.end_of_text
    }

    /// What was met while whole documents were put into rows; none where rows are windows.
    pub fn row_counts(&self) -> Option<RowCounts> {
        self.table.as_ref().map(|table| table.counts())
    }

    /// The number of tokens in the split, end-of-text tokens included.
    pub fn token_count(&self) -> usize {
        self.file.len()
    }

    /// The tokens behind the sequences.
    pub fn tokens(&self) -> &Arc<TokenFile> {
        &self.file
    }

    /// Row `index`, padded to T, or to the next [multiple](RowOptions::pad_to_multiple).
    ///
    /// # Errors
    /// [`Error::TokenFile`] where its tokens do not match their checksums.
    ///
    /// # Panics
    /// Where `index` is not below [`TokenSequences::len`], as a slice would.
    pub fn get(&self, index: usize) -> Result<Sequence> {
        assert!(index < self.len(), "sequence {index} of {}", self.len());
        let mut row = Sequence::empty();
        match &self.table {
            Some(table) => {
                for part in table.parts(index) {
                    row.documents.push(part.len() - self.options.beyond_inputs());
                    if self.options.layout == SequenceLayout::Documents {
                        row.label = self.file.label(self.file.document_of(part.start));
                    }
                    self.add(&mut row, part)?;
                }
            }
            None => self.add_window(&mut row, index)?,
        }
        row.pad(self.options.padded(row.inputs.len()), self.end_of_text);
        Ok(row)
    }

    /// Adds tokens as inputs and targets.
    fn add(&self, row: &mut Sequence, tokens: Range<usize>) -> Result<()> {
        let beyond = self.options.beyond_inputs();
        let inputs = row.inputs.len()..row.inputs.len() + tokens.len() - beyond;
        let mut ids = vec![0; tokens.len()];
        self.file.read(tokens.clone(), &mut ids)?;
        row.inputs.extend_from_slice(&ids[..inputs.len()]);
        row.targets.extend_from_slice(&ids[beyond..]);
        row.valid.resize(inputs.end, true);
        let targets = tokens.start + beyond..tokens.end;
        for masked in self.file.masked_within(targets.clone()) {
            let at = |token: usize| inputs.start + token - targets.start;
            row.valid[at(masked.start)..at(masked.end)].fill(false);
        }
        Ok(())
    }

    /// Adds a window of all documents joined.
    fn add_window(&self, row: &mut Sequence, index: usize) -> Result<()> {
        let RowOptions { sequence_length, reset_attention_mask, target, .. } = self.options;
        let (start, beyond) = (index * sequence_length, self.options.beyond_inputs());
        let window = start..self.file.len().min(start + sequence_length + beyond);
        self.add(row, window.clone())?;
        if !reset_attention_mask {
            // A causal mask hides padding behind a text; without one, each token would see it.
            if target == TargetToken::Same && row.inputs.len() < sequence_length {
                row.documents.push(row.inputs.len());
            }
            return Ok(());
        }
        let mut next = window.start;
        while next < window.end - beyond {
            let document = self.file.document(self.file.document_of(next));
            let end = document.end.min(window.end - beyond);
            row.documents.push(end - next);
            // What follows the last token of a document is not predicted from it.
            if target == TargetToken::Next && end == document.end {
                row.valid[end - 1 - window.start] = false;
            }
            next = end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::dataset::{Example, LongExamples, TokenWriter};

    const END: u32 = 99;

    /// Documents [1 2 3 END] with a masked prompt [1 2], [4 END], [5 6 7 8 9 END].
    fn write(folder: &Path) {
        let mut writer = TokenWriter::create(folder, "train", 100).unwrap();
        writer.push(&[1, 2], true).unwrap();
        writer.push(&[3, END], false).unwrap();
        writer.end_document().unwrap();
        for ids in [vec![4, END], vec![5, 6, 7, 8, 9, END]] {
            writer.push_example(&Example::of(ids)).unwrap();
        }
        writer.finish().unwrap();
    }

    fn sequences(options: RowOptions) -> TokenSequences {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path());
        TokenSequences::open(folder.path(), "train", options, END).unwrap()
    }

    fn rows(options: RowOptions) -> Vec<Sequence> {
        let sequences = sequences(options);
        (0..sequences.len()).map(|row| sequences.get(row).unwrap()).collect()
    }

    #[test]
    fn packed_windows_cover_every_target_once() {
        let rows = rows(RowOptions::new(4, SequenceLayout::Packed));
        assert_eq!(rows.len(), 3);
        assert_eq!(rows[0].inputs, [1, 2, 3, END]);
        assert_eq!(rows[0].targets, [2, 3, END, 4]);
        assert_eq!(rows[0].valid, [false, true, true, true]);
        assert_eq!(rows[1].inputs, [4, END, 5, 6]);
        assert_eq!(rows[2].inputs, [7, 8, 9, END]);
        assert_eq!(rows[2].targets, [8, 9, END, END]);
        assert_eq!(rows[2].valid, [true, true, true, false]);
        assert!(rows.iter().all(|row| row.documents.is_empty()));
    }

    #[test]
    fn packed_windows_may_keep_documents_apart() {
        let packed = RowOptions::new(4, SequenceLayout::Packed);
        let apart = rows(RowOptions { reset_attention_mask: true, ..packed });
        let documents: Vec<_> = apart.iter().map(|row| row.documents.clone()).collect();
        assert_eq!(documents, [vec![4], vec![2, 2], vec![3]]);
        // What follows an end of text is not predicted from it.
        assert_eq!(apart[0].valid, [false, true, true, false]);
        assert_eq!(apart[1].valid, [true, false, true, true]);
        assert_eq!(apart[2].valid, [true, true, true, false]);
        for (apart, joined) in apart.into_iter().zip(rows(packed)) {
            assert_eq!((apart.inputs, apart.targets), (joined.inputs, joined.targets));
        }
    }

    #[test]
    fn a_short_window_whose_tokens_see_all_others_has_no_padding_in_its_document() {
        let packed = RowOptions::new(8, SequenceLayout::Packed);
        let both = rows(RowOptions { target: TargetToken::Same, ..packed });
        assert_eq!(both[1].inputs, [7, 8, 9, END, END, END, END, END]);
        assert!(both[0].documents.is_empty());
        assert_eq!(both[1].documents, [4]);
        assert!(rows(packed)[1].documents.is_empty());
    }

    #[test]
    fn one_row_a_document() {
        let rows = rows(RowOptions::new(3, SequenceLayout::Documents));
        assert_eq!(rows.len(), 3);
        assert_eq!(rows[1].inputs, [4, END, END]);
        assert_eq!(rows[1].targets, [END, END, END]);
        assert_eq!(rows[1].valid, [true, false, false]);
        assert_eq!(rows[1].documents, [1]);
        assert_eq!(rows[2].inputs, [5, 6, 7]);
        assert_eq!(rows[2].targets, [6, 7, 8]);
        assert_eq!(rows[2].valid, [true; 3]);
        assert_eq!(rows[0].valid, [false, true, true]);
    }

    #[test]
    fn whole_documents_share_rows() {
        let rows = rows(RowOptions::new(6, SequenceLayout::Bfd));
        assert_eq!(rows.len(), 2);
        assert_eq!(
            (rows[0].inputs.clone(), rows[0].documents.clone()),
            (vec![1, 2, 3, END, END, END], vec![3])
        );
        assert_eq!(rows[1].inputs, [4, 5, 6, 7, 8, 9]);
        assert_eq!(rows[1].targets, [END, 6, 7, 8, 9, END]);
        assert_eq!(rows[1].documents, [1, 5]);
        assert_eq!(
            (rows[0].valid.clone(), rows[1].valid.clone()),
            (vec![false, true, true, false, false, false], vec![true; 6])
        );
    }

    #[test]
    fn long_documents_are_cut_split_or_refused_and_counted() {
        let options = RowOptions { pad_to_multiple: 2, ..RowOptions::new(2, SequenceLayout::Documents) };
        let cut = sequences(options);
        assert_eq!((cut.len(), cut.get(0).unwrap().valid), (3, vec![false, true]));
        let counts = RowCounts { long: 2, cut_tokens: 1 + 3, unlearned: 0, inputs: 2 + 1 + 2 };
        assert_eq!(cut.row_counts(), Some(counts));
        let parts = rows(RowOptions { long: LongExamples::Split, ..options });
        let inputs: Vec<_> = parts.iter().map(|row| row.inputs.clone()).collect();
        assert_eq!(inputs, [[1, 2], [3, END], [4, END], [5, 6], [7, 8], [9, END]]);
        let targets: usize = parts.iter().map(|row| row.valid.iter().filter(|valid| **valid).count()).sum();
        assert_eq!(targets, 2 + 1 + 5, "every token but the first of each document, and the prompt");
        let folder = tempfile::tempdir().unwrap();
        write(folder.path());
        let refused = RowOptions { long: LongExamples::Refuse, ..options };
        let error = TokenSequences::open(folder.path(), "train", refused, END).unwrap_err().to_string();
        assert!(error.contains("document 1 has 3 tokens, more than the 2 of a row"), "{error}");
    }

    #[test]
    fn what_teaches_nothing_is_in_no_row_and_counted() {
        let cut = sequences(RowOptions::new(1, SequenceLayout::Documents));
        let counts = RowCounts { long: 2, cut_tokens: 2 + 4, unlearned: 1, inputs: 2 };
        assert_eq!((cut.len(), cut.row_counts()), (2, Some(counts)));
        assert_eq!(cut.get(0).unwrap().inputs, [4]);
    }

    #[test]
    fn labels_come_with_rows_that_have_all_tokens_of_their_document() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = TokenWriter::create(folder.path(), "train", 100).unwrap();
        for (ids, class) in [(vec![1, 2, 3], 7), (vec![4], 0)] {
            writer.push_example(&Example::of(ids).with_label(Label::Class(class))).unwrap();
        }
        writer.finish().unwrap();
        let options = RowOptions {
            target: TargetToken::Same,
            pad_to_multiple: 2,
            ..RowOptions::new(8, SequenceLayout::Auto)
        };
        let rows = TokenSequences::open(folder.path(), "train", options, END).unwrap();
        assert_eq!(rows.options().layout, SequenceLayout::Documents);
        let (first, second) = (rows.get(0).unwrap(), rows.get(1).unwrap());
        assert_eq!(
            (first.inputs, first.documents, first.label),
            (vec![1, 2, 3, END], vec![3], Some(Label::Class(7)))
        );
        assert_eq!(first.valid, [true, true, true, false]);
        assert_eq!(
            (second.inputs, second.documents, second.label),
            (vec![4, END], vec![1], Some(Label::Class(0)))
        );
    }

    #[test]
    fn a_length_of_one_works() {
        let sequences = sequences(RowOptions::new(1, SequenceLayout::Packed));
        assert_eq!(sequences.len(), 11);
        assert_eq!(
            (sequences.get(3).unwrap().inputs, sequences.get(3).unwrap().targets),
            (vec![END], vec![4])
        );
    }
}
