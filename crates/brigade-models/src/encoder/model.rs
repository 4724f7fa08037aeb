//! An encoder as it is trained for a task.

use brigade_core::{Batch, Model, SmallerModel};
use brigade_hf::config::{EncoderConfig, Family};
use brigade_hf::{Config, Task};
use burn::tensor::{Device, Tensor, TensorData};

use super::masking::with_masked_tokens_in;
use super::{costs, mapping, mapping_beside_adapters, masked_lm};
use crate::gpt::Targets;
use crate::layers::LoraConfig;
use crate::lora::{Adapters, LoraError};
use crate::smaller::{divided_rows, stand_ins};
use crate::weights::WeightsMapping;
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
    #[error("a model of type `{0}` is not an encoder; `bert` and `roberta` are")]
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
        let adapters = lora.adapters(&Config::Encoder(self.config.clone()), self.task)?;
        Ok(self.adapted(adapters))
    }

    /// The same model with these adapters.
    pub(crate) fn adapted(self, adapters: Adapters) -> Self {
        Self { adapters, ..self }
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

    /// A micro-batch of rows of the first token throughout, `masked` of which are to be predicted, to measure what the model needs.
    pub fn blank_batch(&self, sequences: usize, masked: usize, device: &Device) -> Batch<Tokens, Targets> {
        let input: Tokens = Tensor::zeros([sequences, self.sequence_length], device).into();
        Batch::new(input.clone(), first_masked(&input, masked), masked)
    }

    /// With the head that predicts tokens, ready to train: [`with_masked_tokens`](super::with_masked_tokens).
    pub fn masked_lm(&self, seed: u64, device: &Device) -> Model<Tokens, Logits, Targets> {
        let (own, on) = (self.clone(), device.clone());
        self.with_masked_tokens(seed, device, 1).measured_by(move |batch| own.smaller(batch, &on))
    }

    /// With the loss; the rows whose logits are in memory at a time are divided by `rows_divisor`.
    fn with_masked_tokens(
        &self,
        seed: u64,
        device: &Device,
        rows_divisor: usize,
    ) -> Model<Tokens, Logits, Targets> {
        with_masked_tokens_in(masked_lm(&self.config, &self.adapters, seed, device), rows_divisor)
    }

    /// The models that stand for this one with a micro-batch, if any do.
    fn smaller(
        &self,
        batch: &Batch<Tokens, Targets>,
        device: &Device,
    ) -> Option<[SmallerModel<Tokens, Logits, Targets>; 2]> {
        stand_ins(&batch.input, &self.costs(), |division| {
            let divisor = division.divisor;
            let input = divided_rows(&batch.input, divisor);
            let (shape, masked) = (input.ids.dims(), division.of(batch.valid_targets));
            let batch =
                Batch::new(input.clone(), first_masked(&input, masked), masked.min(shape[0] * shape[1]));
            let model = self.divided(divisor)?.with_masked_tokens(0, device, divisor);
            Some(SmallerModel { divisor, model, batch })
        })
    }

    /// With all sizes divided, but for the numbers of layers and heads.
    pub(crate) fn divided(&self, divisor: usize) -> Option<Self> {
        let whole = |size: usize| size.is_multiple_of(divisor).then(|| size / divisor);
        let config = EncoderConfig {
            vocab_size: self.config.vocab_size.div_ceil(divisor),
            hidden_size: self.config.heads * whole(self.config.head_dim())?,
            intermediate_size: whole(self.config.intermediate_size)?,
            max_positions: self.config.max_positions.div_ceil(divisor),
            ..self.config.clone()
        };
        let (sequence_length, adapters) =
            (self.sequence_length.div_ceil(divisor), self.adapters.divided(divisor));
        Some(Self { config, sequence_length, adapters, ..self.clone() })
    }
}

/// Targets of which the first `masked` count.
fn first_masked(input: &Tokens, masked: usize) -> Targets {
    let shape = input.ids.dims();
    let mask: Vec<f32> =
        (0..shape[0] * shape[1]).map(|token| if token < masked { 1.0 } else { 0.0 }).collect();
    let mask = Tensor::from_data(TensorData::new(mask, shape), &input.ids.device());
    Targets { tokens: input.ids.clone(), mask: Some(mask) }
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
        let error = Encoder::from_config(&config, Task::Base, Some(9)).unwrap_err().to_string();
        assert!(error.contains("the model has 8 positions"), "{error}");
    }
}
