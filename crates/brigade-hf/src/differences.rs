//! Tensors that a model and files of weights do not have in common, in words.

use std::fmt;

/// How many names of one kind a message has at most.
const MAX_NAMES: usize = 10;

/// How the tensors of files differ from those of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TensorDifferences {
    /// Tensors of the model that are not in the files.
    pub missing: Vec<String>,
    /// Tensors of the files that the model has no use for.
    pub left_over: Vec<String>,
    /// Tensors of other shapes.
    pub wrong_shapes: Vec<WrongShape>,
}

/// A tensor of another shape than the model's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongShape {
    /// Its name in the files.
    pub name: String,
    /// Its shape there.
    pub found: Vec<usize>,
    /// Its shape in the model.
    pub needed: Vec<usize>,
}

impl fmt::Display for TensorDifferences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = |names: &[String]| list(names, |name| format!("`{name}`"));
        let mut parts = Vec::new();
        if !self.missing.is_empty() {
            parts.push(format!(
                "{} of the model's tensors are missing: {}",
                self.missing.len(),
                quoted(&self.missing)
            ));
        }
        if !self.left_over.is_empty() {
            parts.push(format!(
                "the model does not use {}: {}",
                self.left_over.len(),
                quoted(&self.left_over)
            ));
        }
        if !self.wrong_shapes.is_empty() {
            let wrong = |WrongShape { name, found, needed }: &WrongShape| {
                format!("`{name}` is {found:?}, not {needed:?}")
            };
            let wrong = list(&self.wrong_shapes, wrong);
            parts.push(format!(
                "{} have shapes that differ from the configuration: {wrong}",
                self.wrong_shapes.len()
            ));
        }
        f.write_str(&parts.join("; "))
    }
}

/// A list of at most [`MAX_NAMES`].
fn list<T>(items: &[T], text: impl Fn(&T) -> String) -> String {
    let mut names: Vec<_> = items.iter().take(MAX_NAMES).map(text).collect();
    if items.len() > MAX_NAMES {
        names.push(format!("and {} more", items.len() - MAX_NAMES));
    }
    names.join(", ")
}
