//! The configuration of `brigade train`: model, data, and the settings of every training program.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use brigade::data::{Tokenizer, TokenizerSpec, is_url};
use brigade::models::gpt::GptConfig;
use brigade::models::{CausalLm, LoraConfig, LoraError};
use brigade::{ADAPTERS_CONFIG_FILE, Settings, merge_config};
use brigade_hf::{ConfigFile, Task};
use serde::{Deserialize, Serialize};
use serde_json::Map;

use crate::data::DataSection;
use crate::data::tasks::{TaskModel, TaskName, TaskSection};
use crate::model_files::adapters::Origin;
use crate::model_files::model_folder::model_folder;
use crate::model_files::weights::Weights;

/// The tokenizer of a model or a run, in its folder.
pub const TOKENIZER_FILE: &str = "tokenizer.json";

/// The configuration without `--config`; it names every setting. What does not follow from its model has the default of
/// `brigade::Settings`. A link to `configs/gpt-tiny.toml`: what is published has a copy.
const DEFAULTS: &str = include_str!("gpt-tiny.toml");

/// What differs for a model in a folder: rows as long as the model allows.
const OF_A_FOLDER: [&str; 1] = ["model.sequence_length=0"];

/// What also differs if it is trained already: one pass over the data, which may be short, at a rate that does not undo what it has
/// learned (torchtune's and TRL's). Rows are longer than those of a new model, so there is one in a micro-batch.
const FINE_TUNING: [&str; 4] = [
    "train.epochs=1.0",
    "train.micro_batch_size=1",
    "optimizer.weight_decay=0.01",
    "schedule.warmup_steps=0",
];
const FINE_TUNING_RATE: &str = "optimizer.learning_rate=2e-5";
const LORA_RATE: &str = "optimizer.learning_rate=2e-4";

/// The longest rows of a model in a folder unless others are asked for.
const USUAL_LENGTH: usize = 1024;

/// Everything that decides what a run computes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Config {
    pub model: ModelSection,
    pub task: TaskSection,
    pub lora: LoraConfig,
    pub data: DataSection,
    #[serde(flatten)]
    pub settings: Settings,
}

