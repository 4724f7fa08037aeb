//! Models that tell texts apart by their labels, or predict a number of a text: encoders by each row's first token, decoders by its last.
//!
//! A text is the first document of its row; what is left of the row is padding, which belongs to other [`Documents`](crate::Documents).

mod loss;

use brigade_core::{Batch, Chain, Model, SmallerModel};
use brigade_hf::{Config, Task};
use burn::tensor::{Device, Int, Tensor};

use crate::causal_lm::{CausalLm, CausalLmError};
use crate::encoder::{self, Encoder, EncoderError};
use crate::layers::LoraConfig;
use crate::lora::{Adapters, LoraError};
use crate::smaller::{Division, divided_rows, stand_ins};
use crate::tokens::Tokens;
use crate::weights::WeightsMapping;
use loss::MAX_COUNTED;

pub use crate::metrics::ACCURACY;
pub use loss::{LabelCounts, MEAN_ABSOLUTE_ERROR, macro_f1, with_label_sets, with_labels, with_number};

/// A model with the head of labels that its configuration has, and the length of its rows. Where there is one label, it is the number that a regression predicts.
#[derive(Debug, Clone, PartialEq)]
pub struct SequenceClassifier {
    config: Config,
    body: Body,
}

/// What stands before the head.
#[derive(Debug, Clone, PartialEq)]
enum Body {
    Encoder(Encoder),
    Decoder(CausalLm),
}

/// Why there is no such model.
#[derive(Debug, thiserror::Error)]
pub enum ClassifierError {
    /// The encoder is none.
    #[error(transparent)]
    Encoder(#[from] EncoderError),
    /// The decoder is none.
    #[error(transparent)]
    Decoder(#[from] CausalLmError),
}

impl SequenceClassifier {
    /// The model that a configuration describes with a head for its labels, for rows of at most `sequence_length` tokens; none stands for as many as it has positions.
    ///
    /// # Errors
    /// If it has what no model here computes, or fewer positions than that.
    pub fn from_config(config: &Config, sequence_length: Option<usize>) -> Result<Self, ClassifierError> {
        let task = Task::SequenceClassification;
        let body = match config {
            Config::Encoder(_) => Body::Encoder(Encoder::from_config(config, task, sequence_length)?),
            Config::Decoder(_) => Body::Decoder(CausalLm::from_config(config, sequence_length)?),
        };
        Ok(Self { config: config.clone(), body })
    }

    /// The same model with adapters, which alone are trained then, with the head.
    ///
    /// # Errors
    /// If there are none of this kind for it.
    pub fn with_adapters(self, lora: &LoraConfig) -> Result<Self, LoraError> {
        let adapters = lora.adapters(&self.config, Task::SequenceClassification)?;
        Ok(Self { body: self.body.adapted(adapters), ..self })
    }

    /// Its adapters.
    pub fn adapters(&self) -> &Adapters {
        match &self.body {
            Body::Encoder(model) => model.adapters(),
            Body::Decoder(model) => model.adapters(),
        }
    }

    /// The names of its labels, in the order of their numbers.
    pub fn labels(&self) -> &[String] {
        &self.config.labels().names
    }

    /// Whether tokens of a second text have another type than those of the first.
    pub fn has_types(&self) -> bool {
        matches!(&self.config, Config::Encoder(config) if config.token_types > 1)
    }

    /// The token that is passed over at a text's end, where the last other token tells its label: that which fills rows (`pad_token_id`). None of an encoder.
    pub fn padding(&self) -> Option<u32> {
        match &self.config {
            Config::Decoder(config) => config.tokens.pad,
            Config::Encoder(_) => None,
        }
    }

    /// Rows of the table of embeddings: all tokens are below it.
    pub fn vocabulary(&self) -> usize {
        match &self.body {
            Body::Encoder(model) => model.vocabulary(),
            Body::Decoder(model) => model.vocabulary(),
        }
    }

    /// Tokens of a row, at most.
    pub fn sequence_length(&self) -> usize {
        match &self.body {
            Body::Encoder(model) => model.sequence_length(),
            Body::Decoder(model) => model.sequence_length(),
        }
    }

    /// Relative costs of the model's blocks, in order, found without a device.
    ///
    /// # Errors
    /// If there is no such model.
    pub fn costs(&self) -> Result<Vec<f64>, ClassifierError> {
        Ok(match &self.body {
            Body::Encoder(model) => model.costs(),
            Body::Decoder(model) => model.classifier_costs(self.labels().len())?,
        })
    }

    /// Where Hugging Face's files have its parameters, and `peft`'s its adapters and the head beside them.
    pub fn mapping(&self) -> WeightsMapping {
        match &self.body {
            Body::Encoder(model) => model.mapping(),
            Body::Decoder(model) => model.classifier_mapping(!model.adapters().is_empty()),
        }
    }

    /// Where files of a model like it without adapters have its parameters.
    pub fn merged_mapping(&self) -> WeightsMapping {
        match &self.body {
            Body::Encoder(model) => model.merged_mapping(),
            Body::Decoder(model) => model.classifier_mapping(false),
        }
    }

    /// Rows of the first token throughout, to measure what the model needs.
    pub fn blank_rows(&self, sequences: usize, device: &Device) -> Tokens {
        Tensor::zeros([sequences, self.sequence_length()], device).into()
    }

    /// Whether [`classification`](Self::classification) counts each label: there are not too many.
    pub fn counts_labels(&self) -> bool {
        self.labels().len() <= MAX_COUNTED
    }

    /// The model's blocks, from [`Tokens`] to logits of `[batch, labels]`; initial values come from (`seed`, name).
    ///
    /// # Errors
    /// If there is no such model.
    pub fn chain(&self, seed: u64, device: &Device) -> Result<Chain<Tokens, Tensor<2>>, ClassifierError> {
        Ok(match &self.body {
            Body::Encoder(model) => {
                encoder::sequence_classification(model.config(), model.adapters(), seed, device)
            }
            Body::Decoder(model) => model.classifier_chain(self.labels().len(), seed, device)?,
        })
    }

    /// Ready to train: [`with_labels`].
    ///
    /// # Errors
    /// If there is no such model.
    pub fn classification(
        &self,
        seed: u64,
        device: &Device,
    ) -> Result<Model<Tokens, Tensor<2>, Tensor<1, Int>>, ClassifierError> {
        let names = self.labels().to_vec();
        self.measured(seed, device, move |chain| with_labels(chain, &names))
    }

    /// Ready to train for labels of which a text may have any number: [`with_label_sets`].
    ///
    /// # Errors
    /// If there is no such model.
    pub fn multi_label_classification(
        &self,
        seed: u64,
        device: &Device,
    ) -> Result<Model<Tokens, Tensor<2>, Tensor<2>>, ClassifierError> {
        let names = self.labels().to_vec();
        self.measured(seed, device, move |chain| with_label_sets(chain, &names))
    }

    /// Ready to train for a number: [`with_number`].
    ///
    /// # Errors
    /// If there is no such model.
    pub fn regression(
        &self,
        seed: u64,
        device: &Device,
    ) -> Result<Model<Tokens, Tensor<2>, Tensor<1>>, ClassifierError> {
        self.measured(seed, device, with_number)
    }

    /// With a loss, and the smaller models that stand for it when what its blocks need is measured. Their targets are those of as many rows.
    fn measured<T: Clone + 'static>(
        &self,
        seed: u64,
        device: &Device,
        with_loss: impl Fn(Chain<Tokens, Tensor<2>>) -> Model<Tokens, Tensor<2>, T> + Send + Sync + 'static,
    ) -> Result<Model<Tokens, Tensor<2>, T>, ClassifierError> {
        let (own, on) = (self.clone(), device.clone());
        let model = with_loss(self.chain(seed, device)?);
        Ok(model.measured_by(move |batch| {
            stand_ins(&batch.input, &own.costs().ok()?, |Division { divisor, .. }| {
                let smaller = Self { body: own.body.divided(divisor)?, config: own.config.clone() };
                let input = divided_rows(&batch.input, divisor);
                let batch = Batch::new(input, batch.target.clone(), batch.valid_targets);
                Some(SmallerModel { divisor, model: with_loss(smaller.chain(0, &on).ok()?), batch })
            })
        }))
    }
}

impl Body {
    fn adapted(self, adapters: Adapters) -> Self {
        match self {
            Self::Encoder(model) => Self::Encoder(model.adapted(adapters)),
            Self::Decoder(model) => Self::Decoder(model.adapted(adapters)),
        }
    }

