//! A configuration is resolved: values that follow from others are filled in, and model, tokenizer and adapters are checked against each other.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use brigade::data::{Tokenizer, TokenizerSpec, is_url};
use brigade::models::{CausalLm, LoraConfig, LoraError};

use crate::config::Config;
use crate::data::tasks::{TaskModel, TaskName};
use crate::model_section::{ConfiguredModel, TOKENIZER_FILE, usual_length};

impl Config {
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
        if let Some(template) = self.data.template() {
            let template = absolute(template)?;
            if !template.is_file() {
                bail!("data.chat_template = {} is not possible: there is no such file", template.display());
            }
            self.data.chat_template = template;
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
            self.model.path = self.model.find()(&self.model.path)?;
            let (file, given) = (self.model.config_file()?, self.model.given());
            if self.lora.targets.is_empty() {
                self.lora.targets = LoraConfig::usual_targets(&file.config);
            }
            self.check_adapters()?;
            let usual = LoraConfig::usual_targets(&file.config);
            self.check_has_rank(&LoraConfig { targets: usual, ..LoraConfig::default() })?;
            if self.model.shape.sequence_length == 0 {
                self.model.shape.sequence_length = usual_length(&file);
            }
            if self.data.tokenizer == TokenizerSpec::default() {
                self.data.tokenizer = TokenizerSpec::File(self.model.tokenizer()?);
            }
            self.task = self.task.clone().resolved(
                &file,
                &self.data,
                &given,
                (self.model.pretrained, !self.model.without_weights),
            )?;
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
        if self.model.is_new() {
            let usual = LoraConfig { targets: self.lora.targets.clone(), ..LoraConfig::default() };
            self.check_has_rank(&usual)?;
        }
        self.task.check_loss()?;
        if self.lora.rank == 0 {
            // Those of another model may be others.
            self.lora.targets.clear();
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
        self.task = self.task.clone().resolved(
            &file,
            &self.data,
            "model.config",
            (false, !self.model.without_weights),
        )?;
        self.describe().map(drop)
    }

    /// The model with its task and its adapters.
    pub fn describe(&self) -> anyhow::Result<ConfiguredModel> {
        let Self { model: section, lora, .. } = self;
        let is_new = section.is_new();
        if lora.rank > 0 && (is_new || !section.pretrained) {
            let allowed = match is_new {
                true => "adapters need a trained model; give one with --model (model.path)",
                false => "adapters need a trained model, but model.pretrained = false; leave it out",
            };
            return Err(LoraError::new("rank (--lora-rank)", lora.rank, allowed).into());
        }
        if is_new && section.config.is_empty() {
            section.shape.check()?;
            let model = CausalLm::from(section.shape.clone()).with_loss_options(self.task.loss());
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

    /// Checks that the adapters in the model's folder, if it has any, are trained as they are; their dropout may be another.
    fn check_adapters(&self) -> anyhow::Result<()> {
        let Some(saved) = self.model.origin()?.adapters else { return Ok(()) };
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

    /// The most ids that the tokenizer can have.
    pub fn largest_token_count(&self) -> anyhow::Result<usize> {
        largest_vocabulary(&self.data.tokenizer)
    }
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
        assert!(config.lora.targets.is_empty(), "another model may have other layers");
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
            ("model.name=llama", "`model.name`: it must be gpt2, not llama"),
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
            ("data.chat_template=none.jinja", "none.jinja is not possible: there is no such file"),
            (
                "task.label_smoothing=1",
                "task.label_smoothing = 1 is not possible: it must be at least 0 and below 1",
            ),
            ("task.z_loss=-1", "task.z_loss = -1 is not possible"),
            ("data.columns=['a']", "`data.columns` is a section"),
            ("output.overwrite=true", "there is no setting `output.overwrite`"),
        ] {
            assert!(message(set).contains(said), "{set}: {}", message(set));
        }
    }
}
