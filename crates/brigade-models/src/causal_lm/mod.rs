//! Causal language models of any family.

mod classifier;
mod flops;
mod smaller;

use brigade_core::{Batch, Chain, Model};
use brigade_hf::config::{ActivationFunction, NormKind};
use brigade_hf::{Config, ConfigFile, DecoderConfig, Family, HfError, Task};
use burn::tensor::{Device, Tensor};
use serde_json::json;

use crate::gpt::{self, ACCURACY, Gelu, GptConfig, GptDetails, Targets, cross_entropy_with};
use crate::layers::LoraConfig;
use crate::lora::{Adapters, LoraError};
use crate::weights::WeightsMapping;
use crate::{Logits, LossOptions, Tokens, decoder};

/// A language model in which a token sees those before it, and the length of its rows.
#[derive(Debug, Clone, PartialEq)]
pub struct CausalLm {
    kind: Kind,
    sequence_length: usize,
    adapters: Adapters,
    loss: LossOptions,
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Gpt2(GptConfig, GptDetails),
    Decoder(Box<DecoderConfig>),
}

impl From<GptConfig> for CausalLm {
    /// A GPT-2, with rows as long as its table of positions.
    fn from(config: GptConfig) -> Self {
        let details = GptDetails::from(&config);
        Self {
            sequence_length: config.sequence_length,
            kind: Kind::Gpt2(config, details),
            adapters: Adapters::default(),
            loss: LossOptions::default(),
        }
    }
}

