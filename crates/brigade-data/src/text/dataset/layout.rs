//! How examples become rows, as settings.

use std::fmt::{self, Display};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// How documents become rows of T tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SequenceLayout {
    /// [`Packed`](Self::Packed) for texts, [`Bfd`](Self::Bfd) for chats and completions, [`Documents`](Self::Documents) for what has
    /// labels.
    #[default]
    Auto,
    /// All documents joined, with an end-of-text token after each, and cut into windows of T + 1 tokens that overlap by one:
    /// every token but the first is a target exactly once. The last window is padded.
    Packed,
    /// Whole documents, as many as fit into a row, chosen by best-fit decreasing; what is left of a row is padding. No token sees
    /// another document.
    Bfd,
    /// One row per document, padded.
    Documents,
}

/// What becomes of documents that are longer than a row, where a row holds whole documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LongExamples {
    /// They are cut after T targets.
    #[default]
    Cut,
    /// They become several documents.
    Split,
    /// They are an error.
    Refuse,
}

/// What each token of a row is to predict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TargetToken {
    /// The token after it, as in causal language modelling: of n tokens, the first n - 1 are inputs.
    #[default]
    Next,
    /// Itself: all n tokens are inputs, of which a task may hide some, or only ask for the label.
    Same,
}

/// How examples become rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowOptions {
    /// T, the most tokens in a row.
    pub sequence_length: usize,
    /// How documents become rows.
    pub layout: SequenceLayout,
    /// Whether in packed windows, too, no token sees another document, and positions restart.
    pub reset_attention_mask: bool,
    /// Rows that hold whole documents are padded to a multiple of this many tokens, at most to T; 0 always pads to T.
    pub pad_to_multiple: usize,
    /// What becomes of documents that are longer than a row.
    pub long: LongExamples,
    /// What each token is to predict.
    pub target: TargetToken,
}

impl RowOptions {
    /// Rows of `sequence_length` tokens in this layout, padded to this length; long documents are cut, and a token's target is the next one.
    pub fn new(sequence_length: usize, layout: SequenceLayout) -> Self {
        Self {
            sequence_length,
            layout,
            reset_attention_mask: false,
            pad_to_multiple: 0,
            long: LongExamples::Cut,
            target: TargetToken::Next,
        }
    }

    /// The length of a row in which this many tokens are not padding.
    pub(super) fn padded(&self, tokens: usize) -> usize {
        match self.pad_to_multiple {
            0 => self.sequence_length,
            _ if self.layout == SequenceLayout::Packed => self.sequence_length,
            multiple => tokens.max(1).next_multiple_of(multiple).min(self.sequence_length),
        }
    }

    /// How many tokens a document may have beside the inputs of a row.
    pub(crate) fn beyond_inputs(&self) -> usize {
        match self.target {
            TargetToken::Next => 1,
            TargetToken::Same => 0,
        }
    }
}

/// Names of a setting's values, which are read and shown alike.
macro_rules! named {
    ($type:ident, $option:literal: $($variant:ident $name:literal),* ; $allowed:literal) => {
        impl Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $name),* })
            }
        }

        impl FromStr for $type {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                match text {
                    $($name => Ok(Self::$variant),)*
                    _ => Err(Error::InvalidSetting { option: $option, given: text.into(), allowed: $allowed.into() }),
                }
            }
        }
    };
}

named! {
    SequenceLayout, "layout": Auto "auto", Packed "packed", Bfd "bfd", Documents "documents";
    "it must be \"auto\", \"packed\", \"bfd\" or \"documents\""
}
named! {
    LongExamples, "long": Cut "cut", Split "split", Refuse "refuse"; "it must be \"cut\", \"split\" or \
    \"refuse\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_names() {
        use SequenceLayout::{Auto, Bfd, Documents, Packed};
        for layout in [Auto, Packed, Bfd, Documents] {
            assert_eq!(layout.to_string().parse::<SequenceLayout>().unwrap(), layout);
            assert_eq!(serde_json::to_string(&layout).unwrap(), format!("\"{layout}\""));
        }
        for long in [LongExamples::Cut, LongExamples::Split, LongExamples::Refuse] {
            assert_eq!(long.to_string().parse::<LongExamples>().unwrap(), long);
        }
        assert!("stacked".parse::<SequenceLayout>().unwrap_err().to_string().contains("stacked"));
    }

    #[test]
    fn rows_are_padded_to_a_multiple_within_their_length() {
        let options = RowOptions { pad_to_multiple: 8, ..RowOptions::new(20, SequenceLayout::Documents) };
        assert_eq!([0, 1, 8, 9, 17, 20].map(|tokens| options.padded(tokens)), [8, 8, 8, 16, 20, 20]);
        assert_eq!(RowOptions { layout: SequenceLayout::Packed, ..options }.padded(3), 20);
        assert_eq!(RowOptions { pad_to_multiple: 0, ..options }.padded(3), 20);
    }
}
