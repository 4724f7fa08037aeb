//! `[model]` of the configuration, and the model that it stands for.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use brigade::models::gpt::GptConfig;
use brigade_hf::{ConfigFile, Task};
use serde::{Deserialize, Serialize};
use serde_json::Map;

use crate::data::tasks::TaskModel;
use crate::model_files::adapters::Origin;
use crate::model_files::model_folder::{FindFolder, folder_without_weights, model_folder};
use crate::model_files::weights::Weights;

/// The tokenizer of a model or a run, in its folder.
pub const TOKENIZER_FILE: &str = "tokenizer.json";

/// The template of chats.
pub const TEMPLATE_FILE: &str = "chat_template.jinja";

/// The longest rows of a model in a folder unless others are asked for.
const USUAL_LENGTH: usize = 1024;

/// `[model]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelSection {
    /// A model's folder as Hugging Face's libraries write it: `config.json`, weights as safetensors, `tokenizer.json` (`--model`). Of the settings below, only
    /// `sequence_length` then counts. Empty: a new model with the settings below.
    pub path: PathBuf,
    /// Whether training starts from the weights in `path`, or else from new ones for its `config.json`.
    pub pretrained: bool,
    /// Whether a model in `path` whose tokenizer has more ids than embeddings gets the missing embeddings, each the mean of the existing ones. Otherwise it
    /// is refused, except where its own tokenizer only has added tokens without embeddings, which no text may then have.
    pub resize_embeddings: bool,
    /// A new model of any family: the fields of its `config.json`, as Hugging Face's libraries name them, `model_type` among them. Fields that are absent have the family's
    /// defaults, except `vocab_size`, which is then the size of the tokenizer, and the ids of special tokens, which are then its own. Of the settings below, only
    /// `sequence_length` then counts. Empty: the model of the settings below.
    pub config: toml::Table,
    /// The kind of model: `gpt2`.
    pub name: ModelKind,
    /// Until the configuration is resolved, its `vocabulary` may be 0, which stands for the size of the tokenizer, and for a model in a folder its
    /// `sequence_length`, which stands for as many tokens as the model has positions for, but at most 1,024.
    #[serde(flatten)]
    pub shape: GptConfig,
    /// Whether the weights in `path` need not be there, nor any data, as in a dry run: a model on the hub is then taken without weights. It is no setting.
    #[serde(skip)]
    pub(crate) without_weights: bool,
}

/// The kinds of model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelKind {
    Gpt2,
}

/// A model, and what its folder says about it.
pub struct ConfiguredModel {
    pub model: TaskModel,
    /// What `config.json` is written from.
    pub file: ConfigFile,
    /// Where its weights are, if training starts from any.
    pub origin: Option<Origin>,
}

impl ModelSection {
    /// The folder that is given, and the one with the model if adapters are in it.
    pub fn origin(&self) -> anyhow::Result<Origin> {
        Origin::read_with(&self.path, self.find()).with_context(|| self.given())
    }

    /// What finds the folder of a model.
    pub(crate) fn find(&self) -> FindFolder {
        if self.without_weights { folder_without_weights } else { model_folder }
    }

    /// What the folder says about the model.
    pub fn config_file(&self) -> anyhow::Result<ConfigFile> {
        self.origin()?.config_file().with_context(|| self.given())
    }

    /// The folder's tokenizer, or that of the model for which it has adapters.
    pub fn tokenizer(&self) -> anyhow::Result<PathBuf> {
        let own = self.path.join(TOKENIZER_FILE);
        Ok(if own.is_file() { own } else { self.origin()?.base.join(TOKENIZER_FILE) })
    }

    /// Refuses to write results over the model that they come from.
    pub fn check_out(&self, out: &Path) -> anyhow::Result<()> {
        let Ok(out) = out.canonicalize() else { return Ok(()) };
        if self.is_new() {
            return Ok(());
        }
        let Origin { base, .. } = self.origin()?;
        if [&self.path, &base]
            .into_iter()
            .any(|folder| folder.canonicalize().is_ok_and(|folder| folder == out))
        {
            bail!(
                "output.dir (--out) {} has the model of {}; give another folder for the results",
                out.display(),
                self.given()
            );
        }
        Ok(())
    }

    /// What `config` says about a new model.
    pub fn new_config_file(&self) -> anyhow::Result<ConfigFile> {
        let fields = serde_json::to_value(&self.config).context("[model.config]")?;
        let config =
            brigade_hf::Config::from_fields("[model.config]", fields.as_object().unwrap_or(&Map::new()))?;
        let task = config.family().language_model();
        Ok(ConfigFile::new(config, task))
    }

    /// Whether a new model's special tokens are those of the tokenizer.
    pub fn takes_special_tokens(&self) -> bool {
        let given = |name: &str| self.config.contains_key(name);
        self.is_new() && !["bos_token_id", "eos_token_id", "pad_token_id"].into_iter().any(given)
    }

    /// Tokens of a row, also before the configuration is resolved: the most that is usual where the model is not in the folder itself.
    pub fn row_length(&self) -> usize {
        match self.shape.sequence_length {
            0 if !self.is_new() => {
                ConfigFile::read(&self.path).map_or(USUAL_LENGTH, |file| usual_length(&file))
            }
            length => length,
        }
    }

    /// Whether it has no folder to begin from.
    pub fn is_new(&self) -> bool {
        self.path == PathBuf::new()
    }

    /// The setting and its value, for messages.
    pub fn given(&self) -> String {
        format!("model.path (--model) {}", self.path.display())
    }
}

/// Tokens of a row, unless a number is given.
pub fn usual_length(file: &ConfigFile) -> usize {
    let positions = match &file.config {
        brigade_hf::Config::Decoder(config) => config.max_positions,
        brigade_hf::Config::Encoder(config) => config.max_positions,
    };
    positions.min(USUAL_LENGTH)
}

impl ConfiguredModel {
    /// The files of weights that training starts from, if any, as [`Weights::find`] finds them.
    pub fn weights(&self, compares_copies: bool) -> anyhow::Result<Weights> {
        let Some(origin) = &self.origin else { return Ok(Weights::default()) };
        let task = self.file.task.unwrap_or(Task::CausalLanguageModel);
        Weights::find(origin, task, self.model.adapters(), compares_copies)
            .with_context(|| format!("model.path (--model) {}", origin.base.display()))
    }
}
