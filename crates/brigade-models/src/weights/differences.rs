//! Names that a model and a file of weights do not have in common, in words.

use std::fmt;

/// How many names of one kind a message has at most.
const MAX_NAMES: usize = 8;

/// How similar two names must be for one to be suggested instead of the other, from 0 to 1.
const ALIKE: f64 = 0.6;

/// Which names a model and a file of weights must have in common. Shapes must be equal in any case.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Strict {
    /// All: every parameter is in the file, and every tensor of the file is in the model.
    #[default]
    Yes,
    /// Every parameter is in the file. Other tensors of the file are left alone.
    Parameters,
    /// At least one: parameters that are not in the file keep their values or get their initial ones, and other tensors of the file are left alone.
    No,
}

/// Names that only one of a model and a file has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameDifferences {
    /// Parameters of the model that are not in the file.
    pub missing: Vec<MissingParameter>,
    /// Tensors of the file that are not in the model.
    pub unexpected: Vec<String>,
}

/// A parameter that is not in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingParameter {
    /// Its name in the model, `block.path`.
    pub parameter: String,
    /// The tensor that the file does not have.
    pub tensor: String,
}

impl NameDifferences {
    /// Whether they are refused, where this many parameters are in the file.
    pub(super) fn are_refused(&self, strict: Strict, common: usize) -> bool {
        match strict {
            Strict::Yes => !(self.missing.is_empty() && self.unexpected.is_empty()),
            Strict::Parameters => !self.missing.is_empty(),
            Strict::No => common == 0 && !self.missing.is_empty(),
        }
    }

    /// What is refused, in words.
    pub(super) fn describe(&self, strict: Strict) -> String {
        let mut parts = Vec::new();
        if !self.missing.is_empty() {
            let missing = self.missing.iter().map(|missing| self.missing_in_words(missing));
            parts.push(format!("it has no tensor {}", some_of(missing)));
        }
        if strict == Strict::Yes && !self.unexpected.is_empty() {
            let unexpected = self.unexpected.iter().map(|name| format!("`{name}`"));
            parts.push(format!("the model has no parameter for {}", some_of(unexpected)));
        }
        let allowed = match strict {
            Strict::Yes => "Strict::No loads those that both have",
            Strict::Parameters => "Strict::No leaves these parameters unchanged",
            Strict::No => "they have no name in common; a mapping can give them other names",
        };
        format!("{}; {allowed}", parts.join(", and "))
    }

    /// A missing tensor, with its parameter where that has another name, and a tensor of the file that may be meant.
    fn missing_in_words(&self, MissingParameter { parameter, tensor }: &MissingParameter) -> String {
        let of = if parameter == tensor { String::new() } else { format!(" for `{parameter}`") };
        let likeness = |name: &String| strsim::normalized_damerau_levenshtein(name, tensor);
        let nearest = self.unexpected.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
        match nearest.filter(|name| likeness(name) >= ALIKE) {
            Some(name) => format!("`{tensor}`{of} (but `{name}`)"),
            None => format!("`{tensor}`{of}"),
        }
    }
}

/// A list of at most [`MAX_NAMES`].
pub(super) fn some_of(names: impl ExactSizeIterator<Item = String>) -> String {
    let more = names.len().saturating_sub(MAX_NAMES);
    let mut text = names.take(MAX_NAMES).collect::<Vec<_>>().join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

impl fmt::Display for NameDifferences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe(Strict::Yes))
    }
}
