//! BERT (Devlin et al., 2018) and RoBERTa (Liu et al., 2019), which are special cases of one [`EncoderConfig`]: every token sees all others of its document.
//!
//! Blocks: `embedding`, `layers.0` … `layers.{n-1}`, and for a task `head`. Files have parameters by the names that Hugging Face's libraries give them ([`mapping`]), and they lie as
//! there: linear weights are `[outputs, inputs]`.
//!
//! Rows are padded by [`Documents`](crate::Documents): a text is the first document of its row, and what is left of the row belongs to others.

mod embedding_and_head;
mod layer;
mod masking;
mod model;

use brigade_core::Chain;
use brigade_hf::Task;
use brigade_hf::config::{ActivationFunction, EncoderConfig, Family};
use burn::module::{Initializer, Param};
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Device, Tensor};

use crate::Logits;
use crate::initial::normal;
use crate::layers::{LayerNorm, Linear, LinearConfig, activation};
use crate::lora::{Adapters, in_adapters};
use crate::tokens::{Hidden, Tokens};
use crate::weights::WeightsMapping;
use embedding_and_head::{Embedding, LabelHead, MaskedHead, MeanPooling};
use layer::{Layer, Output, SelfAttention};

pub use masking::{Masking, with_masked_tokens};
pub use model::{Encoder, EncoderError};

/// An encoder without a head, from [`Tokens`] to the vectors of its last layer. Nothing is allocated: each parameter gets its values from (`seed`, name) when first read.
pub fn chain(config: &EncoderConfig, seed: u64, device: &Device) -> Chain<Tokens, Hidden> {
    Builder { config, adapters: &Adapters::default(), seed, device }.layers()
}

/// An encoder of whole texts: the mean of the vectors of each row's text, `[batch, width]`, if `normalized` scaled to a length of 1, as `sentence-transformers` does.
pub fn sentences(
    config: &EncoderConfig,
    normalized: bool,
    seed: u64,
    device: &Device,
) -> Chain<Tokens, Tensor<2>> {
    chain(config, seed, device).then("pooling", MeanPooling { normalized })
}

/// An encoder that predicts tokens: logits of `[batch · positions, vocabulary]`. Its head shares the table of embeddings. Where there are adapters, all other parameters are
/// frozen.
pub fn masked_lm(
    config: &EncoderConfig,
    adapters: &Adapters,
    seed: u64,
    device: &Device,
) -> Chain<Tokens, Logits> {
    let builder = Builder { config, adapters, seed, device };
    let head = adapters.frozen(builder.masked_head());
    builder.layers().then("head", head).tie("head.words", "embedding.words")
}

/// An encoder that gives logits of a text's labels, `[batch, labels]`; where there is one label, it is the number that a regression predicts. Where there are adapters, all
/// other parameters but those of the head are frozen.
pub fn sequence_classification(
    config: &EncoderConfig,
    adapters: &Adapters,
    seed: u64,
    device: &Device,
) -> Chain<Tokens, Tensor<2>> {
    let builder = Builder { config, adapters, seed, device };
    builder.layers().then("head", builder.label_head())
}

/// Relative costs of the blocks of a task's chain, in order, found without a device.
pub fn costs(config: &EncoderConfig, task: Task) -> Vec<f64> {
    let [width, inner, vocabulary, labels] =
        [config.hidden_size, config.intermediate_size, config.vocab_size, config.labels.names.len()]
            .map(|size| size as f64);
    let layer = 4.0 * width * (width + 1.0) + inner * (2.0 * width + 1.0) + 5.0 * width;
    let head = match task {
        Task::MaskedLanguageModel => Some(width * (width + vocabulary)),
        Task::SequenceClassification => Some(width * labels),
        Task::Base | Task::CausalLanguageModel => None,
    };
    let layers = std::iter::repeat_n(layer, config.layers);
    std::iter::once(width).chain(layers).chain(head).collect()
}

struct Builder<'a> {
    config: &'a EncoderConfig,
    adapters: &'a Adapters,
    seed: u64,
    device: &'a Device,
}

