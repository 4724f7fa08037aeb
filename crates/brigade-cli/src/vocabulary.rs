//! Tokenizers with more ids than their model has embeddings.

use anyhow::{Context, bail};
use brigade::data::{PreparedData, Tokenizer, TokenizerSpec};
use brigade::models::WeightsMapping;
use brigade_hf::Config as ModelConfig;

use crate::config::{Config, ConfiguredModel};
use crate::data::tasks::TaskModel;

/// The matrices that have a row for each token.
const TABLES: [&str; 4] = ["embedding.embed_tokens", "embedding.wte", "embedding.words", "head.lm_head"];

impl Config {
    /// Checks that the model has an embedding for each of the tokenizer's ids, except tokens that were added to its own tokenizer ([`check_tokens`](Self::check_tokens) finds whether any
    /// is used); with `model.resize_embeddings`, those that it lacks are added.
    pub fn fit_vocabulary(&self, described: &mut ConfiguredModel) -> anyhow::Result<()> {
        let (ids, vocabulary) = (self.largest_token_count()?, described.model.vocabulary());
        if ids <= vocabulary || !self.model.resize_embeddings && self.lacks_only_added(vocabulary)? {
            return Ok(());
        }
        let more = format!(
            "data.tokenizer = {} has {ids} ids, more than the {vocabulary} embeddings of the model of {}",
            self.data.tokenizer,
            self.model.given()
        );
        let other_way = "give the model's own tokenizer, or a model whose embeddings were resized";
        if matches!(described.model, TaskModel::MaskedLm(_)) {
            bail!(
                "{more}; {other_way} (model.resize_embeddings = true does not add them for task.name (--task) = \"masked-lm\", whose head has a bias for each token)"
            );
        }
        if !described.model.adapters().is_empty() {
            bail!(
                "{more}; {other_way} (model.resize_embeddings = true cannot add them with adapters, which are saved without \
                embeddings)"
            );
        }
        if !self.model.resize_embeddings {
            bail!("{more}; model.resize_embeddings = true adds the missing ones");
        }
        match &mut described.file.config {
            ModelConfig::Decoder(config) => config.vocab_size = ids,
            ModelConfig::Encoder(config) => config.vocab_size = ids,
        }
        let length = described.model.sequence_length();
        let resized = self.task.model(&mut described.file, length, &self.lora, &self.data.tokenizer);
        described.model = resized.with_context(|| self.model.given())?;
        Ok(())
    }

    /// Whether the tokenizer is the model's own, and all its ids without an embedding are of added tokens: models are published so, which cannot use these tokens.
    fn lacks_only_added(&self, vocabulary: usize) -> anyhow::Result<bool> {
        let TokenizerSpec::File(path) = &self.data.tokenizer else { return Ok(false) };
        let is_own = || -> anyhow::Result<bool> {
            Ok(!self.model.is_new() && path.canonicalize()? == self.model.tokenizer()?.canonicalize()?)
        };
        Ok(Tokenizer::from_file(path)?.size_without_added() <= vocabulary && is_own()?)
    }

    /// Checks that the model has an embedding for each token of the text, and for the one that fills rows.
    pub fn check_tokens(&self, prepared: &PreparedData, vocabulary: usize) -> anyhow::Result<()> {
        if prepared.tokenizer.vocabulary_size() <= vocabulary {
            return Ok(());
        }
        let splits = prepared.sources.iter().flat_map(|source| [&source.train, &source.validation]);
        for split in splits.filter(|split| !split.is_empty()) {
            let padding = Some(split.end_of_text()).filter(|token| *token as usize >= vocabulary);
            let token = match padding {
                Some(token) => Some(token),
                None => split.tokens().first_from(vocabulary)?,
            };
            if let Some(token) = token {
                bail!(
                    "data.sources (--data): {}; leave the token out, or add the missing embeddings with model.resize_embeddings = true",
                    no_embedding(&prepared.tokenizer, token, vocabulary)?
                );
            }
        }
        Ok(())
    }

    /// A mapping for files that may have fewer embeddings than the model.
    pub fn for_resized(&self, mapping: WeightsMapping) -> WeightsMapping {
        match self.model.resize_embeddings {
            true => TABLES.into_iter().fold(mapping, WeightsMapping::more_rows),
            false => mapping,
        }
    }
}

/// A note on a tokenizer's ids without embeddings, if it has any.
pub fn note_on_missing(ids: usize, vocabulary: usize) -> Option<String> {
    (ids > vocabulary).then(|| {
        format!(
            "the tokenizer has {ids} ids, but the model has {vocabulary} embeddings; the added tokens from id {vocabulary} on cannot be used"
        )
    })
}

/// What is wrong with a token in a text.
pub fn no_embedding(tokenizer: &Tokenizer, token: u32, vocabulary: usize) -> anyhow::Result<String> {
    let name = tokenizer.decode(&[token])?;
    Ok(format!("the text has the token {name} with id {token}, but the model has {vocabulary} embeddings"))
}
