//! The files of weights that training begins from, compared with their model before a run begins.

use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use brigade::models::{
    Adapters, LoraError, StoredTensor, WeightsMapping, in_adapters, same_values, stored_tensors,
};
use brigade::report::METRICS_FILE;
use brigade_hf::weights::{MatchedTensors, compare_tensors, match_tensors, weights_file};
use brigade_hf::{Config, ConfigFile, Task};
use brigade_sorted::SortedMap;

use crate::model_files::adapters::{Origin, SavedAdapters};

/// How many tensors a message names at most.
const MAX_NAMES: usize = 10;

/// Files of weights that have what a model needs.
#[derive(Debug, Default)]
pub struct Weights {
    /// The model's file, or the index of several, and that of adapters if there is one.
    pub files: Vec<PathBuf>,
    /// The names of its tensors there, by those that `transformers` gives them today.
    names: SortedMap<String, String>,
}

impl Weights {
    /// Finds the files in the folders of a model and its adapters, and compares names, shapes and types of all tensors. No values are read but,
    /// if `compares_copies`, those of copies in a head that is tied.
    ///
    /// # Errors
    /// If there are none, one of them is not whole, or they are not of this model.
    pub fn find(
        origin: &Origin,
        task: Task,
        adapters: &Adapters,
        compares_copies: bool,
    ) -> anyhow::Result<Self> {
        let ConfigFile { config, task: trained_for, .. } = ConfigFile::read(&origin.base)?;
        let instead = match origin.base.join(METRICS_FILE).exists() {
            true => {
                "a run writes them when it ends; brigade checkpoint consolidate makes them from a checkpoint"
            }
            false => "model.pretrained = false starts without them",
        };
        let file =
            weights_file(&origin.base, &config, Some(task)).map_err(|error| anyhow!("{error}; {instead}"))?;
        let found = stored_tensors(&[&file])?;
        // A head of the language model is no new one that only fine-tuning makes good.
        let trained_for = if task == Task::CausalLanguageModel { Some(task) } else { trained_for };
        let matched = match_tensors(&file, &config, task, trained_for, &shapes(&found))?;
        if task == Task::MaskedLanguageModel && !adapters.is_empty() && !matched.fresh.is_empty() {
            return Err(without_head(&file, adapters, &matched.fresh).into());
        }
        if compares_copies && matches!(task, Task::CausalLanguageModel | Task::MaskedLanguageModel) {
            check_copies(&file, &config, &matched)?;
        }
        let mut names = matched.names;
        check_types(&file, &found, names.values())?;
        let mut files = vec![file];
        if let Some(saved) = &origin.adapters {
            SavedAdapters::file_in(saved.file.parent().unwrap_or(Path::new("")))?;
            let found = stored_tensors(&[&saved.file])?;
            let head = adapters.head_tensors().filter(|(name, _)| found.contains_key(name));
            let head: Vec<_> = head.collect();
            if !head.is_empty() {
                check_head(&saved.file, &found, &files, &matched.fresh)?;
            }
            let needed: Vec<_> = adapters.tensors().into_iter().chain(head).collect();
            compare_tensors(&saved.file, &needed, &shapes(&found))?;
            check_types(&saved.file, &found, found.keys())?;
            files.push(saved.file.clone());
        }
        // What is not beside adapters is where the model has it.
        names.extend(names.clone().into_iter().map(|(name, there)| (in_adapters(&name), there)));
        Ok(Self { files, names })
    }

    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Whether one of the files has adapters.
    pub fn have_adapters(&self) -> bool {
        self.files.len() > 1
    }

    /// A model's mapping, with the names that tensors have in these files.
    pub fn mapping(&self, mapping: WeightsMapping) -> WeightsMapping {
        let mapping = mapping.with_names(self.names.clone());
        if self.have_adapters() {
            return mapping;
        }
        let layers = ["layers.*.*.lora.*", "layers.*.*.*.lora.*", "h.*.*.*.lora.*"];
        layers.into_iter().fold(mapping, WeightsMapping::optional)
    }
}

/// Refuses adapters with a part of a head, if neither they nor the model have the rest.
fn check_head(
    file: &Path,
    found: &SortedMap<String, StoredTensor>,
    of_model: &[PathBuf],
    fresh: &[String],
) -> anyhow::Result<()> {
    let missing = fresh.iter().filter(|name| !found.contains_key(&in_adapters(name)));
    let missing: Vec<_> = missing.map(|name| format!("`{name}`")).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let of_model: Vec<_> = of_model.iter().map(|file| file.display().to_string()).collect();
    bail!(
        "{}: it has a part of a classifier's head, but neither it nor {} has {}; train the adapters with the whole head in `modules_to_save`, \
        or begin with the model that they belong to, which gets a new head",
        file.display(),
        of_model.join(", "),
        missing.join(", ")
    )
}

/// Adapters of a language model leave its head as it is, and a new one predicts nothing.
fn without_head(file: &Path, adapters: &Adapters, missing: &[String]) -> LoraError {
    let missing: Vec<_> = missing.iter().map(|name| format!("`{name}`")).collect();
    let allowed = format!(
        "{} has no head that predicts masked tokens ({}), and adapters do not train one; train the whole model first (lora.rank = 0), or begin \
         with a model that has this head",
        file.display(),
        missing.join(", ")
    );
    LoraError::new("rank (--lora-rank)", adapters.config().rank, allowed)
}

fn shapes(found: &SortedMap<String, StoredTensor>) -> SortedMap<String, Vec<usize>> {
    found.iter().map(|(name, tensor)| (name.clone(), tensor.shape.clone())).collect()
}

/// Refuses copies in a head that is tied, if they have other values than what they are tied to: they would be lost.
fn check_copies(file: &Path, config: &Config, matched: &MatchedTensors) -> anyhow::Result<()> {
    for copy in &matched.unused {
        let Some(original) = matched.tied_to(copy) else { continue };
        if same_values(&[file], copy, original)? {
            continue;
        }
        let instead = match config {
            Config::Decoder(_) => "`tie_word_embeddings` = false in config.json keeps both",
            Config::Encoder(_) => "a head with values of its own is not possible for an encoder",
        };
        bail!(
            "{}: `{copy}` is tied to `{original}` (`tie_word_embeddings` in config.json is true, or is not given and true by default), but \
            their values differ; {instead}",
            file.display()
        );
    }
    Ok(())
}

/// Refuses numbers of types that are not read, such as quantized ones.
fn check_types<'n>(
    file: &Path,
    found: &SortedMap<String, StoredTensor>,
    names: impl Iterator<Item = &'n String>,
) -> anyhow::Result<()> {
    let types = names.filter_map(|name| Some((name, found.get(name)?)));
    let other: Vec<_> = types
        .filter(|(_, tensor)| !tensor.is_readable)
        .map(|(name, tensor)| format!("`{name}` is {}", tensor.type_name))
        .collect();
    if other.is_empty() {
        return Ok(());
    }
    let more = match other.len().saturating_sub(MAX_NAMES) {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    let shown = other[..other.len().min(MAX_NAMES)].join(", ");
    bail!("{}: {shown}{more}; weights must be F32, F16 or BF16", file.display())
}
