//! `config.json`: what a model is made of.

mod checks;
mod decoder;
mod encoder;
mod family;
mod fields;
mod file;
mod gpt2;
mod llama;
mod rotary;

use serde_json::{Map, Value};

pub use checks::{Labels, Problem, SpecialTokens};
pub use decoder::{ActivationFunction, Biases, DecoderConfig, Dropout, LayerConfig, Norm, NormKind};
pub use encoder::EncoderConfig;
pub use family::{Family, Task};
pub(crate) use file::read_object;
pub use file::{ConfigFile, GenerationConfig};
pub use rotary::{Rotary, RotaryScaling};

use crate::error::HfError;
use fields::Fields;

/// Fields that say nothing about what any model computes: where it came from, how it was kept, what to do with its outputs, and
/// how text was generated from it.
const HARMLESS: &[&str] = &[
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_name_or_path",
    "_num_labels",
    "attn_implementation",
    "chunk_size_feed_forward",
    "dtype",
    "finetuning_task",
    "gradient_checkpointing",
    "keys_to_ignore_at_inference",
    "language",
    "max_length",
    "max_sequence_length",
    "model_max_length",
    "name_or_path",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "prefix",
    "return_dict",
    "sbert_ce_default_activation_function",
    "sep_token_id",
    "cls_token_id",
    "mask_token_id",
    "decoder_start_token_id",
    "sentence_transformers",
    "task_specific_params",
    "tf_legacy_loss",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
    "use_return_dict",
    "xla_device",
    // Of generation, as older files have them.
    "begin_suppress_tokens",
    "bad_words_ids",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "length_penalty",
    "max_new_tokens",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_scores",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict_in_generate",
    "suppress_tokens",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
];

/// What a model is made of.
#[derive(Debug, Clone, PartialEq)]
pub enum Config {
    /// A language model in which a token sees those before it.
    Decoder(DecoderConfig),
    /// A model in which every token sees all others.
    Encoder(EncoderConfig),
}

impl Config {
    /// Reads the fields of a `config.json`, or of a section of another file that has the same. `file` is for messages.
    ///
    /// ```
    /// use brigade_hf::Config;
    ///
    /// let fields = serde_json::json!({ "model_type": "llama", "num_hidden_layers": 2, "rope_theta": 500000.0 });
    /// let Config::Decoder(config) = Config::from_fields("[model]", fields.as_object().unwrap())? else { unreachable!() };
    /// assert_eq!((config.layers.len(), config.hidden_size, config.head_dim), (2, 4096, 128));
    /// # Ok::<(), brigade_hf::HfError>(())
    /// ```
    ///
    /// # Errors
    /// If the family is not known, a field has a value that it cannot have, fields do not fit each other, or there are fields that are
    /// neither known nor harmless.
    pub fn from_fields(file: &str, object: &Map<String, Value>) -> Result<Self, HfError> {
        Self::with_task(file, object).map(|(config, _)| config)
    }

    fn with_task(file: &str, object: &Map<String, Value>) -> Result<(Self, Option<Task>), HfError> {
        let fields = Fields::new(file, object);
        let (family, task) = Family::of(&fields)?;
        for absent in ["is_encoder_decoder", "tie_encoder_decoder"] {
            fields.must_be(absent, false)?;
        }
        let (config, harmless) = match family {
            Family::Gpt2 => (Self::Decoder(gpt2::read(&fields)?), gpt2::HARMLESS),
            Family::Bert | Family::Roberta => {
                (Self::Encoder(encoder::read(&fields, family)?), encoder::HARMLESS)
            }
            _ => (Self::Decoder(llama::read(&fields, family)?), llama::HARMLESS),
        };
        fields.finish(family.model_type(), &[HARMLESS, harmless].concat())?;
        match &config {
            Self::Decoder(config) => config.check(file)?,
            Self::Encoder(config) => config.check(file)?,
        }
        Ok((config, task))
    }

    /// All fields, under the names that every version of `transformers` reads.
    ///
    /// # Errors
    /// If the family has no fields for this configuration.
    pub fn to_fields(&self) -> Result<Map<String, Value>, HfError> {
        let object = match self {
            Self::Decoder(config) if config.family == Family::Gpt2 => gpt2::write(config),
            Self::Decoder(config) => llama::write(config),
            Self::Encoder(config) => encoder::write(config),
        };
        let unwritable = |problem: String| HfError::Unwritable { family: self.family().to_string(), problem };
        match Self::from_fields("config.json", &object) {
            Ok(same) if same == *self => Ok(object),
            Ok(other) => Err(unwritable(difference(self, &other))),
            Err(error) => Err(unwritable(error.to_string())),
        }
    }

    /// Whose names its fields and tensors have.
    pub fn family(&self) -> Family {
        match self {
            Self::Decoder(config) => config.family,
            Self::Encoder(config) => config.family,
        }
    }

    /// Labels of a classification, to change them.
    pub fn labels_mut(&mut self) -> &mut Labels {
        match self {
            Self::Decoder(config) => &mut config.labels,
            Self::Encoder(config) => &mut config.labels,
        }
    }

    /// Labels of a classification.
    pub fn labels(&self) -> &Labels {
        match self {
            Self::Decoder(config) => &config.labels,
            Self::Encoder(config) => &config.labels,
        }
    }
}

/// The first thing in which what would be read differs, in words.
fn difference(is: &Config, read: &Config) -> String {
    let (is, read) = (format!("{is:#?}"), format!("{read:#?}"));
    let pair = is.lines().zip(read.lines()).find(|(is, read)| is != read).unwrap_or_default();
    let text = |line: &str| line.trim().trim_end_matches([',', ' ', '{', '(', '[']).to_owned();
    format!("`{}` would be read as `{}`", text(pair.0), text(pair.1))
}
