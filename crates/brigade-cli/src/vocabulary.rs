//! Tokenizers with more ids than their model has embeddings.

use anyhow::{Context, bail};
use brigade::models::WeightsMapping;
use brigade_hf::Config as ModelConfig;

use crate::config::{Config, ConfiguredModel};
use crate::data::tasks::TaskModel;

/// The matrices that have a row for each token.
const TABLES: [&str; 4] = ["embedding.embed_tokens", "embedding.wte", "embedding.words", "head.lm_head"];

impl Config {
    /// Checks that the model has an embedding for each of the tokenizer's ids; with `model.resize_embeddings`, those that it lacks are added.
    pub fn fit_vocabulary(&self, described: &mut ConfiguredModel) -> anyhow::Result<()> {
        let (ids, vocabulary) = (self.largest_token_count()?, described.model.vocabulary());
        if ids <= vocabulary {
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

    /// A mapping for files that may have fewer embeddings than the model.
    pub fn for_resized(&self, mapping: WeightsMapping) -> WeightsMapping {
        match self.model.resize_embeddings {
            true => TABLES.into_iter().fold(mapping, WeightsMapping::more_rows),
            false => mapping,
        }
    }
}
