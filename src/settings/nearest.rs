//! What a name that does not exist may have meant.

use std::fmt;

use toml::{Table, Value};

/// What may have been meant by a setting that does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Suggestion {
    /// A setting or section whose name is nearly the same.
    Nearest(String),
    /// None is: these are all that a section has, or all sections.
    Allowed {
        /// The section; empty for the whole configuration.
        section: String,
        /// What it has.
        names: Vec<String>,
    },
}

impl fmt::Display for Suggestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nearest(name) => write!(f, "did you mean `{name}`?"),
            Self::Allowed { section, names } if section.is_empty() => {
                write!(f, "the sections are {}", names.join(", "))
            }
            Self::Allowed { section, names } => write!(f, "[{section}] has {}", names.join(", ")),
        }
    }
}

/// What other programs and papers call settings.
const ABBREVIATIONS: [(&str, &str); 5] = [
    ("lr", "learning_rate"),
    ("wd", "weight_decay"),
    ("eps", "epsilon"),
    ("batch_size", "global_batch_size"),
    ("seq_len", "sequence_length"),
];

/// The setting or section that `given` is most likely a misspelling of, in its section or another; if none is near, what is allowed
/// in its section.
pub(super) fn suggest(given: &str, known: &Table) -> Suggestion {
    let mut all = Vec::new();
    names(known, "", &mut all);
    let abbreviated = ABBREVIATIONS.into_iter().find(|(short, _)| *short == last(given));
    if let Some((short, full)) = abbreviated
        && !all.iter().any(|name| last(name) == short)
        && let Some(name) = all.iter().find(|name| last(name) == full)
    {
        return Suggestion::Nearest(name.clone());
    }
    let distance = |name: &str| strsim::damerau_levenshtein(last(given), last(name));
    let nearest = all.iter().min_by_key(|name| (distance(name), strsim::damerau_levenshtein(given, name)));
    match nearest.filter(|name| distance(name) <= last(given).chars().count() / 3) {
        Some(name) => Suggestion::Nearest(name.clone()),
        None => allowed(given, known),
    }
}

/// The names in the innermost section of `given` that exists.
fn allowed(given: &str, known: &Table) -> Suggestion {
    let (mut section, mut table) = ("", known);
    for (at, _) in given.match_indices('.') {
        let name = given[..at].rsplit('.').next().unwrap_or_default();
        let Some(Value::Table(inner)) = table.get(name) else { break };
        (section, table) = (&given[..at], inner);
    }
    Suggestion::Allowed { section: section.to_owned(), names: table.keys().cloned().collect() }
}

/// The last part of a name.
fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or_default()
}

fn names(table: &Table, prefix: &str, all: &mut Vec<String>) {
    for (key, value) in table {
        let full = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        if let Value::Table(inner) = value {
            names(inner, &full, all);
        }
        all.push(full);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn near_names_are_suggested_and_others_listed() {
        let known: Table =
            "name = 1\n[train]\nsteps = 1\nseed = 1\nnonfinite_limit = 1\n[optimizer]\nlearning_rate = 1\nweight_decay = 1\n[optimizer.group]\nlr = 1"
                .parse()
                .unwrap();
        let said = |given: &str| suggest(given, &known).to_string();
        for (given, meant) in [
            ("train.step", "train.steps"),
            ("train.sead", "train.seed"),
            ("trian", "train"),
            ("steps", "train.steps"),
            ("optimizer.learning_rat", "optimizer.learning_rate"),
            ("optimizer.nonfinit_limit", "train.nonfinite_limit"),
            ("optimizer.wd", "optimizer.weight_decay"),
            ("train.lr", "optimizer.group.lr"),
        ] {
            assert_eq!(said(given), format!("did you mean `{meant}`?"));
        }
        assert_eq!(said("train.init"), "[train] has steps, seed, nonfinite_limit");
        assert_eq!(said("optimizer.group.momentum"), "[optimizer.group] has lr");
        assert_eq!(said("optimizer.beta.other"), "[optimizer] has learning_rate, weight_decay, group");
        assert_eq!(said("data"), "the sections are name, train, optimizer");
    }
}
