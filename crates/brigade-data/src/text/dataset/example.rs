//! What is learned from.

use std::fmt;

/// Tokens to learn from, and perhaps what they are to be told apart by.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Example {
    /// Token ids, with those that begin and end a text.
    pub ids: Vec<u32>,
    /// Which of them are learned: as targets, they count in the loss. As long as `ids`.
    pub learned: Vec<bool>,
    /// The class, the classes or the number that belongs to them, if there is one. What is learned is the label then, and `learned` says which tokens are of the first of two
    /// texts.
    pub label: Option<Label>,
    /// How many tokens its record had besides, which were cut, as a row does not hold them.
    pub cut: usize,
}

/// What belongs to an example as a whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Label {
    /// Of a classification: the class's index.
    Class(u32),
    /// Of a regression: a finite number.
    Number(f64),
    /// Of a classification with any number of classes each: a bit for each class, the lowest for the first.
    Classes(u64),
}

/// Which labels all examples of a file have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelKind {
    /// [`Label::Class`].
    Class,
    /// [`Label::Number`].
    Number,
    /// [`Label::Classes`].
    Classes,
}

impl fmt::Display for LabelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Class => "a class",
            Self::Number => "a number",
            Self::Classes => "any of several classes",
        })
    }
}

impl Example {
    /// An example all of whose tokens are learned.
    pub fn of(ids: Vec<u32>) -> Self {
        Self { learned: vec![true; ids.len()], ids, label: None, cut: 0 }
    }

    /// The same with a label.
    pub fn with_label(self, label: Label) -> Self {
        Self { label: Some(label), ..self }
    }
}

impl Label {
    /// Which kind it is.
    pub fn kind(self) -> LabelKind {
        match self {
            Self::Class(_) => LabelKind::Class,
            Self::Number(_) => LabelKind::Number,
            Self::Classes(_) => LabelKind::Classes,
        }
    }

    /// As it is in files.
    pub(super) fn to_bits(self) -> u64 {
        match self {
            Self::Class(class) => class.into(),
            Self::Number(number) => number.to_bits(),
            Self::Classes(classes) => classes,
        }
    }
}

impl LabelKind {
    /// The label of this kind that these bits stand for, if there is one.
    pub(super) fn label(self, bits: u64) -> Option<Label> {
        match self {
            Self::Class => u32::try_from(bits).ok().map(Label::Class),
            Self::Number => Some(f64::from_bits(bits)).filter(|number| number.is_finite()).map(Label::Number),
            Self::Classes => Some(Label::Classes(bits)),
        }
    }
}
