//! Token files as a dataset of sequences of one length.

use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::text::dataset::TokenFile;
use crate::{Error, Result};

/// How documents become sequences of T tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SequenceLayout {
    /// All documents joined, with an end-of-text token after each, and cut into windows of T + 1 tokens that overlap by one:
    /// every token but the first is a target exactly once. The last window is padded.
    #[default]
    Packed,
    /// One window per document (with its end-of-text token), cut after T targets or padded.
    Documents,
}

impl FromStr for SequenceLayout {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "packed" => Ok(Self::Packed),
            "documents" => Ok(Self::Documents),
            _ => Err(Error::InvalidSetting {
                option: "layout",
                given: text.into(),
                allowed: "it is \"packed\" or \"documents\"".into(),
            }),
        }
    }
}

impl std::fmt::Display for SequenceLayout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Packed => "packed",
            Self::Documents => "documents",
        })
    }
}

/// One row of a batch: T inputs, and for each the token that follows it. The three vectors have length T.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequence {
    /// Token ids.
    pub inputs: Vec<u32>,
    /// `targets[t]` is the token after `inputs[t]`; end-of-text where `valid[t]` is false because of padding.
    pub targets: Vec<u32>,
    /// Whether `targets[t]` counts in the loss: false for padding and for the tokens of a prompt.
    pub valid: Vec<bool>,
}

impl Sequence {
    /// A row without valid targets, to fill a batch that has too few sequences.
    pub fn padding(length: usize, end_of_text: u32) -> Self {
        Self {
            inputs: vec![end_of_text; length],
            targets: vec![end_of_text; length],
            valid: vec![false; length],
        }
    }
}

/// The sequences of one split. Cloning it is cheap: the tokens are one shared memory map.
#[derive(Debug, Clone)]
pub struct TokenSequences {
    file: Arc<TokenFile>,
    sequence_length: usize,
    layout: SequenceLayout,
    end_of_text: u32,
}

impl TokenSequences {
    /// The sequences of `sequence_length` tokens (T) in `file`, padded with `end_of_text`.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] where T is 0.
    pub fn new(
        file: Arc<TokenFile>,
        sequence_length: usize,
        layout: SequenceLayout,
        end_of_text: u32,
    ) -> Result<Self> {
        if sequence_length == 0 {
            let allowed = "it must be at least 1".into();
            return Err(Error::InvalidSetting { option: "sequence_length", given: "0".into(), allowed });
        }
        Ok(Self { file, sequence_length, layout, end_of_text })
    }

    /// The number of sequences.
    pub fn len(&self) -> usize {
        match self.layout {
            SequenceLayout::Packed => self.file.len().saturating_sub(1).div_ceil(self.sequence_length),
            SequenceLayout::Documents => self.file.document_count(),
        }
    }

    /// Whether there is no sequence.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// T, the length of every sequence.
    pub fn sequence_length(&self) -> usize {
        self.sequence_length
    }

    /// The number of tokens in the split, end-of-text tokens included.
    pub fn token_count(&self) -> usize {
        self.file.len()
    }

    /// The tokens behind the sequences.
    pub fn tokens(&self) -> &Arc<TokenFile> {
        &self.file
    }

    /// Sequence `index`.
    ///
    /// # Panics
    /// Where `index` is not below [`TokenSequences::len`], as a slice would.
    pub fn get(&self, index: usize) -> Sequence {
        assert!(index < self.len(), "sequence {index} of {}", self.len());
        let window = self.window(index);
        let mut tokens = vec![self.end_of_text; self.sequence_length + 1];
        let mut valid = vec![false; self.sequence_length + 1];
        self.file.read(window.clone(), &mut tokens[..window.len()]);
        valid[..window.len()].fill(true);
        for masked in self.file.masked_within(window.clone()) {
            valid[masked.start - window.start..masked.end - window.start].fill(false);
        }
        let targets = tokens.split_off(1);
        let mut inputs = tokens;
        inputs.extend_from_slice(&targets[..self.sequence_length - 1]);
        valid.remove(0);
        Sequence { inputs, targets, valid }
    }

    /// The tokens that sequence `index` covers: at most T + 1.
    fn window(&self, index: usize) -> Range<usize> {
        let (start, end) = match self.layout {
            SequenceLayout::Packed => (index * self.sequence_length, self.file.len()),
            SequenceLayout::Documents => {
                let document = self.file.document(index);
                (document.start, document.end)
            }
        };
        start..end.min(start + self.sequence_length + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::dataset::TokenWriter;

    const END: u32 = 99;

    /// Documents [1 2 3 END] with a masked prompt [1 2], [4 END], [5 6 7 8 9 END].
    fn sequences(length: usize, layout: SequenceLayout) -> TokenSequences {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = TokenWriter::create(folder.path(), "train", 100).unwrap();
        writer.push(&[1, 2], true).unwrap();
        writer.push(&[3, END], false).unwrap();
        writer.end_document();
        writer.push(&[4, END], false).unwrap();
        writer.end_document();
        writer.push(&[5, 6, 7, 8, 9, END], false).unwrap();
        writer.end_document();
        writer.finish().unwrap();
        let file = TokenFile::open(folder.path(), "train").unwrap();
        TokenSequences::new(Arc::new(file), length, layout, END).unwrap()
    }

    #[test]
    fn packed_windows_cover_every_target_once() {
        let sequences = sequences(4, SequenceLayout::Packed);
        assert_eq!(sequences.len(), 3);
        let first = sequences.get(0);
        assert_eq!(first.inputs, [1, 2, 3, END]);
        assert_eq!(first.targets, [2, 3, END, 4]);
        assert_eq!(first.valid, [false, true, true, true]);
        assert_eq!(sequences.get(1).inputs, [4, END, 5, 6]);
        let last = sequences.get(2);
        assert_eq!(last.inputs, [7, 8, 9, END]);
        assert_eq!(last.targets, [8, 9, END, END]);
        assert_eq!(last.valid, [true, true, true, false]);
    }

    #[test]
    fn one_window_a_document() {
        let sequences = sequences(3, SequenceLayout::Documents);
        assert_eq!(sequences.len(), 3);
        let short = sequences.get(1);
        assert_eq!(short.inputs, [4, END, END]);
        assert_eq!(short.targets, [END, END, END]);
        assert_eq!(short.valid, [true, false, false]);
        let cut = sequences.get(2);
        assert_eq!(cut.inputs, [5, 6, 7]);
        assert_eq!(cut.targets, [6, 7, 8]);
        assert_eq!(cut.valid, [true; 3]);
        assert_eq!(sequences.get(0).valid, [false, true, true]);
    }

    #[test]
    fn a_length_of_one_works() {
        let sequences = sequences(1, SequenceLayout::Packed);
        assert_eq!(sequences.len(), 11);
        assert_eq!((sequences.get(3).inputs, sequences.get(3).targets), (vec![END], vec![4]));
    }

    #[test]
    fn layouts_have_names() {
        for layout in [SequenceLayout::Packed, SequenceLayout::Documents] {
            assert_eq!(layout.to_string().parse::<SequenceLayout>().unwrap(), layout);
        }
        assert!("stacked".parse::<SequenceLayout>().unwrap_err().to_string().contains("stacked"));
    }
}
