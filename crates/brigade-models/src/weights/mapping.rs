//! Where a model's parameters are in files, as data.

use std::fmt;

use brigade_sorted::SortedMap;
use serde::{Deserialize, Serialize};

/// Where the values of a model's parameters are in files of weights: by name, and where that is needed with a transformation.
/// A parameter without a rule is a tensor of its own name.
///
/// ```
/// use brigade_models::{Stored, WeightsMapping};
///
/// // The model has one matrix `[width, 3 · width]` for queries, keys and values; the file has three `[width, width]`, each
/// // with outputs before inputs.
/// let width = 64;
/// let projection = |name: &str| (format!("model.layers.*.self_attn.{name}_proj.weight"), width);
/// let mapping = WeightsMapping::default()
///     .rule("embedding.tokens", "model.embed_tokens.weight")
///     .rule("layers.*.qkv.weight", Stored::concatenated(0, ["q", "k", "v"].map(projection)).transposed());
/// assert_eq!(mapping.stored("embedding.tokens"), Stored::from("model.embed_tokens.weight"));
/// assert!(mapping.stored("layers.7.qkv.weight").to_string().contains("model.layers.7.self_attn.k_proj.weight"));
/// ```
#[derive(Debug, Clone, Default)]
pub struct WeightsMapping {
    rules: Vec<(String, Stored)>,
    optional_prefix: String,
    other_ends: Vec<(String, String)>,
    optional: Vec<String>,
    names: SortedMap<String, String>,
    more_rows: Vec<String>,
}

impl WeightsMapping {
    /// Says where the parameters (`block.path`) of a pattern are. In a pattern, `*` stands for one part between dots; in the
    /// names of tensors, the first `*` stands for what the pattern's first one matched, and so on. The first rule that
    /// matches a parameter decides.
    pub fn rule(mut self, pattern: impl Into<String>, stored: impl Into<Stored>) -> Self {
        self.rules.push((pattern.into(), stored.into()));
        self
    }

    /// A prefix that files may or may not put before every name, also of the names in rules that begin with it.
    pub fn with_optional_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.optional_prefix = prefix.into();
        self
    }

    /// Says that files may have another end in place of one that tensors' names have, as files of older programs do.
    pub fn with_other_end(mut self, end: impl Into<String>, other: impl Into<String>) -> Self {
        self.other_ends.push((end.into(), other.into()));
        self
    }

    /// Says that files may lack the parameters of a pattern, which then have their initial values.
    pub fn optional(mut self, pattern: impl Into<String>) -> Self {
        self.optional.push(pattern.into());
        self
    }

    /// Says that tensors may have other names in files: those that rules give, each with the other.
    pub fn with_names(mut self, names: SortedMap<String, String>) -> Self {
        self.names.extend(names);
        self
    }

    /// Says that files may have fewer rows of the matrices of a pattern, as a table of embeddings has before its vocabulary grows. Each row more is
    /// the mean of the file's.
    pub fn more_rows(mut self, pattern: impl Into<String>) -> Self {
        self.more_rows.push(pattern.into());
        self
    }

    /// Whether files may have fewer rows of a parameter.
    pub(super) fn may_have_more_rows(&self, parameter: &str) -> bool {
        self.more_rows.iter().any(|pattern| matches(pattern, parameter).is_some())
    }

    /// Whether files may lack a parameter.
    pub(super) fn is_optional(&self, parameter: &str) -> bool {
        self.optional.iter().any(|pattern| matches(pattern, parameter).is_some())
    }

    /// Where a parameter is.
    pub fn stored(&self, parameter: &str) -> Stored {
        let found =
            self.rules.iter().find_map(|(pattern, stored)| Some((matches(pattern, parameter)?, stored)));
        match found {
            Some((parts, stored)) => stored.with(&parts),
            None => Stored::from(parameter),
        }
    }

    /// Parameters, given as names and shapes, with where they are.
    pub fn parameters(
        &self,
        shapes: impl IntoIterator<Item = (String, Vec<usize>)>,
    ) -> impl Iterator<Item = MappedParameter> {
        shapes.into_iter().map(|(name, shape)| MappedParameter { stored: self.stored(&name), name, shape })
    }

    /// The names that a tensor may have in files, the first of which is its own.
    pub(super) fn names_of(&self, tensor: &str) -> Vec<String> {
        let mut names = vec![tensor.to_owned()];
        let prefix = self.optional_prefix.as_str();
        if !prefix.is_empty() {
            names.push(format!("{prefix}{tensor}"));
            names.extend(tensor.strip_prefix(prefix).map(str::to_owned));
        }
        let with_other_end = |(end, other): &(String, String)| {
            let other = |name: &String| Some(format!("{}{other}", name.strip_suffix(end.as_str())?));
            names.iter().filter_map(other).collect::<Vec<_>>()
        };
        let others: Vec<_> = self.other_ends.iter().flat_map(with_other_end).collect();
        names.extend(others);
        names.extend(self.names.get(tensor).cloned());
        names
    }
}

/// What each `*` of a pattern stands for in a name; none if the name does not match.
fn matches<'n>(pattern: &str, name: &'n str) -> Option<Vec<&'n str>> {
    let (mut patterns, mut names, mut found) = (pattern.split('.'), name.split('.'), Vec::new());
    loop {
        match (patterns.next(), names.next()) {
            (Some("*"), Some(part)) => found.push(part),
            (Some(pattern), Some(part)) if pattern == part => {}
            (None, None) => return Some(found),
            _ => return None,
        }
    }
}

