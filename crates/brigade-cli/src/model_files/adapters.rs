//! Adapters in folders, as `peft` writes them beside no model or, as runs do here, beside a configuration and a tokenizer.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use brigade::models::{Adapters, LoraConfig, in_adapters, stored_tensors};
use brigade::{ADAPTERS_CONFIG_FILE, ADAPTERS_FILE, ADAPTERS_LABELS_FILE};
use brigade_hf::config::Labels;
use brigade_hf::weights::adapters_file;
use brigade_hf::{ConfigFile, HfError, Task};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::model_files::model_folder::{FindFolder, hub_hint, model_folder, of_old_name};

/// Modules that may be trained whole beside adapters: the head of a classifier.
const HEAD_MODULES: [&str; 3] = ["classifier", "pooler", "score"];

/// What has a row for each label in a head.
const LABEL_ROWS: [&str; 3] = ["score.weight", "classifier.weight", "classifier.out_proj.weight"];

/// Fields that change nothing of what trained adapters compute, or have their meaning here.
const HARMLESS: [&str; 12] = [
    "arrow_config",
    "auto_mapping",
    "corda_config",
    "eva_config",
    "fan_in_fan_out",
    "inference_mode",
    "loftq_config",
    "lora_ga_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "task_type",
];

/// Fields that choose among the modules that `target_modules` names: the file of the adapters has those that were chosen.
const CHOOSING: [&str; 3] = ["exclude_modules", "layers_pattern", "layers_to_transform"];

/// How adapters may have begun, besides in the usual way. Other ways take what adapters begin with from the base's weights, so that these
/// adapters belong to other weights than those of the base.
const BEGINNINGS: [&str; 3] = ["gaussian", "eva", "orthogonal"];

/// What the folder of a model is made of.
pub struct Origin {
    /// The folder with the model's configuration and weights.
    pub base: PathBuf,
    pub adapters: Option<SavedAdapters>,
}

/// Adapters in a folder.
pub struct SavedAdapters {
    pub lora: LoraConfig,
    /// Their file.
    pub file: PathBuf,
    /// Whether they say that they tell labels.
    are_for_labels: bool,
    /// The model that they belong to, as they name it: a folder, or a model on the hub.
    base: Base,
}

/// The model that adapters belong to.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Base {
    #[serde(rename = "base_model_name_or_path")]
    name: String,
    revision: Option<String>,
}

/// What `adapter_config.json` says of the adapters.
#[derive(Deserialize)]
struct Fields {
    peft_type: String,
    #[serde(flatten)]
    base: Base,
    r: usize,
    lora_alpha: f64,
    #[serde(default)]
    lora_dropout: f64,
    target_modules: Value,
    #[serde(default)]
    use_rslora: bool,
    #[serde(default = "none")]
    bias: String,
    #[serde(flatten)]
    others: Map<String, Value>,
}

fn none() -> String {
    "none".into()
}

impl Origin {
    /// Of the folder of a model, or of one that has adapters for another.
    pub fn read(folder: &Path) -> anyhow::Result<Self> {
        Self::read_with(folder, model_folder)
    }

    /// The same; `find` finds the other model.
    pub fn read_with(folder: &Path, find: FindFolder) -> anyhow::Result<Self> {
        let Some(adapters) = SavedAdapters::read(folder)? else {
            return Ok(Self { base: folder.to_owned(), adapters: None });
        };
        let Base { name, revision } = &adapters.base;
        let name = match revision {
            Some(revision) if !Path::new(name).exists() => format!("{name}@{revision}"),
            _ => name.clone(),
        };
        let name = of_old_name(&name).unwrap_or(name);
        let of = || format!("{}: the model that its adapters belong to", folder.display());
        let base = find(Path::new(&name)).with_context(of)?;
        if !base.join("config.json").is_file() {
            let hint = if base.exists() { String::new() } else { hub_hint(Path::new(&name)) };
            bail!("{}, {name}, is missing: it has no config.json{hint}", of());
        }
        Ok(Self { base, adapters: Some(adapters) })
    }
}