impl Builder<'_> {
    /// The blocks without a head.
    fn layers(&self) -> Chain<Tokens, Hidden> {
        let chain = Chain::new().then("embedding", self.adapters.frozen(self.embedding()));
        (0..self.config.layers).fold(chain, |chain, index| {
            chain.then(format!("layers.{index}"), self.adapted(index, self.layer(index)))
        })
    }

    /// A layer with its adapters.
    fn adapted(&self, index: usize, layer: Layer) -> Layer {
        let mut layer = self.adapters.frozen(layer);
        for (path, name, linear) in layer.linears() {
            let stored = format!("{}encoder.layer.{index}.{name}", prefix(self.config.family));
            let path = format!("layers.{index}.{path}");
            linear.lora = self.adapters.lora(&stored, linear, self.seed, &path, self.device);
        }
        layer
    }

    fn table(&self, path: &str, rows: usize) -> Param<Tensor<2>> {
        let deviation = self.config.initializer_range as f32;
        normal(self.seed, path, [rows, self.config.hidden_size], deviation, self.device)
    }

    fn linear(&self, path: &str, inputs: usize, outputs: usize) -> Linear {
        let config = LinearConfig { inputs, outputs, bias: true, inputs_first: false };
        config.init(self.seed, path, self.config.initializer_range as f32, self.device)
    }

    fn norm(&self) -> LayerNorm {
        LayerNorm::new(self.config.hidden_size, self.config.norm_epsilon, self.device)
    }

    fn embedding(&self) -> Embedding {
        let EncoderConfig { vocab_size, max_positions, position_offset, token_types, .. } = *self.config;
        Embedding {
            words: self.table("embedding.words", vocab_size),
            positions: self.table("embedding.positions", position_offset + max_positions),
            types: self.table("embedding.types", token_types),
            norm: self.norm(),
            dropout: dropout(self.config.dropout.embedding),
            padding: position_offset.checked_sub(1),
        }
    }

    fn layer(&self, index: usize) -> Layer {
        let EncoderConfig { hidden_size: width, intermediate_size: inner, ref dropout, .. } = *self.config;
        let linear =
            |path: &str, inputs, outputs| self.linear(&format!("layers.{index}.{path}"), inputs, outputs);
        let output = |path: &str, inputs| Output {
            dense: linear(&format!("{path}.dense"), inputs, width),
            norm: self.norm(),
            dropout: self::dropout(dropout.residual),
        };
        Layer {
            attention: SelfAttention {
                query: linear("attention.query", width, width),
                key: linear("attention.key", width, width),
                value: linear("attention.value", width, width),
                heads: self.config.heads,
                dropout: self::dropout(dropout.attention),
            },
            attention_output: output("attention_output", width),
            intermediate: linear("intermediate", width, inner),
            activation: activation(self.config.activation),
            output: output("output", inner),
        }
    }

    fn masked_head(&self) -> MaskedHead {
        let EncoderConfig { family, vocab_size, hidden_size: width, .. } = *self.config;
        // That of RoBERTa has this one whatever the MLP has.
        let of_head =
            if family == Family::Roberta { ActivationFunction::Gelu } else { self.config.activation };
        MaskedHead {
            dense: self.linear("head.dense", width, width),
            activation: activation(of_head),
            norm: self.norm(),
            words: self.table("head.words", vocab_size),
            bias: Initializer::Zeros.init([vocab_size], self.device),
        }
    }

    fn label_head(&self) -> LabelHead {
        let EncoderConfig { family, hidden_size: width, ref labels, ref dropout, .. } = *self.config;
        LabelHead {
            dropout_before: self::dropout(if family == Family::Roberta { dropout.classifier } else { 0.0 }),
            dense: self.linear("head.dense", width, width),
            dropout: self::dropout(dropout.classifier),
            labels: self.linear("head.labels", width, labels.names.len()),
        }
    }
}