/// Why there is no such model.
#[derive(Debug, thiserror::Error)]
pub enum CausalLmError {
    /// The shape of a GPT-2 is not possible.
    #[error(transparent)]
    Shape(#[from] gpt::ShapeError),
    /// A configuration has what no model here computes.
    #[error(transparent)]
    Unsupported(#[from] decoder::UnsupportedError),
    /// The model cannot have such adapters.
    #[error(transparent)]
    Lora(#[from] LoraError),
    /// No `config.json` describes it.
    #[error(transparent)]
    Config(#[from] HfError),
    /// The model is not of this kind.
    #[error("a model of type `{0}` does not predict the next token; a causal language model is needed")]
    NotCausal(Family),
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

impl CausalLm {
    /// The model that a configuration describes, for rows of at most `sequence_length` tokens; none stands for as many as it has positions.
    ///
    /// # Errors
    /// If it is not a language model of this kind, has unsupported features, or has fewer positions than that.
    pub fn from_config(config: &Config, sequence_length: Option<usize>) -> Result<Self, CausalLmError> {
        let config = match config {
            Config::Decoder(config) => config,
            Config::Encoder(_) => return Err(CausalLmError::NotCausal(config.family())),
        };
        let most = config.max_positions;
        let sequence_length = sequence_length.unwrap_or(most);
        if sequence_length > most {
            return Err(CausalLmError::TooLong { given: sequence_length, most });
        }
        let kind = match config.family {
            Family::Gpt2 => {
                let (shape, details) = gpt2(config)?;
                Kind::Gpt2(shape, details)
            }
            _ => {
                decoder::check(config)?;
                Kind::Decoder(Box::new(config.clone()))
            }
        };
        Ok(Self { kind, sequence_length, adapters: Adapters::default(), loss: LossOptions::default() })
    }

    /// The same model with adapters, which alone are trained then.
    ///
    /// # Errors
    /// If there are none of this kind for it.
    pub fn with_adapters(self, lora: &LoraConfig) -> Result<Self, CausalLmError> {
        let adapters = lora.adapters(&self.config()?, Task::CausalLanguageModel)?;
        Ok(self.adapted(adapters))
    }

    /// The same model with these adapters.
    pub(crate) fn adapted(self, adapters: Adapters) -> Self {
        Self { adapters, ..self }
    }

    /// The same model, whose [`model`](Self::model) is trained with these options of its loss.
    pub fn with_loss_options(self, loss: LossOptions) -> Self {
        Self { loss, ..self }
    }

    /// As `config.json` describes it.
    fn config(&self) -> Result<Config, HfError> {
        match &self.kind {
            Kind::Gpt2(config, details) => gpt2_fields(config, details),
            Kind::Decoder(config) => Ok(Config::Decoder((**config).clone())),
        }
    }

    /// Its adapters.
    pub fn adapters(&self) -> &Adapters {
        &self.adapters
    }

    /// Rows of the table of embeddings: all tokens are below it.
    pub fn vocabulary(&self) -> usize {
        match &self.kind {
            Kind::Gpt2(config, _) => config.vocabulary,
            Kind::Decoder(config) => config.vocab_size,
        }
    }

    /// Tokens of a row, at most.
    pub fn sequence_length(&self) -> usize {
        self.sequence_length
    }

    /// The model's blocks, from [`Tokens`] to [`Logits`]; initial values come from (`seed`, name).
    ///
    /// # Errors
    /// If there is no such model.
    pub fn chain(&self, seed: u64, device: &Device) -> Result<Chain<Tokens, Logits>, CausalLmError> {
        Ok(match &self.kind {
            Kind::Gpt2(config, details) => gpt::chain_with((config, details), &self.adapters, seed, device)?,
            Kind::Decoder(config) => {
                decoder::chain(config, &self.adapters, self.sequence_length, seed, device)?
            }
        })
    }

    /// The model with its loss, ready to train: [`chain`](Self::chain) and the cross entropy of the next token, with the share of
    /// tokens that it predicts best as the metric [`ACCURACY`].
    ///
    /// # Errors
    /// As [`chain`](Self::chain).
    pub fn model(&self, seed: u64, device: &Device) -> Result<Model<Tokens, Logits, Targets>, CausalLmError> {
        let (own, on) = (self.clone(), device.clone());
        Ok(self.with_loss(seed, device, 1)?.measured_by(move |batch| own.smaller(batch, &on)))
    }

    /// With the loss; the rows whose logits are in memory at a time are divided by `rows_divisor`.
    fn with_loss(
        &self,
        seed: u64,
        device: &Device,
        rows_divisor: usize,
    ) -> Result<Model<Tokens, Logits, Targets>, CausalLmError> {
        let options = self.loss;
        let loss = move |logits, targets| cross_entropy_with(logits, targets, options, rows_divisor);
        Ok(self.chain(seed, device)?.loss_with_metrics([ACCURACY], loss))
    }

    /// Relative costs of the model's blocks, in order, found without a device.
    ///
    /// # Errors
    /// If there is no such model.
    pub fn costs(&self) -> Result<Vec<f64>, CausalLmError> {
        Ok(match &self.kind {
            Kind::Gpt2(config, details) => config.costs_with(details)?,
            Kind::Decoder(config) => decoder::costs(config),
        })
    }

    /// A micro-batch of `sequences` that all have the first token throughout, to measure what the model needs:
    /// [`Model::measure_activations`].
    pub fn blank_batch(&self, sequences: usize, device: &Device) -> Batch<Tokens, Targets> {
        let shape = [sequences, self.sequence_length()];
        let targets = Targets { tokens: Tensor::zeros(shape, device), mask: None };
        Batch::new(Tensor::zeros(shape, device).into(), targets, sequences * self.sequence_length())
    }

    /// Where Hugging Face's files have its parameters.
    pub fn mapping(&self) -> WeightsMapping {
        match &self.kind {
            Kind::Gpt2(..) => gpt::mapping(),
            Kind::Decoder(_) => decoder::mapping(),
        }
    }

    /// A `config.json` of it, for a model that began from no other.
    ///
    /// # Errors
    /// If its family cannot write it.
    pub fn config_file(&self) -> Result<ConfigFile, HfError> {
        Ok(ConfigFile::new(self.config()?, Task::CausalLanguageModel))
    }
}

/// The GPT-2 of a configuration.
fn gpt2(config: &DecoderConfig) -> Result<(GptConfig, GptDetails), CausalLmError> {
    let d = &config.dropout;
    decoder::refuse(
        config.family,
        &[
            (config.norm.kind != NormKind::Layer, "a norm other than layer norm"),
            (
                [d.embedding, d.attention].into_iter().any(|p| !(0.0..1.0).contains(&(p as f32))),
                "an `embd_pdrop` or `attn_pdrop` that is not from 0 to below 1",
            ),
            (config.activation == ActivationFunction::Silu, "an `activation_function` of SiLU"),
        ],
    )?;
    let details = GptDetails {
        inner: config.intermediate_size,
        epsilon: config.norm.epsilon,
        attention_scale: config.attention_scale,
        dropout: [d.embedding, d.attention, d.residual],
    };
    let shape = GptConfig {
        vocabulary: config.vocab_size,
        sequence_length: config.max_positions,
        width: config.hidden_size,
        layers: config.layers.len(),
        heads: config.heads,
        tied_head: config.tied_embeddings,
        activation: if config.activation == ActivationFunction::Gelu { Gelu::Gelu } else { Gelu::GeluTanh },
        dropout: d.residual,
        initializer_range: config.initializer_range,
    };
    Ok((shape, details))
}

fn gpt2_fields(config: &GptConfig, details: &GptDetails) -> Result<Config, HfError> {
    let [embedding, attention, residual] = details.dropout;
    let fields = json!({
        "model_type": "gpt2",
        "vocab_size": config.vocabulary,
        "n_positions": config.sequence_length,
        "n_embd": config.width,
        "n_layer": config.layers,
        "n_head": config.heads,
        "tie_word_embeddings": config.tied_head,
        "activation_function": if config.activation == Gelu::Gelu { "gelu" } else { "gelu_new" },
        "n_inner": details.inner,
        "layer_norm_epsilon": details.epsilon,
        "scale_attn_weights": details.attention_scale != 1.0 || config.width == config.heads,
        "embd_pdrop": embedding,
        "attn_pdrop": attention,
        "resid_pdrop": residual,
        "initializer_range": config.initializer_range,
        "bos_token_id": null,
        "eos_token_id": null,
    });
    let fields = fields.as_object().cloned().unwrap_or_default();
    Config::from_fields("[model]", &fields)
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value};

    use super::*;

    fn config(fields: Value) -> Config {
        let fields: Map<String, Value> = fields.as_object().cloned().unwrap();
        Config::from_fields("config.json", &fields).unwrap()
    }

    #[test]
    fn a_gpt_is_what_its_config_says() {
        let gpt = GptConfig {
            vocabulary: 40,
            sequence_length: 16,
            width: 12,
            layers: 3,
            heads: 3,
            tied_head: false,
            activation: Gelu::Gelu,
            dropout: 0.1,
            initializer_range: 0.3,
        };
        let model = CausalLm::from(gpt);
        let written = Value::Object(model.config_file().unwrap().to_fields().unwrap());
        assert_eq!(CausalLm::from_config(&config(written), None).unwrap(), model);
    }

    #[test]
    fn a_gpt_has_the_details_of_its_config() {
        let described = |own: Value| {
            let mut fields = json!({ "model_type": "gpt2", "vocab_size": 5, "n_positions": 4, "n_embd": 4, "n_layer": 1, "n_head": 2 });
            fields.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
            CausalLm::from_config(&config(fields), None).unwrap()
        };
        let logits = |model: &CausalLm| {
            let device = Device::flex();
            let mut chain = model.chain(1, &device).unwrap();
            chain.initialize(1).unwrap();
            let ids = Tensor::<2, burn::tensor::Int>::from_ints([[0, 3, 1, 2]], &device);
            chain.valid().predict(ids.into()).unwrap().whole().into_data()
        };
        let usual = described(json!({}));
        for own in [
            json!({ "n_inner": 7 }),
            json!({ "layer_norm_epsilon": 0.1 }),
            json!({ "scale_attn_weights": false }),
            json!({ "attn_pdrop": 0.0, "embd_pdrop": 0.2 }),
        ] {
            let model = described(own.clone());
            let written = Value::Object(model.config_file().unwrap().to_fields().unwrap());
            assert_eq!(CausalLm::from_config(&config(written), None).unwrap(), model);
            // Dropout is of training alone.
            assert_eq!(logits(&model) == logits(&usual), own.get("attn_pdrop").is_some(), "{own}");
        }
        let parameters = described(json!({ "n_inner": 7 })).chain(0, &Device::flex()).unwrap().parameters();
        let usual = usual.chain(0, &Device::flex()).unwrap().parameters();
        assert_eq!(usual - parameters, (16 - 7) * (4 + 4 + 1));
    }

    #[test]
    fn a_gpt_begins_with_the_deviation_of_its_config() {
        let largest = |deviation: f64| {
            let fields = json!({
                "model_type": "gpt2", "vocab_size": 50, "n_positions": 8, "n_embd": 16, "n_layer": 1, "n_head": 2,
                "initializer_range": deviation,
            });
            let model = CausalLm::from_config(&config(fields), None).unwrap();
            let mut chain = model.chain(0, &Device::flex()).unwrap();
            chain.initialize(0).unwrap();
            let tensors = chain.tensors().unwrap();
            let matrices = tensors.iter().filter(|tensor| tensor.data.shape().to_vec().len() == 2);
            let values = matrices.flat_map(|tensor| tensor.data.as_slice::<f32>().unwrap().to_vec());
            values.fold(0.0, |largest, value| f32::max(largest, value.abs()))
        };
        assert_eq!(largest(0.0), 0.0);
        let ratio = largest(0.2) / largest(0.02);
        assert!((ratio - 10.0).abs() < 1e-4, "{ratio}");
    }

    #[test]
    fn costs_follow_the_blocks() {
        let shape = json!({
            "model_type": "llama", "vocab_size": 50, "hidden_size": 16, "intermediate_size": 24,
            "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        });
        let model = CausalLm::from_config(&config(shape), Some(8)).unwrap();
        let chain = model.chain(0, &Device::flex()).unwrap();
        assert_eq!(model.costs().unwrap().len(), 5);
        // Products of a layer: all parameters but those of two norms.
        assert_eq!(model.costs().unwrap()[1], (16 * 16 * 2 + 16 * 8 * 2 + 3 * 16 * 24) as f64);
        assert_eq!((chain.parameters(), model.sequence_length(), model.vocabulary()), (7472, 8, 50));
    }

    #[test]
    fn what_is_not_computed_is_refused_by_name() {
        let refused = |fields: Value, length: Option<usize>, said: &str| {
            let error = CausalLm::from_config(&config(fields), length).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        };
        refused(json!({"model_type": "bert"}), None, "`bert` does not predict the next token");
        refused(
            json!({"model_type": "mistral", "max_position_embeddings": 8}),
            Some(9),
            "model.sequence_length = 9 is not possible: the model has 8 positions",
        );
    }
}