/// Where one parameter's values are in a file of weights. Reading and writing are inverse.
///
/// The variants nest. From the outside in, each says what the parameter is made of, so that
/// `Stored::tensor("x").part(0, 4, 12).transposed()` is the transpose of four rows of `x`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Stored {
    /// The tensor of this name.
    Tensor(String),
    /// The transpose: the last two dimensions are swapped.
    Transposed {
        /// Of what.
        transposed: Box<Self>,
    },
    /// Some of the elements along one dimension: as many as the parameter has there.
    Part {
        /// Of what.
        part_of: Box<Self>,
        /// The dimension, from 0.
        dimension: usize,
        /// The first of the elements.
        start: usize,
        /// How many there are in all.
        of: usize,
    },
    /// One after the other along one dimension.
    Concatenated {
        /// What, and how many elements each has along the dimension.
        concatenated: Vec<(Self, usize)>,
        /// The dimension, from 0.
        dimension: usize,
    },
}

impl Stored {
    /// The tensor of this name.
    pub fn tensor(name: impl Into<String>) -> Self {
        Self::Tensor(name.into())
    }

    /// The transpose of this: the last two dimensions are swapped.
    pub fn transposed(self) -> Self {
        Self::Transposed { transposed: Box::new(self) }
    }

    /// The elements from `start` on, as many as the parameter has, of the `of` elements that this has along `dimension`.
    pub fn part(self, dimension: usize, start: usize, of: usize) -> Self {
        Self::Part { part_of: Box::new(self), dimension, start, of }
    }

    /// Parts one after the other along `dimension`, each with its number of elements there.
    pub fn concatenated<S: Into<Self>>(
        dimension: usize,
        parts: impl IntoIterator<Item = (S, usize)>,
    ) -> Self {
        let concatenated = parts.into_iter().map(|(part, size)| (part.into(), size)).collect();
        Self::Concatenated { concatenated, dimension }
    }

    /// Whether it is anything else than a tensor.
    pub(super) fn is_changed(&self) -> bool {
        !matches!(self, Self::Tensor(_))
    }

    /// With what each `*` in a tensor's name stands for.
    fn with(&self, parts: &[&str]) -> Self {
        match self {
            Self::Tensor(name) => {
                Self::Tensor(parts.iter().fold(name.clone(), |name, part| name.replacen('*', part, 1)))
            }
            Self::Transposed { transposed } => transposed.with(parts).transposed(),
            Self::Part { part_of, dimension, start, of } => part_of.with(parts).part(*dimension, *start, *of),
            Self::Concatenated { concatenated, dimension } => {
                let concatenated = concatenated.iter().map(|(part, size)| (part.with(parts), *size));
                Self::concatenated(*dimension, concatenated)
            }
        }
    }
}

impl From<&str> for Stored {
    fn from(name: &str) -> Self {
        Self::tensor(name)
    }
}

impl From<String> for Stored {
    fn from(name: String) -> Self {
        Self::tensor(name)
    }
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tensor(name) => write!(f, "`{name}`"),
            Self::Transposed { transposed } => write!(f, "the transpose of {transposed}"),
            Self::Part { part_of, dimension, start, of } => {
                write!(f, "elements from {start} on of the {of} along dimension {dimension} of {part_of}")
            }
            Self::Concatenated { concatenated, dimension } => {
                write!(f, "a concatenation along dimension {dimension} of (")?;
                for (index, (part, size)) in concatenated.iter().enumerate() {
                    let comma = if index > 0 { ", " } else { "" };
                    write!(f, "{comma}{size} of {part}")?;
                }
                write!(f, ")")
            }
        }
    }
}

/// A parameter, and where it is in a file.
#[derive(Debug, Clone)]
pub struct MappedParameter {
    /// Its name, `block.path`.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Where it is in the file.
    pub stored: Stored,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_matches_decides_and_names_its_parts() {
        let mapping = WeightsMapping::default()
            .rule("h.*.*.gamma", "layer.*.norm.*.weight")
            .rule("h.0.x", Stored::concatenated(1, [("first.a", 2), ("first.b", 3)]))
            .rule("h.*.x", Stored::tensor("all.*").part(0, 4, 12).transposed());
        for (parameter, stored) in [
            ("h.3.ln_1.gamma", "`layer.3.norm.ln_1.weight`"),
            ("h.3.gamma", "`h.3.gamma`"),
            ("h.3.a.b.gamma", "`h.3.a.b.gamma`"),
            ("h.0.x", "a concatenation along dimension 1 of (2 of `first.a`, 3 of `first.b`)"),
            ("h.1.x", "the transpose of elements from 4 on of the 12 along dimension 0 of `all.1`"),
        ] {
            assert_eq!(mapping.stored(parameter).to_string(), stored);
        }
    }

    #[test]
    fn a_prefix_may_be_there_or_not_and_older_files_have_other_ends() {
        let mapping =
            WeightsMapping::default().with_optional_prefix("bert.").with_other_end(".weight", ".gamma");
        assert_eq!(mapping.names_of("x.bias"), ["x.bias", "bert.x.bias"]);
        let names = [
            "bert.x.weight",
            "bert.bert.x.weight",
            "x.weight",
            "bert.x.gamma",
            "bert.bert.x.gamma",
            "x.gamma",
        ];
        assert_eq!(mapping.names_of("bert.x.weight"), names);
    }

    #[test]
    fn as_text_a_plain_name_is_a_string() {
        for stored in [
            Stored::tensor("a"),
            Stored::tensor("a").transposed(),
            Stored::concatenated(1, [(Stored::tensor("a").part(0, 1, 3), 2), (Stored::tensor("b"), 3)]),
        ] {
            let text = serde_json::to_string(&stored).unwrap();
            assert_eq!(serde_json::from_str::<Stored>(&text).unwrap(), stored, "{text}");
        }
        assert_eq!(serde_json::to_string(&Stored::tensor("a")).unwrap(), "\"a\"");
    }
}