impl Origin {
    /// What is known of the model: what its folder says, and the labels and the `generation_config.json` beside adapters (without labels, their number is that of the head's rows); adapters of an encoder without labels are for masked tokens.
    pub fn config_file(&self) -> anyhow::Result<ConfigFile> {
        if !self.base.join("config.json").is_file() {
            if !self.base.exists() {
                bail!("there is no such folder{}", hub_hint(&self.base));
            }
            bail!("it has no config.json; is it the folder of a finished run or of a model?");
        }
        let mut file = ConfigFile::read(&self.base)?;
        let Some(adapters) = &self.adapters else { return Ok(file) };
        if let Some(folder) = adapters.file.parent() {
            file = file.with_labels_of(&folder.join(ADAPTERS_LABELS_FILE))?.with_generation_of(folder)?;
        }
        let says_labels = |folder: &Path| folder.join(ADAPTERS_LABELS_FILE).is_file();
        if adapters.are_for_labels
            && !adapters.file.parent().is_some_and(says_labels)
            && let Some(count) = adapters.label_count()?
        {
            // As `peft` writes them.
            file.task = Some(Task::SequenceClassification);
            if file.config.labels().names.len() != count {
                *file.config.labels_mut() = Labels::numbered(count);
            }
        }
        let is_classifier = adapters.are_for_labels || file.task == Some(Task::SequenceClassification);
        if file.config.family().is_encoder() && !is_classifier {
            // What the model was for does not matter, such as sentences or pretraining.
            file.task = Some(Task::MaskedLanguageModel);
        }
        Ok(file)
    }
}

impl SavedAdapters {
    /// Of a folder, if it has any.
    pub fn read(folder: &Path) -> anyhow::Result<Option<Self>> {
        let path = folder.join(ADAPTERS_CONFIG_FILE);
        let text = match std::fs::read(&path) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            text => text,
        };
        let given = || path.display().to_string();
        let fields: Fields = serde_json::from_slice(&text.with_context(given)?).with_context(given)?;
        fields.check().with_context(given)?;
        let file = folder.join(ADAPTERS_FILE);
        let chooses = CHOOSING.iter().filter_map(|name| fields.others.get(*name)).any(|value| !is_off(value));
        let targets = match &fields.target_modules {
            _ if chooses => adapted_modules(folder)?,
            Value::String(all) if all == "all-linear" => vec!["*".to_owned()],
            Value::Array(names) => {
                let names = names.iter().map(|name| name.as_str().map(str::to_owned));
                names.collect::<Option<_>>().with_context(|| format!("{}: `target_modules`", given()))?
            }
            // A regular expression of Python.
            Value::String(_) => adapted_modules(folder)?,
            other => bail!("{}: `target_modules` = {other} is neither a text nor a list of names", given()),
        };
        let are_for_labels = fields.others.get("task_type").is_some_and(|name| name == "SEQ_CLS");
        let Fields { base, r: rank, lora_alpha: alpha, lora_dropout: dropout, use_rslora: rslora, .. } =
            fields;
        let lora = LoraConfig { rank, alpha, dropout, targets, rslora };
        Ok(Some(Self { lora, file, are_for_labels, base }))
    }
}

impl SavedAdapters {
    /// How many labels the head in their file has, if there is one.
    fn label_count(&self) -> anyhow::Result<Option<usize>> {
        if !self.file.is_file() {
            return Ok(None);
        }
        let tensors = stored_tensors(&[&self.file])?;
        let rows = LABEL_ROWS.into_iter().find_map(|name| tensors.get(&in_adapters(name)));
        Ok(rows.and_then(|rows| rows.shape.first().copied()))
    }

    /// Their file in a folder.
    ///
    /// # Errors
    /// If it is not there; the message says what makes it.
    pub fn file_in(folder: &Path) -> anyhow::Result<PathBuf> {
        adapters_file(folder).map_err(|error| match error {
            HfError::NoAdapters { command: None, .. } => anyhow!(
                "{error}; a run writes it when it ends, and brigade checkpoint consolidate makes it from a checkpoint"
            ),
            error => error.into(),
        })
    }
}

/// The modules that the adapters in a folder belong to.
fn adapted_modules(folder: &Path) -> anyhow::Result<Vec<String>> {
    let tensors = stored_tensors(&[&SavedAdapters::file_in(folder)?])?;
    let module = |name: &String| {
        let name = name.strip_suffix(".lora_A.weight")?;
        Some(name.strip_prefix("base_model.model.").unwrap_or(name).to_owned())
    };
    Ok(tensors.keys().filter_map(module).collect())
}

