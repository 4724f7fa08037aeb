//! An encoder as it is trained for a task.

use std::path::Path;

use brigade_core::{Chain, Model};
use brigade_hf::config::{EncoderConfig, Family};
use brigade_hf::{Config, Task};
use burn::tensor::{Device, Int, Tensor};

use super::loss::MOST_COUNTED;
use super::{
    costs, mapping, mapping_beside_adapters, masked_lm, sequence_classification, with_label_sets,
    with_labels, with_masked_tokens, with_number,
};
use crate::gpt::Targets;
use crate::lora::{Adapters, LoraConfig, LoraError};
use crate::weights::{WeightsError, WeightsFormat, WeightsMapping, merge_adapters};
use crate::{Logits, Tokens};

/// An encoder, what it is trained for, and the length of its rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Encoder {
    config: EncoderConfig,
    task: Task,
    sequence_length: usize,
    adapters: Adapters,
}

/// Why there is no such model.
#[derive(Debug, thiserror::Error)]
pub enum EncoderError {
    /// The model is none of this kind.
    #[error("a model of type `{0}` is no encoder; `bert` and `roberta` are")]
    NotEncoder(Family),
    /// Rows are longer than the model's positions.
    #[error(
        "model.sequence_length = {given} is not possible: the model has {most} positions; give at most that many"
    )]
    TooLong {
        /// The length of a row.
        given: usize,
        /// The model's positions.
        most: usize,
    },
}

impl Encoder {
    /// The model that a configuration describes with the head of a task, for rows of at most `sequence_length` tokens; none stands for as many as it has positions.
    ///
    /// # Errors
    /// If it is no encoder, or has fewer positions than that.
    pub fn from_config(
        config: &Config,
        task: Task,
        sequence_length: Option<usize>,
    ) -> Result<Self, EncoderError> {
        let Config::Encoder(config) = config else { return Err(EncoderError::NotEncoder(config.family())) };
        let most = config.max_positions;
        let given = sequence_length.unwrap_or(most);
        if given > most {
            return Err(EncoderError::TooLong { given, most });
        }
        Ok(Self { config: config.clone(), task, sequence_length: given, adapters: Adapters::default() })
    }

    /// The same model with adapters, which alone are trained then, with the head of labels where there is one.
    ///
    /// # Errors
    /// If there are none of this kind for it.
    pub fn with_adapters(self, lora: &LoraConfig) -> Result<Self, LoraError> {
        Ok(Self { adapters: lora.encoder_adapters(&self.config, self.task)?, ..self })
    }

    /// Its adapters.
    pub fn adapters(&self) -> &Adapters {
        &self.adapters
    }

    /// Its configuration.
    pub fn config(&self) -> &EncoderConfig {
        &self.config
    }

    /// Rows of the table of embeddings: all tokens are below it.
    pub fn vocabulary(&self) -> usize {
        self.config.vocab_size
    }

    /// Tokens of a row, at most.
    pub fn sequence_length(&self) -> usize {
        self.sequence_length
    }

    /// Relative costs of the model's blocks, in order, found without a device.
    pub fn costs(&self) -> Vec<f64> {
        costs(&self.config, self.task)
    }

    /// Where Hugging Face's files have its parameters, and `peft`'s its adapters and the head beside them.
    pub fn mapping(&self) -> WeightsMapping {
        match self.adapters.is_empty() {
            true => self.merged_mapping(),
            false => mapping_beside_adapters(self.config.family, self.task),
        }
    }

    /// Where files of a model like it without adapters have its parameters.
    pub fn merged_mapping(&self) -> WeightsMapping {
        mapping(self.config.family, self.task)
    }

    /// Rows of the first token throughout, to measure what the model needs.
    pub fn blank_rows(&self, sequences: usize, device: &Device) -> Tokens {
        Tensor::zeros([sequences, self.sequence_length], device).into()
    }

    /// Whether [`classification`](Self::classification) counts each label: there are not too many.
    pub fn counts_labels(&self) -> bool {
        self.config.labels.names.len() <= MOST_COUNTED
    }

    /// With the head that predicts tokens, ready to train: [`with_masked_tokens`].
    pub fn masked_lm(&self, seed: u64, device: &Device) -> Model<Tokens, Logits, Targets> {
        with_masked_tokens(masked_lm(&self.config, &self.adapters, seed, device))
    }

    /// With the head of labels, ready to train: [`with_labels`].
    pub fn classification(&self, seed: u64, device: &Device) -> Model<Tokens, Tensor<2>, Tensor<1, Int>> {
        with_labels(self.of_labels(seed, device), &self.config.labels.names)
    }

    /// With the head of labels of which a text may have any number, ready to train: [`with_label_sets`].
    pub fn multi_label_classification(
        &self,
        seed: u64,
        device: &Device,
    ) -> Model<Tokens, Tensor<2>, Tensor<2>> {
        with_label_sets(self.of_labels(seed, device), &self.config.labels.names)
    }

    /// With the head of a number, ready to train: [`with_number`].
    pub fn regression(&self, seed: u64, device: &Device) -> Model<Tokens, Tensor<2>, Tensor<1>> {
        with_number(self.of_labels(seed, device))
    }

    /// Writes its weights with the adapters added: [`merge_adapters`], for the chain of its task.
    ///
    /// # Errors
    /// As there.
    pub fn merge_adapters(
        &self,
        device: &Device,
        weights: &[&Path],
        mapping: &WeightsMapping,
        to: &Path,
        format: WeightsFormat,
    ) -> Result<(), WeightsError> {
        let (scale, mappings) = (self.adapters.config().scale(), [mapping, &self.merged_mapping()]);
        match self.task {
            Task::SequenceClassification => {
                merge_adapters(self.of_labels(0, device), scale, weights, mappings, to, format)
            }
            Task::MaskedLanguageModel => {
                let chain = masked_lm(&self.config, &self.adapters, 0, device);
                merge_adapters(chain, scale, weights, mappings, to, format)
            }
            Task::Base | Task::CausalLanguageModel => {
                merge_adapters(super::chain(&self.config, 0, device), scale, weights, mappings, to, format)
            }
        }
    }

    fn of_labels(&self, seed: u64, device: &Device) -> Chain<Tokens, Tensor<2>> {
        sequence_classification(&self.config, &self.adapters, seed, device)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn costs_follow_the_blocks() {
        let fields = json!({
            "model_type": "bert", "vocab_size": 50, "hidden_size": 16, "intermediate_size": 24,
            "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 8,
        });
        let config = Config::from_fields("config.json", fields.as_object().unwrap()).unwrap();
        let model = |task| Encoder::from_config(&config, task, None).unwrap();
        let device = Device::flex();
        let masked = model(Task::MaskedLanguageModel);
        assert_eq!(masked.masked_lm(0, &device).chain().costs(), masked.costs());
        let labels = model(Task::SequenceClassification);
        assert_eq!(labels.classification(0, &device).chain().costs(), labels.costs());
        let error = Encoder::from_config(&config, Task::Base, Some(9)).unwrap_err().to_string();
        assert!(error.contains("the model has 8 positions"), "{error}");
    }
}
