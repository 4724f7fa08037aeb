//! GPT-2's fields.

use serde_json::{Map, Value, json};

use super::checks::{Checks, Labels, SpecialTokens, activation, layers};
use super::decoder::{Biases, DecoderConfig, Dropout, LayerConfig, Names, Norm, NormKind};
use super::family::Family;
use super::fields::Fields;
use crate::error::HfError;

/// What the other fields of GPT-2 are: of heads that classify pairs of texts, of layers that no longer exist, or of rounding alone.
pub(super) const HARMLESS: &[&str] = &[
    "n_ctx",
    "n_special",
    "predict_special_tokens",
    "reorder_and_upcast_attn",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
];

pub(super) fn read(fields: &Fields<'_>) -> Result<DecoderConfig, HfError> {
    let names = Names::of(Family::Gpt2);
    for absent in ["scale_attn_by_inverse_layer_idx", "add_cross_attention"] {
        fields.must_be(absent, false)?;
    }
    fields.must_be("is_causal", true)?;
    let hidden_size = fields.get(names.hidden_size, 768)?;
    let heads = fields.get(names.heads, 12)?;
    let head_dim =
        Checks { file: fields.file }.head_dim((names.hidden_size, hidden_size), (names.heads, heads))?;
    let scaled = fields.get("scale_attn_weights", true)?;
    let tokens = SpecialTokens::read(fields, [Some(50256), Some(50256), None])?;
    let layers = layers(fields, names.layers, 12)?;
    let residual = fields.get(names.residual_dropout, 0.1)?;
    Ok(DecoderConfig {
        family: Family::Gpt2,
        vocab_size: fields.get("vocab_size", 50257)?,
        hidden_size,
        intermediate_size: fields.get_or_null(names.intermediate_size, None)?.unwrap_or(4 * hidden_size),
        heads,
        kv_heads: heads,
        head_dim,
        layers: vec![LayerConfig { window: None, rotary: None }; layers],
        max_positions: fields.get(names.max_positions, 1024)?,
        learned_positions: true,
        activation: activation(fields, names.activation, "gelu_new")?,
        gated_mlp: false,
        norm: Norm { kind: NormKind::Layer, epsilon: fields.get(names.epsilon, 1e-5)? },
        post_norms: false,
        qk_norm: false,
        biases: Biases { qkv: true, attention_output: true, mlp: true },
        tied_embeddings: fields.get("tie_word_embeddings", true)?,
        embedding_scale: 1.0,
        attention_scale: if scaled { (head_dim as f64).powf(-0.5) } else { 1.0 },
        attention_softcap: None,
        logit_softcap: None,
        dropout: Dropout {
            embedding: fields.get(names.embedding_dropout, 0.1)?,
            attention: fields.get(names.attention_dropout, 0.1)?,
            residual,
            classifier: 0.0,
        },
        initializer_range: fields.get("initializer_range", 0.02)?,
        tokens,
        labels: Labels::read(fields)?,
    })
}

pub(super) fn write(config: &DecoderConfig) -> Map<String, Value> {
    let names = Names::of(Family::Gpt2);
    let inner = Some(config.intermediate_size).filter(|inner| *inner != 4 * config.hidden_size);
    let mut object = Map::new();
    let fields = [
        ("model_type", json!(Family::Gpt2.model_type())),
        ("vocab_size", json!(config.vocab_size)),
        (names.hidden_size, json!(config.hidden_size)),
        (names.intermediate_size, json!(inner)),
        (names.heads, json!(config.heads)),
        (names.layers, json!(config.layers.len())),
        (names.max_positions, json!(config.max_positions)),
        (names.activation, json!(config.activation.name(Family::Gpt2))),
        (names.epsilon, json!(config.norm.epsilon)),
        ("tie_word_embeddings", json!(config.tied_embeddings)),
        ("scale_attn_weights", json!(config.attention_scale != 1.0)),
        (names.embedding_dropout, json!(config.dropout.embedding)),
        (names.attention_dropout, json!(config.dropout.attention)),
        (names.residual_dropout, json!(config.dropout.residual)),
        ("initializer_range", json!(config.initializer_range)),
    ];
    object.extend(fields.map(|(name, value)| (name.to_owned(), value)));
    config.tokens.write(&mut object);
    config.labels.write(&mut object);
    object
}
