//! What a name that does not exist may have meant.

use std::fmt;

use serde::Serialize;
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

/// What other programs and papers call settings: the last part of the name, and the setting's, or its last part where several sections have it.
const OTHER_NAMES: [(&str, &str); 40] = [
    ("lr", "learning_rate"),
    ("learning_rate", "learning_rate"),
    ("wd", "weight_decay"),
    ("eps", "epsilon"),
    ("batch_size", "global_batch_size"),
    ("train_batch_size", "global_batch_size"),
    ("per_device_train_batch_size", "micro_batch_size"),
    ("gradient_accumulation_steps", "global_batch_size"),
    ("seq_len", "sequence_length"),
    ("hidden_size", "model.width"),
    ("n_embd", "model.width"),
    ("num_layers", "model.layers"),
    ("num_hidden_layers", "model.layers"),
    ("n_layer", "model.layers"),
    ("num_attention_heads", "model.heads"),
    ("n_head", "model.heads"),
    ("max_steps", "train.steps"),
    ("num_epochs", "train.epochs"),
    ("num_train_epochs", "train.epochs"),
    ("eval_steps", "train.validate_every"),
    ("eval_every", "train.validate_every"),
    ("grad_clip", "train.gradient_clipping"),
    ("max_grad_norm", "train.gradient_clipping"),
    ("num_workers", "train.readers"),
    ("prefetch_factor", "train.read_ahead"),
    ("save_steps", "checkpoint.every"),
    ("save_every", "checkpoint.every"),
    ("save_total_limit", "checkpoint.keep"),
    ("warmup", "schedule.warmup_steps"),
    ("warmup_ratio", "schedule.warmup_steps"),
    ("lr_scheduler_type", "schedule.name"),
    ("precision", "compute.dtype"),
    ("mixed_precision", "compute.dtype"),
    ("bf16", "compute.dtype"),
    ("fp16", "compute.dtype"),
    ("gradient_checkpointing", "compute.recompute"),
    ("cpu_offload", "zero.offload_optimizer"),
    ("out_dir", "output.dir"),
    ("output_dir", "output.dir"),
    ("logging_steps", "output.log_every"),
];

/// The setting in a configuration that a flag stands for which does not exist: of the name that other programs have (`--max-steps`, `--lr`), or
/// one that only one section has (`--weight-decay`).
pub fn setting_of_flag(flag: &str, config: &impl Serialize) -> Option<String> {
    of_flag(flag, &Table::try_from(config).ok()?)
}

fn of_flag(flag: &str, known: &Table) -> Option<String> {
    let given = flag.trim_start_matches('-').replace('-', "_");
    let mut all = Vec::new();
    names(known, "", &mut all);
    let mut same = all.iter().filter(|name| last(name) == given && name.contains('.'));
    match (same.next(), same.next()) {
        (Some(only), None) => Some(only.clone()),
        _ => of_other_name(&given, &all).cloned(),
    }
}

/// The setting that another name stands for.
fn of_other_name<'n>(given: &str, all: &'n [String]) -> Option<&'n String> {
    let (_, full) = OTHER_NAMES.into_iter().find(|(other, _)| *other == given)?;
    all.iter().find(|name| name.as_str() == full || last(name) == full)
}

/// The setting or section that `given` is most likely a misspelling of, in its section or another; if none is near, what is allowed
/// in its section.
pub(super) fn suggest(given: &str, known: &Table) -> Suggestion {
    let mut all = Vec::new();
    names(known, "", &mut all);
    if !all.iter().any(|name| last(name) == last(given))
        && let Some(name) = of_other_name(last(given), &all)
    {
        return Suggestion::Nearest(name.clone());
    }
    let distance = |name: &str| strsim::damerau_levenshtein(last(given), last(name));
    let nearest = all.iter().min_by_key(|name| (distance(name), strsim::damerau_levenshtein(given, name)));
    // In another section only a slip of the pen: a name that is merely similar means something else there.
    let allows = |name: &String| match section(name) == section(given) || section(given).is_empty() {
        true => last(given).chars().count() / 3,
        false => 1,
    };
    match nearest.filter(|name| distance(name) <= allows(name)) {
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

/// All parts but the last.
fn section(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(section, _)| section)
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
        for (flag, setting) in [
            ("--max-steps", Some("train.steps")),
            ("--weight-decay", Some("optimizer.weight_decay")),
            ("--seed", Some("train.seed")),
            ("--save-steps", None),
            ("--name", None),
        ] {
            assert_eq!(of_flag(flag, &known).as_deref(), setting, "{flag}");
        }
        assert_eq!(said("optimizer.max_steps"), "did you mean `train.steps`?");
        assert_eq!(said("optimizer.stoops"), "[optimizer] has learning_rate, weight_decay, group");
        assert_eq!(said("train.init"), "[train] has steps, seed, nonfinite_limit");
        assert_eq!(said("optimizer.group.momentum"), "[optimizer.group] has lr");
        assert_eq!(said("optimizer.beta.other"), "[optimizer] has learning_rate, weight_decay, group");
        assert_eq!(said("data"), "the sections are name, train, optimizer");
    }
}