fn dropout(probability: f64) -> Dropout {
    DropoutConfig::new(probability).init()
}

/// What stands before the names of an encoder's tensors in files of a model with a head.
fn prefix(family: Family) -> &'static str {
    if family == Family::Roberta { "roberta." } else { "bert." }
}

/// Where Hugging Face's files have the parameters of a family with the head of a task, and `peft`'s those of adapters. Files of a model without a head are read as well, and
/// those of older versions of `transformers`, which call the weights and biases of norms gamma and beta; a head that is in no file begins with its initial values.
pub fn mapping(family: Family, task: Task) -> WeightsMapping {
    mapping_with_head(family, task, str::to_owned)
}

/// As [`mapping`], of a model whose head lies among its adapters where it has labels.
fn mapping_beside_adapters(family: Family, task: Task) -> WeightsMapping {
    match task {
        Task::SequenceClassification => mapping_with_head(family, task, in_adapters),
        _ => mapping(family, task),
    }
}

fn mapping_with_head(family: Family, task: Task, of_head: fn(&str) -> String) -> WeightsMapping {
    let at = |name: &str| match task {
        Task::Base => name.to_owned(),
        _ => format!("{}{name}", prefix(family)),
    };
    let mapping = WeightsMapping::default()
        .rule("embedding.norm.*", at("embeddings.LayerNorm.*"))
        .rule("embedding.words", at("embeddings.word_embeddings.weight"))
        .rule("embedding.positions", at("embeddings.position_embeddings.weight"))
        .rule("embedding.types", at("embeddings.token_type_embeddings.weight"));
    let linears = [
        ("layers.*.attention.*", "encoder.layer.*.attention.self.*"),
        ("layers.*.attention_output.dense", "encoder.layer.*.attention.output.dense"),
        ("layers.*.intermediate", "encoder.layer.*.intermediate.dense"),
        ("layers.*.output.dense", "encoder.layer.*.output.dense"),
    ];
    let mapping = linears.into_iter().fold(mapping, |mapping, (path, name)| {
        let lora = |matrix: &str| in_adapters(&at(&format!("{name}.lora_{matrix}.weight")));
        mapping
            .rule(format!("{path}.lora.a"), lora("A"))
            .rule(format!("{path}.lora.b"), lora("B"))
            .rule(format!("{path}.*"), at(&format!("{name}.*")))
    });
    let mapping = mapping
        .rule("layers.*.attention_output.norm.*", at("encoder.layer.*.attention.output.LayerNorm.*"))
        .rule("layers.*.output.norm.*", at("encoder.layer.*.output.LayerNorm.*"))
        .with_optional_prefix(prefix(family))
        .with_other_end("LayerNorm.weight", "LayerNorm.gamma")
        .with_other_end("LayerNorm.bias", "LayerNorm.beta")
        .optional("head.*")
        .optional("head.*.*");
    let head = |rules: &[(&str, &str)]| {
        rules.iter().fold(mapping.clone(), |mapping, (path, name)| mapping.rule(*path, of_head(name)))
    };
    match (task, family) {
        (Task::MaskedLanguageModel, Family::Roberta) => head(&[
            ("head.dense.*", "lm_head.dense.*"),
            ("head.norm.*", "lm_head.layer_norm.*"),
            ("head.bias", "lm_head.bias"),
        ]),
        (Task::MaskedLanguageModel, _) => head(&[
            ("head.dense.*", "cls.predictions.transform.dense.*"),
            ("head.norm.*", "cls.predictions.transform.LayerNorm.*"),
            ("head.bias", "cls.predictions.bias"),
        ]),
        (Task::SequenceClassification, Family::Roberta) => {
            head(&[("head.dense.*", "classifier.dense.*"), ("head.labels.*", "classifier.out_proj.*")])
        }
        (Task::SequenceClassification, _) => {
            head(&[("head.dense.*", "bert.pooler.dense.*"), ("head.labels.*", "classifier.*")])
        }
        (Task::Base | Task::CausalLanguageModel, _) => mapping,
    }
}