/// `[model]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelSection {
    /// A model's folder as Hugging Face's libraries write it: `config.json`, weights as safetensors, `tokenizer.json` (`--model`). Of the settings below, only
    /// `sequence_length` then counts. Empty: a new model with the settings below.
    pub path: PathBuf,
    /// Whether training starts from the weights in `path`, or else from new ones for its `config.json`.
    pub pretrained: bool,
    /// Whether a model in `path` whose tokenizer has more ids than embeddings gets the missing embeddings, each the mean of the existing ones. Otherwise it
    /// is refused.
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
    fn origin(&self) -> anyhow::Result<Origin> {
        Origin::read(&self.path).with_context(|| self.given())
    }

    /// What the folder says about the model.
    fn config_file(&self) -> anyhow::Result<ConfigFile> {
        self.origin()?.config_file().with_context(|| self.given())
    }

    /// The folder's tokenizer, or that of the model for which it has adapters.
    fn tokenizer(&self) -> anyhow::Result<PathBuf> {
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
    fn new_config_file(&self) -> anyhow::Result<ConfigFile> {
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
fn usual_length(file: &ConfigFile) -> usize {
    let positions = match &file.config {
        brigade_hf::Config::Decoder(config) => config.max_positions,
        brigade_hf::Config::Encoder(config) => config.max_positions,
    };
    positions.min(USUAL_LENGTH)
}

impl ConfiguredModel {
    /// The files of weights that training starts from, if any.
    pub fn weights(&self) -> anyhow::Result<Weights> {
        let Some(origin) = &self.origin else { return Ok(Weights::default()) };
        let task = self.file.task.unwrap_or(Task::CausalLanguageModel);
        Weights::find(origin, task, self.model.adapters())
            .with_context(|| format!("model.path (--model) {}", origin.base.display()))
    }
}

impl Config {
    /// The values of `configs/gpt-tiny.toml`, overridden by those for a model in a folder if there is one, by files and by `--set`.
    pub fn read(files: &[&Path], sets: &[String]) -> anyhow::Result<Self> {
        Self::read_with(None, None, files, sets)
    }

    /// The same, if flags give the model's folder and the rank of adapters.
    pub fn read_with(
        model: Option<&Path>,
        lora_rank: Option<usize>,
        files: &[&Path],
        sets: &[String],
    ) -> anyhow::Result<Self> {
        let mut defaults: Self = toml::from_str(DEFAULTS).context("configs/gpt-tiny.toml")?;
        let given = merge_config(&defaults, files, sets)?;
        if model.is_some() || !given.model.is_new() {
            let folder = model.unwrap_or(&given.model.path);
            let has_adapters =
                lora_rank.unwrap_or(given.lora.rank) > 0 || folder.join(ADAPTERS_CONFIG_FILE).is_file();
            let mut own = OF_A_FOLDER.to_vec();
            if given.model.pretrained {
                own.extend(FINE_TUNING);
                own.push(if has_adapters { LORA_RATE } else { FINE_TUNING_RATE });
            }
            let own: Vec<String> = own.into_iter().map(str::to_owned).collect();
            defaults = merge_config(&defaults, &[], &own)?;
        }
        let mut config = merge_config(&defaults, files, sets)?;
        if let Some(model) = model {
            config.model.path = model.to_owned();
        }
        if let Some(rank) = lora_rank {
            config.lora.rank = rank;
        }
        Ok(config)
    }

    /// Fills in values that follow from others, so that the configuration means the same wherever it is read again, and checks
    /// model and tokenizer against each other.
    pub fn resolve(&mut self) -> anyhow::Result<()> {
        let sections = self.data.source.iter_mut();
        let of_sections = sections.flat_map(|source| [&mut source.path, &mut source.validation]);
        let paths = self.data.sources.iter_mut().chain(&mut self.data.validation).chain(of_sections);
        for path in paths.filter(|path| !path.is_empty() && !is_url(path)) {
            *path = absolute(Path::new(path))?.to_string_lossy().into_owned();
        }
        self.data.check()?;
        if let TokenizerSpec::File(path) = &mut self.data.tokenizer {
            *path = absolute(path)?;
        }
        if self.data.cache_dir != PathBuf::new() {
            self.data.cache_dir = absolute(&self.data.cache_dir)?;
        }
        if !self.model.is_new() {
            if !self.model.config.is_empty() {
                bail!(
                    "model.config describes a new model, but {} has one; leave one of the two out",
                    self.model.given()
                );
            }
            self.model.path = model_folder(&self.model.path)?;
            let (file, given) = (self.model.config_file()?, self.model.given());
            if self.lora.targets.is_empty() {
                self.lora.targets = LoraConfig::usual_targets(Some(&file.config));
            }
            self.take_adapters(&file)?;
            self.check_has_rank(&no_adapters(&file))?;
            if self.model.shape.sequence_length == 0 {
                self.model.shape.sequence_length = usual_length(&file);
            }
            if self.data.tokenizer == TokenizerSpec::default() {
                self.data.tokenizer = TokenizerSpec::File(self.model.tokenizer()?);
            }
            self.task = self.task.clone().resolved(&file, &self.data, &given, self.model.pretrained)?;
            self.describe()?;
            if !matches!(self.data.tokenizer, TokenizerSpec::File(_)) {
                bail!(
                    "data.tokenizer = {} does not match the model of {given}; leave it out to use the folder's {TOKENIZER_FILE}, or give \
                    the path of a tokenizer.json",
                    self.data.tokenizer
                );
            }
        } else if !self.model.config.is_empty() {
            self.resolve_new()?;
        } else if !matches!(self.task.name, TaskName::Auto | TaskName::CausalLm) {
            bail!("task.name (--task) is for existing models; give one with --model");
        }
        if self.lora.targets.is_empty() {
            self.lora.targets = LoraConfig::usual_targets(None);
        }
        if self.model.is_new() {
            let usual = LoraConfig { targets: self.lora.targets.clone(), ..LoraConfig::default() };
            self.check_has_rank(&usual)?;
        }
        let fraction = self.data.validation_fraction;
        if !(0.0..1.0).contains(&fraction) {
            bail!("data.validation_fraction = {fraction} is not possible: it must be at least 0 and below 1");
        }
        if !(self.model.is_new() && self.model.config.is_empty()) {
            return Ok(());
        }
        let ids = largest_vocabulary(&self.data.tokenizer)?;
        let shape = &mut self.model.shape;
        match shape.vocabulary {
            0 => shape.vocabulary = ids,
            given if given < ids => bail!(
                "data.tokenizer = {} has {ids} ids, more than model.vocabulary = {given} holds; set \
                 model.vocabulary to at least {ids}, or to 0 for the tokenizer's own size",
                self.data.tokenizer
            ),
            _ => {}
        }
        Ok(shape.check()?)
    }
}

impl Config {
    /// Gives a new model of `model.config` what follows from the tokenizer.
    fn resolve_new(&mut self) -> anyhow::Result<()> {
        if !matches!(self.task.name, TaskName::Auto | TaskName::CausalLm | TaskName::MaskedLm) {
            bail!("task.name (--task) with labels is for existing models; give one with --model");
        }
        let ids = largest_vocabulary(&self.data.tokenizer)?;
        let fields = &mut self.model.config;
        let given = fields.entry("vocab_size").or_insert(toml::Value::Integer(ids as i64));
        if given.as_integer().is_some_and(|given| given < ids as i64) {
            bail!(
                "data.tokenizer = {} has {ids} ids, more than model.config.vocab_size = {given} holds; set it to at \
                 least {ids}, or leave it out for the tokenizer's own size",
                self.data.tokenizer
            );
        }
        let file = self.model.new_config_file()?;
        self.lora.targets = match self.lora.targets.is_empty() {
            true => LoraConfig::usual_targets(Some(&file.config)),
            false => std::mem::take(&mut self.lora.targets),
        };
        self.task = self.task.clone().resolved(&file, &self.data, "model.config", false)?;
        self.describe().map(drop)
    }

    /// The model with its task and its adapters.
    pub fn describe(&self) -> anyhow::Result<ConfiguredModel> {
        let Self { model: section, lora, .. } = self;
        let is_new = section.is_new();
        if lora.rank > 0 && (is_new || !section.pretrained) {
            let allowed = "adapters need a trained model; give one with --model";
            return Err(LoraError::new("rank (--lora-rank)", lora.rank, allowed).into());
        }
        if is_new && section.config.is_empty() {
            section.shape.check()?;
            let model = CausalLm::from(section.shape.clone());
            let file = model.config_file()?;
            return Ok(ConfiguredModel { file, model: TaskModel::CausalLm(model), origin: None });
        }
        if is_new {
            let mut file = section.new_config_file()?;
            let model = self.task.model(&mut file, section.shape.sequence_length, lora, &self.data.tokenizer);
            return Ok(ConfiguredModel { model: model.context("model.config")?, file, origin: None });
        }
        let origin = section.origin()?;
        let mut file = section.config_file()?;
        // As training writes them.
        file.dtype = Some("float32".into());
        let model = self.task.model(&mut file, section.shape.sequence_length, lora, &self.data.tokenizer);
        let model = model.with_context(|| section.given())?;
        Ok(ConfiguredModel { model, file, origin: section.pretrained.then_some(origin) })
    }

    /// Continues training the adapters in the model's folder, if it has any.
    fn take_adapters(&mut self, file: &ConfigFile) -> anyhow::Result<()> {
        let Some(saved) = self.model.origin()?.adapters else { return Ok(()) };
        if self.lora.rank == 0 {
            // What is not given is as it was.
            let (given, none) = (&self.lora, no_adapters(file));
            self.lora = LoraConfig {
                rank: saved.lora.rank,
                alpha: if given.alpha == none.alpha { saved.lora.alpha } else { given.alpha },
                dropout: if given.dropout == none.dropout { saved.lora.dropout } else { given.dropout },
                targets: if given.targets == none.targets {
                    saved.lora.targets.clone()
                } else {
                    given.targets.clone()
                },
                rslora: given.rslora || saved.lora.rslora,
            };
        }
        let (given, saved) = (&self.lora, LoraConfig { dropout: self.lora.dropout, ..saved.lora });
        if *given == saved {
            return Ok(());
        }
        bail!(
            "[lora] with {} is not possible: the adapters in {} have {}; leave it out to continue training \
            them",
            in_words(given),
            self.model.path.display(),
            in_words(&saved)
        )
    }

    /// Refuses settings of adapters without a rank, which would train the model itself instead.
    fn check_has_rank(&self, usual: &LoraConfig) -> anyhow::Result<()> {
        if self.lora.rank > 0 || self.lora == *usual {
            return Ok(());
        }
        bail!(
            "[lora] with {} is not possible without a rank: the whole model would be trained; give --lora-rank (lora.rank), or leave the rest of [lora] out",
            in_words(&self.lora)
        )
    }

    /// The folder with what stands beside the tokenizer: that of the model or, for a new one, of the tokenizer; empty if it has none.
    pub fn files_from(&self) -> PathBuf {
        match &self.data.tokenizer {
            TokenizerSpec::File(path) => path.parent().map(Path::to_owned).unwrap_or_default(),
            _ => self.model.path.clone(),
        }
    }

    /// The most ids that the tokenizer can have.
    pub fn largest_token_count(&self) -> anyhow::Result<usize> {
        largest_vocabulary(&self.data.tokenizer)
    }
}

/// `[lora]` where none of it is given.
fn no_adapters(file: &ConfigFile) -> LoraConfig {
    LoraConfig { targets: LoraConfig::usual_targets(Some(&file.config)), ..LoraConfig::default() }
}

fn in_words(LoraConfig { rank, alpha, targets, rslora, .. }: &LoraConfig) -> String {
    format!("rank = {rank}, alpha = {alpha}, targets = {targets:?}, rslora = {rslora}")
}

/// The most ids that the tokenizer can have. It is known without reading any text, so that the model's shape does not depend
/// on the corpus.
fn largest_vocabulary(tokenizer: &TokenizerSpec) -> anyhow::Result<usize> {
    Ok(match tokenizer {
        TokenizerSpec::Bytes => Tokenizer::bytes()?.vocabulary_size(),
        TokenizerSpec::Bpe(most) => *most,
        TokenizerSpec::File(path) => Tokenizer::from_file(path)?.vocabulary_size(),
    })
}

fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("the path {path:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(table: &toml::Table, prefix: &str) -> Vec<String> {
        let inner = |(key, value): (&String, &toml::Value)| match value {
            toml::Value::Table(table) => keys(table, &format!("{prefix}{key}.")),
            _ => vec![format!("{prefix}{key}")],
        };
        table.iter().flat_map(inner).collect()
    }

    #[test]
    fn the_default_file_names_every_setting() {
        let written: toml::Table = DEFAULTS.parse().unwrap();
        let known = toml::Table::try_from(Config::read(&[], &[]).unwrap()).unwrap();
        let (mut written, mut known) = (keys(&written, ""), keys(&known, ""));
        written.sort();
        known.sort();
        assert_eq!(written, known);
    }

    #[test]
    fn the_default_file_has_the_defaults_of_the_library_in_all_that_does_not_follow_from_its_model() {
        let text = |config: &Settings| {
            let table = toml::Table::try_from(config).unwrap();
            keys(&table, "").into_iter().map(move |key| {
                let (section, name) = key.split_once('.').unwrap();
                let value = table[section][name].to_string();
                (key, value)
            })
        };
        let (file, library) = (Config::read(&[], &[]).unwrap().settings, Settings::default());
        let differs: Vec<String> = text(&file)
            .zip(text(&library))
            .filter(|(file, library)| file != library)
            .map(|((key, _), _)| key)
            .collect();
        let of_the_model = [
            "train.steps",
            "train.micro_batch_size",
            "train.global_batch_size",
            "train.validate_every",
            "train.validation_samples",
            "optimizer.learning_rate",
            "schedule.warmup_steps",
        ];
        assert_eq!(differs, of_the_model);
    }

    #[test]
    fn a_trained_model_has_the_defaults_of_fine_tuning() {
        let of = |model: Option<&str>, rank, sets: &[&str]| {
            let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
            let config = Config::read_with(model.map(Path::new), rank, &[], &sets).unwrap();
            let (train, schedule) = (&config.settings.train, &config.settings.schedule);
            let length = (train.steps, train.epochs, config.model.shape.sequence_length);
            (length, config.settings.optimizer.learning_rate, schedule.warmup_steps, config.lora.rank)
        };
        assert_eq!(of(None, None, &[]), ((400, 0.0, 128), 2e-3, 40, 0));
        assert_eq!(of(Some("a"), None, &[]), ((0, 1.0, 0), 2e-5, 0, 0));
        assert_eq!(of(None, None, &["model.path=a"]), ((0, 1.0, 0), 2e-5, 0, 0));
        assert_eq!(of(Some("a"), Some(8), &[]), ((0, 1.0, 0), 2e-4, 0, 8));
        assert_eq!(of(Some("a"), None, &["lora.rank=8"]), ((0, 1.0, 0), 2e-4, 0, 8));
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(ADAPTERS_CONFIG_FILE), "{}").unwrap();
        assert_eq!(of(folder.path().to_str(), None, &[]).1, 2e-4);
        assert_eq!(of(Some("a"), None, &["model.pretrained=false"]), ((400, 0.0, 0), 2e-3, 40, 0));
        let own = ["train.steps=7", "optimizer.learning_rate=1e-3", "model.sequence_length=64"];
        assert_eq!(of(Some("a"), None, &own), ((7, 0.0, 64), 1e-3, 0, 0));
    }

    #[test]
    fn every_file_in_configs_can_be_resolved() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
        let mut names = Vec::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let mut config = Config::read(&[&path], &[]).unwrap();
            config.resolve().unwrap();
            config.settings.plan(2, config.model.shape.sequence_length).unwrap();
            names.push(path.file_stem().unwrap().to_string_lossy().into_owned());
        }
        names.sort();
        assert_eq!(names, ["gpt-13m", "gpt-tiny", "gpt2-124m", "llama-tiny"]);
    }

    #[test]
    fn a_resolved_configuration_comes_back_the_same() {
        let sets = [
            "data.source=[{path='a.txt'}, {path='b', weight=2, columns={text='body'}}]".to_owned(),
            "data.columns.text=content".to_owned(),
            "optimizer.weight_decay=0.3".to_owned(),
        ];
        let mut config = Config::read(&[], &sets).unwrap();
        config.resolve().unwrap();
        assert!(Path::new(&config.data.source[0].path).is_absolute());
        assert_eq!((config.data.source[1].weight, config.data.columns["text"].as_str()), (2.0, "content"));
        assert_eq!(config.model.shape.vocabulary, 4096);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), brigade::config_to_toml(&config).unwrap()).unwrap();
        let mut again = Config::read(&[file.path()], &[]).unwrap();
        again.resolve().unwrap();
        assert_eq!(again, config);
    }

    #[test]
    fn mistakes_are_named() {
        let message = |set: &str| {
            let config = Config::read(&[], &[set.to_owned()]);
            config.and_then(|mut config| config.resolve()).unwrap_err().to_string()
        };
        for (set, said) in [
            (
                "model.width=30",
                "model.heads = 4 is not possible: the number of heads must divide model.width = 30",
            ),
            ("model.vocabulary=1000", "bpe:4096 has 4096 ids, more than model.vocabulary = 1000"),
            ("model.layer=2", "did you mean `model.layers`?"),
            ("data.tokenizer=gpt2", "\"bytes\", \"bpe:4096\" or the path of a tokenizer.json"),
            ("data.tokenizer=none/tokenizer.json", "none/tokenizer.json: it cannot be read"),
            ("data.validation_fraction=1", "data.validation_fraction = 1 is not possible"),
            ("model.name=llama", "`model.name`: unknown variant `llama`, expected `gpt2`"),
            ("train.seed=-1", "`train.seed`: a whole number of 0 or more is needed, not -1"),
            ("model.config.model_type=mamba", "mamba"),
            ("model.config={model_type='llama', hidden=64}", "hidden"),
            ("model.config={model_type='llama', vocab_size=64}", "more than model.config.vocab_size = 64"),
            (
                "data.source=[{path='a', weight=0}]",
                "a: weight = 0 is not possible: it must be a number above 0",
            ),
            ("data.source=[{path='a', weight=-1.5}]", "weight = -1.5 is not possible"),
            ("data.source=[{weight=1}]", "missing field `path`"),
            ("data.source=[{path='a', share=1}]", "unknown field `share`"),
            ("data.validation=['a']", "data.sources (--data) has none to train on"),
            ("data.columns=['a']", "`data.columns` is a section"),
            ("output.overwrite=true", "there is no setting `output.overwrite`"),
        ] {
            assert!(message(set).contains(said), "{set}: {}", message(set));
        }
    }
}