    /// With all sizes divided, but for the numbers of layers and heads.
    fn divided(&self, divisor: usize) -> Option<Self> {
        Some(match self {
            Self::Encoder(model) => Self::Encoder(model.divided(divisor)?),
            Self::Decoder(model) => Self::Decoder(model.divided(divisor)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn classifier(fields: &Value) -> SequenceClassifier {
        let config = Config::from_fields("config.json", fields.as_object().unwrap()).unwrap();
        SequenceClassifier::from_config(&config, Some(8)).unwrap()
    }

    #[test]
    fn costs_follow_the_blocks() {
        for fields in [
            json!({ "model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "num_labels": 3 }),
            json!({ "model_type": "bert", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4 }),
            json!({ "model_type": "gpt2", "n_embd": 12, "n_layer": 2, "n_head": 3 }),
        ] {
            let model = classifier(&fields);
            let chain = model.chain(0, &Device::flex()).unwrap();
            assert_eq!(chain.costs().len(), model.costs().unwrap().len());
            let (own, said) = (chain.costs(), model.costs().unwrap());
            // Norms and the head cost nearly nothing.
            assert_eq!(own[own.len() - 2..], said[said.len() - 2..]);
            let head = model.labels().len() * if fields["model_type"] == "gpt2" { 12 } else { 16 };
            assert_eq!(said.last(), Some(&(head as f64)));
        }
    }

    /// Layer `i` of `n` has `decay^(n - i)` and the embeddings `decay^(n + 1)`, as in a language model.
    #[test]
    fn layer_decay_leaves_the_norm_before_the_head_its_full_rate() {
        for (fields, layers, norm) in [
            (
                json!({ "model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4 }),
                "layers",
                true,
            ),
            (json!({ "model_type": "gpt2", "n_embd": 12, "n_layer": 2, "n_head": 3 }), "h", true),
            (
                json!({ "model_type": "bert", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4 }),
                "layers",
                false,
            ),
        ] {
            let chain = classifier(&fields).chain(0, &Device::flex()).unwrap();
            let layer = |index: usize, factor: f64| (format!("{layers}.{index}"), factor);
            let mut expected = vec![("embedding".to_owned(), 0.125), layer(0, 0.25), layer(1, 0.5)];
            expected.extend(norm.then(|| ("norm".to_owned(), 1.0)));
            expected.push(("head".to_owned(), 1.0));
            assert_eq!(chain.layer_decay_factors(0.5), expected, "{fields}");
        }
    }
}
