//! Encoders: models in which every token sees all others.

use serde_json::{Map, Value, json};

use super::checks::{Checks, Labels, SpecialTokens, activation, layers};
use super::decoder::{ActivationFunction, Dropout, Names};
use super::family::Family;
use super::fields::Fields;
use crate::error::HfError;

/// Harmless fields of these families: poolers that no longer exist, and which cache a decoder would have.
pub(super) const HARMLESS: &[&str] = &[
    "directionality",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
];

/// Everything that an encoder computes by.
///
/// Embeddings of tokens, positions and types are added and normed. A layer computes `x = norm(x + attention(x))` and
/// `x = norm(x + mlp(x))`; norms are layer norms, all linear layers have biases, and scores are divided by `√head_dim`.
/// A head of masked tokens is a linear layer, the activation (for RoBERTa GELU, whichever the MLP has), a layer norm, and the table of embeddings with a bias of its own.
/// A head of texts takes the first token: for BERT by the pooler (linear, tanh), dropout and a linear layer; for RoBERTa by dropout,
/// a linear layer, tanh, dropout and a linear layer.
#[derive(Debug, Clone, PartialEq)]
pub struct EncoderConfig {
    /// Whose names its fields and tensors have.
    pub family: Family,
    /// Rows of the table of embeddings.
    pub vocab_size: usize,
    /// Numbers of a token between layers.
    pub hidden_size: usize,
    /// Numbers of a token within an MLP.
    pub intermediate_size: usize,
    /// Number of layers.
    pub layers: usize,
    /// Heads of attention: a divisor of the hidden size.
    pub heads: usize,
    /// The longest row.
    pub max_positions: usize,
    /// The row of the table of positions that the first token gets; the table has `position_offset + max_positions` rows. RoBERTa counts
    /// from the row after that of the padding token, over the tokens other than padding.
    pub position_offset: usize,
    /// Rows of the table of token types, of which a single text has the first.
    pub token_types: usize,
    /// The activation of the MLP, and of BERT's head of masked tokens.
    pub activation: ActivationFunction,
    /// What layer norms add to the variance.
    pub norm_epsilon: f64,
    /// Parts that training leaves out at random.
    pub dropout: Dropout,
    /// The standard deviation of initial weights.
    pub initializer_range: f64,
    /// Tokens with a meaning of their own. `transformers` gives the padding token's embedding no gradient.
    pub tokens: SpecialTokens,
    /// Labels of a classification.
    pub labels: Labels,
}

impl EncoderConfig {
    /// Numbers of a head.
    pub fn head_dim(&self) -> usize {
        self.hidden_size / self.heads
    }

    pub(super) fn check(&self, file: &str) -> Result<(), HfError> {
        let names = Names::of(self.family);
        let checks = Checks { file };
        checks.head_dim((names.hidden_size, self.hidden_size), (names.heads, self.heads))?;
        checks.positive(&[
            ("vocab_size", self.vocab_size),
            (names.hidden_size, self.hidden_size),
            (names.intermediate_size, self.intermediate_size),
            (names.layers, self.layers),
            ("type_vocab_size", self.token_types),
        ])?;
        checks.above_zero(&[(names.epsilon, Some(self.norm_epsilon))])?;
        checks.deviation(self.initializer_range)?;
        checks.probabilities(&[
            (names.residual_dropout, self.dropout.residual),
            (names.attention_dropout, self.dropout.attention),
            ("classifier_dropout", self.dropout.classifier),
        ])
    }
}

pub(super) fn read(fields: &Fields<'_>, family: Family) -> Result<EncoderConfig, HfError> {
    let names = Names::of(family);
    let roberta = family == Family::Roberta;
    for absent in ["is_decoder", "add_cross_attention"] {
        fields.must_be(absent, false)?;
    }
    fields.must_be("tie_word_embeddings", true)?;
    fields.must_be("position_embedding_type", "absolute")?;
    let absent = if roberta { [Some(0), Some(2), Some(1)] } else { [None, None, Some(0)] };
    let tokens = SpecialTokens::read(fields, absent)?;
    let position_offset = match tokens.pad {
        _ if !roberta => 0,
        Some(pad) => pad as usize + 1,
        None => {
            return Err(
                fields.wrong("pad_token_id", "a whole number from 0, since positions are counted from it")
            );
        }
    };
    let rows: usize = fields.get(names.max_positions, 512)?;
    let max_positions = rows.checked_sub(position_offset).filter(|positions| *positions > 0);
    let max_positions = max_positions.ok_or_else(|| {
        fields.wrong(names.max_positions, &format!("above {position_offset}, where positions begin"))
    })?;
    let hidden_dropout = fields.get(names.residual_dropout, 0.1)?;
    Ok(EncoderConfig {
        family,
        vocab_size: fields.get("vocab_size", if roberta { 50265 } else { 30522 })?,
        hidden_size: fields.get(names.hidden_size, 768)?,
        intermediate_size: fields.get(names.intermediate_size, 3072)?,
        layers: layers(fields, names.layers, 12)?,
        heads: fields.get(names.heads, 12)?,
        max_positions,
        position_offset,
        token_types: fields.get("type_vocab_size", 2)?,
        activation: activation(fields, names.activation, "gelu")?,
        norm_epsilon: fields.get(names.epsilon, 1e-12)?,
        dropout: Dropout {
            embedding: hidden_dropout,
            attention: fields.get(names.attention_dropout, 0.1)?,
            residual: hidden_dropout,
            classifier: fields.get_or_null("classifier_dropout", None)?.unwrap_or(hidden_dropout),
        },
        initializer_range: fields.get("initializer_range", 0.02)?,
        tokens,
        labels: Labels::read(fields)?,
    })
}

pub(super) fn write(config: &EncoderConfig) -> Map<String, Value> {
    let names = Names::of(config.family);
    let dropout = &config.dropout;
    let mut object = Map::new();
    let fields = [
        ("model_type", json!(config.family.model_type())),
        ("vocab_size", json!(config.vocab_size)),
        (names.hidden_size, json!(config.hidden_size)),
        (names.intermediate_size, json!(config.intermediate_size)),
        (names.layers, json!(config.layers)),
        (names.heads, json!(config.heads)),
        (names.max_positions, json!(config.max_positions + config.position_offset)),
        ("type_vocab_size", json!(config.token_types)),
        (names.activation, json!(config.activation.name(config.family))),
        (names.epsilon, json!(config.norm_epsilon)),
        (names.residual_dropout, json!(dropout.residual)),
        (names.attention_dropout, json!(dropout.attention)),
        (
            "classifier_dropout",
            json!(Some(dropout.classifier).filter(|classifier| *classifier != dropout.residual)),
        ),
        ("position_embedding_type", json!("absolute")),
        ("initializer_range", json!(config.initializer_range)),
    ];
    object.extend(fields.map(|(name, value)| (name.to_owned(), value)));
    config.tokens.write(&mut object);
    config.labels.write(&mut object);
    object
}
