//! The configuration of `brigade train`: model, data, and the settings of every training program.

use std::path::{Path, PathBuf};

use anyhow::Context;
use brigade::data::TokenizerSpec;
use brigade::models::LoraConfig;
use brigade::{Settings, merge_config};
use serde::{Deserialize, Serialize};

use crate::data::DataSection;
use crate::data::tasks::TaskSection;
use crate::model_files::adapters::SavedAdapters;
use crate::model_section::ModelSection;
pub use crate::model_section::{ConfiguredModel, TEMPLATE_FILE, TOKENIZER_FILE};

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
            let saved = saved_adapters(folder)?;
            let has_adapters = saved.is_some() || lora_rank.unwrap_or(given.lora.rank) > 0;
            let mut own = OF_A_FOLDER.to_vec();
            if given.model.pretrained {
                own.extend(FINE_TUNING);
                own.push(if has_adapters { LORA_RATE } else { FINE_TUNING_RATE });
            }
            let own: Vec<String> = own.into_iter().map(str::to_owned).collect();
            defaults = merge_config(&defaults, &[], &own)?;
            defaults.lora = saved.unwrap_or(defaults.lora);
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

    /// The values of `configs/gpt-tiny.toml` with those of the adapters in a folder, if there are any, overridden by `--set`: to compute with a model as it is.
    pub fn read_as_is(folder: &Path, sets: &[String]) -> anyhow::Result<Self> {
        let mut defaults: Self = toml::from_str(DEFAULTS).context("configs/gpt-tiny.toml")?;
        defaults.lora = saved_adapters(folder)?.unwrap_or(defaults.lora);
        Ok(merge_config(&defaults, &[], sets)?)
    }

    /// The folder with what stands beside the tokenizer: that of the model or, for a new one, of the tokenizer; empty if it has none.
    pub fn files_from(&self) -> PathBuf {
        match &self.data.tokenizer {
            TokenizerSpec::File(path) => path.parent().map(Path::to_owned).unwrap_or_default(),
            _ => self.model.path.clone(),
        }
    }
}

/// What the adapters in a folder have, if there are any: what is not given about them stays as it was.
fn saved_adapters(folder: &Path) -> anyhow::Result<Option<LoraConfig>> {
    let saved =
        SavedAdapters::read(folder).with_context(|| format!("model.path (--model) {}", folder.display()))?;
    Ok(saved.map(|saved| saved.lora))
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
        write_adapters(folder.path());
        assert_eq!(of(folder.path().to_str(), None, &[]).1, 2e-4);
        assert_eq!(of(Some("a"), None, &["model.pretrained=false"]), ((400, 0.0, 0), 2e-3, 40, 0));
        let own = ["train.steps=7", "optimizer.learning_rate=1e-3", "model.sequence_length=64"];
        assert_eq!(of(Some("a"), None, &own), ((7, 0.0, 64), 1e-3, 0, 0));
    }

    fn write_adapters(folder: &Path) {
        let fields = r#"{"peft_type": "LORA", "base_model_name_or_path": "base", "r": 4, "lora_alpha": 8, "lora_dropout": 0.1,
            "use_rslora": true, "target_modules": ["q_proj"]}"#;
        std::fs::write(folder.join(brigade::ADAPTERS_CONFIG_FILE), fields).unwrap();
    }

    #[test]
    fn what_is_not_given_about_saved_adapters_is_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        write_adapters(folder.path());
        let saved = saved_adapters(folder.path()).unwrap().unwrap();
        let none = LoraConfig::default();
        for (rank, set, expected) in [
            (None, None, saved.clone()),
            (Some(4), None, saved.clone()),
            // Values that are the defaults of new adapters are given all the same.
            (None, Some("lora.dropout=0"), LoraConfig { dropout: none.dropout, ..saved.clone() }),
            (None, Some("lora.rslora=false"), LoraConfig { rslora: none.rslora, ..saved.clone() }),
            (Some(0), None, LoraConfig { rank: none.rank, ..saved.clone() }),
            (None, Some("lora.targets=[]"), LoraConfig { targets: none.targets.clone(), ..saved.clone() }),
        ] {
            let sets: Vec<String> = set.into_iter().map(str::to_owned).collect();
            let config = Config::read_with(Some(folder.path()), rank, &[], &sets).unwrap();
            assert_eq!(config.lora, expected, "{rank:?} {set:?}");
            let path = format!("model.path='{}'", folder.path().display());
            let config = Config::read_with(None, rank, &[], &[vec![path], sets].concat()).unwrap();
            assert_eq!(config.lora, expected, "{rank:?} {set:?}");
        }
        assert_eq!(Config::read_as_is(folder.path(), &[]).unwrap().lora, saved);
    }
}