/// Whether a field asks for nothing.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

impl Fields {
    /// Refuses what is not computed here.
    fn check(&self) -> anyhow::Result<()> {
        if self.peft_type != "LORA" || self.bias != "none" {
            bail!(
                "adapters of `peft_type` {} with `bias` {} are not supported; LORA with none is",
                self.peft_type,
                self.bias
            );
        }
        let is_head = |value: &Value| {
            let names = value.as_array().into_iter().flatten();
            names.into_iter().all(|name| name.as_str().is_some_and(|name| HEAD_MODULES.contains(&name)))
        };
        let is_known = |name: &str, value: &Value| match name {
            "modules_to_save" => value.is_array() && is_head(value),
            "init_lora_weights" => {
                value.is_boolean() || value.as_str().is_some_and(|name| BEGINNINGS.contains(&name))
            }
            _ => false,
        };
        let on = self.others.iter().find(|(name, value)| {
            let is_harmless = HARMLESS.iter().chain(&CHOOSING).any(|harmless| harmless == name);
            !is_harmless && !is_off(value) && !is_known(name, value)
        });
        match on {
            Some((name, value)) => bail!("`{name}` = {value} is not supported"),
            None => Ok(()),
        }
    }
}

/// `adapter_config.json` of adapters for the model in a folder, trained for a task.
pub fn adapters_config(adapters: &Adapters, origin: &Origin, task: Task) -> anyhow::Result<Vec<u8>> {
    let LoraConfig { rank, alpha, dropout, targets, rslora } = adapters.config();
    let base = match &origin.adapters {
        Some(saved) => saved.base.clone(),
        None => base_of(&origin.base),
    };
    // `peft` reads a text as a regular expression, and names in a list as last parts of names, also of those in a head (`dense`).
    let is_pattern = |target: &String| target.contains(['*', '?', '[']) || target.ends_with("dense");
    let modules: Vec<&str> = match targets.iter().any(is_pattern) {
        true => adapters.layers().collect(),
        false => targets.iter().map(String::as_str).collect(),
    };
    let alpha = if alpha.fract() == 0.0 { json!(*alpha as i64) } else { json!(alpha) };
    let fields = json!({
        "peft_type": "LORA",
        "task_type": match task {
            Task::CausalLanguageModel => Some("CAUSAL_LM"),
            Task::SequenceClassification => Some("SEQ_CLS"),
            Task::MaskedLanguageModel | Task::Base => None,
        },
        "base_model_name_or_path": base.name,
        "revision": base.revision,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": dropout,
        "target_modules": modules,
        "modules_to_save": Some(adapters.head_modules()).filter(|modules| !modules.is_empty()),
        "use_rslora": rslora,
        "bias": "none",
        "fan_in_fan_out": adapters.inputs_first(),
        "inference_mode": true,
        "init_lora_weights": true,
    });
    serde_json::to_vec_pretty(&fields).context("cannot write JSON")
}

/// A folder, or the model on the hub of which it is a revision in the cache (`models--organization--name/snapshots/commit`).
fn base_of(folder: &Path) -> Base {
    let name = |folder: &Path| folder.file_name().map(|name| name.to_string_lossy().into_owned());
    let cached = || {
        let snapshots = folder.parent().filter(|parent| parent.ends_with("snapshots"))?;
        let model = name(snapshots.parent()?)?.strip_prefix("models--")?.replace("--", "/");
        Some(Base { name: model, revision: Some(name(folder)?) })
    };
    cached().unwrap_or_else(|| Base { name: folder.to_string_lossy().into_owned(), revision: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_in_the_cache_is_a_model_on_the_hub() {
        let cached = base_of(Path::new("/cache/hub/models--some--Model-1B/snapshots/abc"));
        assert_eq!(cached, Base { name: "some/Model-1B".into(), revision: Some("abc".into()) });
        let folder = base_of(Path::new("/models/some--Model"));
        assert_eq!(folder, Base { name: "/models/some--Model".into(), revision: None });
    }
}
