//! The tensors of files beside those of a model.

use std::path::Path;

use brigade_sorted::{SortedMap, SortedSet};

use crate::config::{Config, Family, Task};
use crate::differences::{TensorDifferences, WrongShape};
use crate::error::HfError;
use crate::tensors::TensorShape;

/// Name endings of tensors in older files that are not parameters: masks, positions and frequencies.
const NO_PARAMETERS: [&str; 5] = [
    ".attn.bias",
    ".attn.masked_bias",
    ".rotary_emb.inv_freq",
    "embeddings.position_ids",
    "embeddings.token_type_ids",
];

/// Tables of embeddings, by the ends of their names.
const TABLES: [&str; 3] = ["embed_tokens.weight", "wte.weight", "embeddings.word_embeddings.weight"];

/// Copies of the table of embeddings and of the bias beside it, as heads that are tied to it have them.
const TIED: [&str; 5] = [
    "lm_head.weight",
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
    "lm_head.decoder.weight",
    "lm_head.decoder.bias",
];

/// A model's tensors, found in its files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MatchedTensors {
    /// By the name that `transformers` gives it today, the name in the files.
    pub names: SortedMap<String, String>,
    /// Those of a head that the files do not have, since they are of a model for something else: they get initial values.
    pub fresh: Vec<String>,
    /// Tensors of the files that are left: of another head, or no parameters.
    pub unused: Vec<String>,
}

impl MatchedTensors {
    /// Where an unused tensor is a copy of one that the model has, as a head that is tied to the table of embeddings: the name of that one
    /// in the files.
    pub fn tied_to(&self, unused: &str) -> Option<&str> {
        let originals: &[&str] = match unused {
            "cls.predictions.decoder.bias" => &["cls.predictions.bias"],
            "lm_head.decoder.bias" => &["lm_head.bias"],
            _ if TIED.contains(&unused) => &TABLES,
            _ => return None,
        };
        let is_original = |name: &String| originals.iter().any(|end| name.ends_with(end));
        self.names.iter().find(|&(name, _)| is_original(name)).map(|(_, there)| there.as_str())
    }
}

/// Finds a model's tensors in its files, by the names of this and of older versions, with or without the prefix that models with a head
/// have. `trained_for` is what the files' model is for, if that is known: for the same task the head must be there. `path` is for
/// messages; `found` are the names and shapes of the files' tensors.
///
/// # Errors
/// If tensors are missing, left over, or of another shape.
pub fn match_tensors(
    path: &Path,
    config: &Config,
    task: Task,
    trained_for: Option<Task>,
    found: &SortedMap<String, Vec<usize>>,
) -> Result<MatchedTensors, HfError> {
    let family = config.family();
    let base: SortedSet<_> =
        config.tensors(Task::Base).into_iter().map(|(name, _)| with_prefix(family, &name, task)).collect();
    let (mut matched, mut differences) = (MatchedTensors::default(), TensorDifferences::default());
    let mut missing_head = Vec::new();
    for (name, needed) in config.tensors(task) {
        match spellings(family, &name).find_map(|spelling| found.get_key_value(&spelling)) {
            Some((there, shape)) if *shape == needed => _ = matched.names.insert(name, there.clone()),
            Some((there, shape)) => {
                differences.wrong_shapes.push(WrongShape {
                    name: there.clone(),
                    found: shape.clone(),
                    needed,
                });
            }
            None if is_head(&base, &name) => missing_head.push(name),
            None => differences.missing.push(name),
        }
    }
    let used: SortedSet<_> =
        matched.names.values().chain(differences.wrong_shapes.iter().map(|wrong| &wrong.name)).collect();
    // A pooler is in files of models without a head, too.
    let head_found = matched.names.keys().any(|name| is_head(&base, name) && !name.contains(".pooler."));
    if trained_for == Some(task) || head_found {
        differences.missing.append(&mut missing_head);
    }
    let unused: Vec<_> = found.keys().filter(|name| !used.contains(name)).cloned().collect();
    drop(used);
    for name in unused {
        let of_other_head = trained_for != Some(task) && !is_in_base(family, &name);
        if of_other_head || is_no_parameter(config, &name) {
            matched.unused.push(name);
        } else {
            differences.left_over.push(name);
        }
    }
    matched.fresh = missing_head;
    if differences == TensorDifferences::default() {
        return Ok(matched);
    }
    Err(HfError::Tensors { path: path.to_owned(), differences })
}

/// Compares the tensors of a file with those that it must have, and no others. `path` is for messages.
///
/// # Errors
/// If tensors are missing, left over, or of another shape.
pub fn compare_tensors(
    path: &Path,
    needed: &[TensorShape],
    found: &SortedMap<String, Vec<usize>>,
) -> Result<(), HfError> {
    let mut differences = TensorDifferences::default();
    let mut left: SortedSet<_> = found.keys().collect();
    for (name, needed) in needed {
        left.remove(name);
        match found.get(name) {
            None => differences.missing.push(name.clone()),
            Some(shape) if shape == needed => {}
            Some(shape) => {
                let (name, found, needed) = (name.clone(), shape.clone(), needed.clone());
                differences.wrong_shapes.push(WrongShape { name, found, needed });
            }
        }
    }
    differences.left_over = left.into_iter().cloned().collect();
    if differences == TensorDifferences::default() {
        return Ok(());
    }
    Err(HfError::Tensors { path: path.to_owned(), differences })
}

/// What stands before the names of a model that has a head.
fn prefix(family: Family) -> &'static str {
    match family {
        Family::Gpt2 => "transformer.",
        Family::Bert => "bert.",
        Family::Roberta => "roberta.",
        _ => "model.",
    }
}

fn with_prefix(family: Family, name: &str, task: Task) -> String {
    if task == Task::Base { name.to_owned() } else { format!("{}{name}", prefix(family)) }
}

/// Whether a tensor of the model is of its head; a pooler is, since a model for masked tokens has none.
fn is_head(base: &SortedSet<String>, name: &str) -> bool {
    !base.contains(name) || name.contains("pooler.")
}

/// Whether a tensor of the files lies in what all models of the family have.
fn is_in_base(family: Family, name: &str) -> bool {
    let name = name.strip_prefix(prefix(family)).unwrap_or(name);
    let first = match family {
        Family::Gpt2 => ["wte.", "wpe.", "h.", "ln_f."].as_slice(),
        Family::Bert | Family::Roberta => &["embeddings.", "encoder."],
        _ => &["embed_tokens.", "layers.", "norm."],
    };
    first.iter().any(|first| name.starts_with(first))
}

fn is_no_parameter(config: &Config, name: &str) -> bool {
    let tied = match config {
        Config::Decoder(config) => config.tied_embeddings,
        Config::Encoder(_) => true,
    };
    let of_pairs = config.family() == Family::Bert && name.starts_with("cls.seq_relationship.");
    let pooler = config.family().is_encoder() && name.contains("pooler.dense.");
    tied && TIED.contains(&name) || of_pairs || pooler || NO_PARAMETERS.iter().any(|end| name.ends_with(end))
}

/// The names that a tensor may have in files.
fn spellings(family: Family, name: &str) -> impl Iterator<Item = String> + use<> {
    let prefix = prefix(family);
    let other = match name.strip_prefix(prefix) {
        Some(bare) => bare.to_owned(),
        None => format!("{prefix}{name}"),
    };
    [name.to_owned(), other].into_iter().flat_map(|name| {
        let older =
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
        [name, older]
    })
}
