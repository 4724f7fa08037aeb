//! Tokenizers with more ids than their model has embeddings.

use anyhow::{Context, bail};
use brigade::models::{CausalLm, WeightsMapping};
use brigade_hf::Config as ModelConfig;

use crate::config::{Config, ConfiguredModel};
use crate::data::tasks::TaskModel;

/// The matrices that have a row for each token.
const TABLES: [&str; 3] = ["embedding.embed_tokens", "embedding.wte", "head.lm_head"];

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
        let (ModelConfig::Decoder(config), TaskModel::CausalLm(model)) =
            (&mut described.file.config, &described.model)
        else {
            bail!(
                "{more}; {other_way} (model.resize_embeddings = true only adds them for the task causal-lm, task.name, --task)"
            );
        };
        if !model.adapters().is_empty() {
            bail!(
                "{more}; {other_way} (model.resize_embeddings = true cannot add them with adapters, which are saved without \
                embeddings)"
            );
        }
        if !self.model.resize_embeddings {
            bail!("{more}; model.resize_embeddings = true adds the missing ones");
        }
        config.vocab_size = ids;
        let resized = CausalLm::from_config(&described.file.config, Some(model.sequence_length()));
        described.model = TaskModel::CausalLm(resized.with_context(|| self.model.given())?);
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
