//! The fields of Llama, and of the families that have its form: Mistral, Qwen and Gemma.

use serde_json::{Map, Value, json};

use super::checks::{Checks, Labels, SpecialTokens, activation, layers};
use super::decoder::{Biases, DecoderConfig, Dropout, LayerConfig, Names, Norm, NormKind};
use super::family::Family;
use super::fields::Fields;
use super::rotary::{Rotary, RotaryScaling};
use crate::error::HfError;

/// Harmless fields of these families: how long sums were once split, which cache generation takes, what `layer_types` says already.
pub(super) const HARMLESS: &[&str] =
    &["pretraining_tp", "cache_implementation", "_sliding_window_pattern", "is_llama_config"];

/// The names of attention over all tokens before, and within a window.
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// Where a layer's rotation is.
const ROTARY_FIELDS: [&str; 3] = ["rope_theta", "rope_scaling", "rope_local_base_freq"];

/// What fields are where they are absent.
struct Absent {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    layers: usize,
    heads: usize,
    kv_heads: Option<usize>,
    head_dim: Option<usize>,
    max_positions: usize,
    tied: bool,
    tokens: [Option<u32>; 3],
    logit_softcap: Option<f64>,
    attention_softcap: Option<f64>,
}

impl Absent {
    fn of(family: Family) -> Self {
        let llama = Self {
            vocab_size: 32000,
            hidden_size: 4096,
            intermediate_size: 11008,
            layers: 32,
            heads: 32,
            kv_heads: None,
            head_dim: None,
            max_positions: 2048,
            tied: false,
            tokens: [Some(1), Some(2), None],
            logit_softcap: None,
            attention_softcap: None,
        };
        let qwen = Self {
            vocab_size: 151936,
            intermediate_size: 22016,
            kv_heads: Some(32),
            max_positions: 32768,
            tokens: [None; 3],
            ..llama
        };
        let gemma = Self {
            vocab_size: 262208,
            hidden_size: 2304,
            intermediate_size: 9216,
            layers: 26,
            heads: 8,
            kv_heads: Some(4),
            head_dim: Some(256),
            max_positions: 131072,
            tied: true,
            tokens: [Some(2), Some(1), Some(0)],
            ..llama
        };
        match family {
            Family::Mistral => {
                Self { intermediate_size: 14336, kv_heads: Some(8), max_positions: 4096 * 32, ..llama }
            }
            Family::Qwen2 => qwen,
            Family::Qwen3 => Self { head_dim: Some(128), ..qwen },
            Family::Gemma2 => Self {
                vocab_size: 256000,
                max_positions: 8192,
                logit_softcap: Some(30.0),
                attention_softcap: Some(50.0),
                ..gemma
            },
            Family::Gemma3 => gemma,
            _ => llama,
        }
    }
}

fn is_gemma(family: Family) -> bool {
    matches!(family, Family::Gemma2 | Family::Gemma3)
}

fn is_qwen(family: Family) -> bool {
    matches!(family, Family::Qwen2 | Family::Qwen3)
}

pub(super) fn read(fields: &Fields<'_>, family: Family) -> Result<DecoderConfig, HfError> {
    let (names, absent) = (Names::of(family), Absent::of(family));
    fields.must_be("is_causal", true)?;
    let hidden_size = fields.get(names.hidden_size, absent.hidden_size)?;
    let heads = fields.get(names.heads, absent.heads)?;
    let head_dim = match fields.get_or_null("head_dim", absent.head_dim)? {
        Some(head_dim) => head_dim,
        None => {
            Checks { file: fields.file }.head_dim((names.hidden_size, hidden_size), (names.heads, heads))?
        }
    };
    let max_positions = fields.get(names.max_positions, absent.max_positions)?;
    let tokens = SpecialTokens::read(fields, absent.tokens)?;
    let gemma = is_gemma(family);
    let activation_name = if gemma { "gelu_pytorch_tanh" } else { "silu" };
    let activation = activation(fields, names.activation, activation_name)?;
    if gemma {
        // Not what is used, but what older files have as well.
        fields.must_be("hidden_act", fields.get(names.activation, activation_name.to_owned())?)?;
    }
    let kind = if gemma { NormKind::RmsPlusOne } else { NormKind::Rms };
    Ok(DecoderConfig {
        family,
        vocab_size: fields.get("vocab_size", absent.vocab_size)?,
        hidden_size,
        intermediate_size: fields.get(names.intermediate_size, absent.intermediate_size)?,
        heads,
        kv_heads: fields.get_or_null(names.kv_heads, absent.kv_heads)?.unwrap_or(heads),
        head_dim,
        layers: layer_configs(fields, family, layers(fields, names.layers, absent.layers)?, max_positions)?,
        max_positions,
        learned_positions: false,
        activation,
        gated_mlp: true,
        norm: Norm { kind, epsilon: fields.get(names.epsilon, 1e-6)? },
        post_norms: gemma,
        qk_norm: matches!(family, Family::Qwen3 | Family::Gemma3),
        biases: biases(fields, family)?,
        tied_embeddings: fields.get("tie_word_embeddings", absent.tied)?,
        embedding_scale: if gemma { (hidden_size as f64).sqrt() } else { 1.0 },
        attention_scale: attention_scale(fields, family, head_dim)?,
        attention_softcap: attention_softcap(fields, family, absent.attention_softcap)?,
        logit_softcap: if gemma {
            fields.get_or_null("final_logit_softcapping", absent.logit_softcap)?
        } else {
            None
        },
        dropout: Dropout {
            attention: fields.get_or_null(names.attention_dropout, None)?.unwrap_or(0.0),
            ..Dropout::default()
        },
        initializer_range: fields.get("initializer_range", 0.02)?,
        tokens,
        labels: Labels::read(fields)?,
    })
}

fn attention_scale(fields: &Fields<'_>, family: Family, head_dim: usize) -> Result<f64, HfError> {
    const FIELD: &str = "query_pre_attn_scalar";
    let scalar = if is_gemma(family) { fields.get(FIELD, 256)? } else { head_dim };
    if scalar == 0 && is_gemma(family) {
        return Err(fields.wrong(FIELD, "a whole number from 1"));
    }
    Ok((scalar as f64).powf(-0.5))
}

/// Gemma 3 has the field, but its attention does not use it.
fn attention_softcap(
    fields: &Fields<'_>,
    family: Family,
    absent: Option<f64>,
) -> Result<Option<f64>, HfError> {
    const FIELD: &str = "attn_logit_softcapping";
    match family {
        Family::Gemma2 => fields.get_or_null(FIELD, absent),
        Family::Gemma3 => fields.must_be(FIELD, Value::Null).map(|()| None),
        _ => Ok(None),
    }
}

fn biases(fields: &Fields<'_>, family: Family) -> Result<Biases, HfError> {
    match family {
        Family::Mistral => Ok(Biases::default()),
        Family::Qwen2 => Ok(Biases { qkv: true, ..Biases::default() }),
        _ => {
            let attention = fields.get("attention_bias", false)?;
            let mlp = family == Family::Llama && fields.get("mlp_bias", false)?;
            Ok(Biases { qkv: attention, attention_output: attention, mlp })
        }
    }
}

/// What layers differ in.
fn layer_configs(
    fields: &Fields<'_>,
    family: Family,
    count: usize,
    max_positions: usize,
) -> Result<Vec<LayerConfig>, HfError> {
    let sliding = sliding(fields, family, count)?;
    let window = match family {
        Family::Llama => None,
        // Whether it is used, others say.
        _ => fields.get_or_null("sliding_window", Some(4096))?,
    };
    if family == Family::Gemma2 {
        // Not what is used, but what older files have as well.
        fields.must_be("sliding_window_size", window)?;
    }
    if window.is_none() && family != Family::Mistral && sliding.contains(&true) {
        return Err(fields.wrong("sliding_window", "a whole number from 1, since some layers have a window"));
    }
    let (full, local) = rotaries(fields, family, max_positions)?;
    let layer = |sliding| LayerConfig {
        window: window.filter(|_| sliding),
        rotary: Some(if sliding { local } else { full }),
    };
    Ok(sliding.into_iter().map(layer).collect())
}

/// Which layers have a window.
fn sliding(fields: &Fields<'_>, family: Family, count: usize) -> Result<Vec<bool>, HfError> {
    if matches!(family, Family::Llama | Family::Mistral) {
        return Ok(vec![family == Family::Mistral; count]);
    }
    let usual: Vec<bool> = match family {
        Family::Gemma2 => (0..count).map(|index| index % 2 == 0).collect(),
        Family::Gemma3 => {
            let period = fields.get_or_null("sliding_window_pattern", Some(6))?.unwrap_or(6);
            if period == 0 {
                return Err(fields.wrong("sliding_window_pattern", "a whole number from 1"));
            }
            (0..count).map(|index| (index + 1) % period != 0).collect()
        }
        _ => {
            let used = fields.get("use_sliding_window", false)?;
            let first = fields.get("max_window_layers", 28)?;
            (0..count).map(|index| used && index >= first).collect()
        }
    };
    if is_gemma(family) {
        fields.must_be("use_bidirectional_attention", false)?;
    }
    let Some(types) = fields.get_or_null::<Vec<String>>("layer_types", None)? else { return Ok(usual) };
    let allowed = || {
        fields.wrong("layer_types", &format!("{count} of \"{FULL}\" and \"{SLIDING}\", one for each layer"))
    };
    if types.len() != count || types.iter().any(|name| name != FULL && name != SLIDING) {
        return Err(allowed());
    }
    let sliding: Vec<bool> = types.iter().map(|name| name == SLIDING).collect();
    if is_qwen(family) && sliding.contains(&true) && !fields.get("use_sliding_window", false)? {
        return Err(fields.wrong("use_sliding_window", "true, since `layer_types` has layers with a window"));
    }
    Ok(sliding)
}

/// The rotations of layers without and with a window.
fn rotaries(fields: &Fields<'_>, family: Family, max_positions: usize) -> Result<(Rotary, Rotary), HfError> {
    fields.must_be("partial_rotary_factor", 1.0)?;
    let theta = fields.get_or_null::<f64>("rope_theta", None)?;
    let empty = Map::new();
    let nothing = || Fields::new(fields.file, &empty);
    let newer = fields.object("rope_parameters")?;
    let is_newer = newer.is_some();
    let (full, local) = match newer {
        Some(by_type) if family == Family::Gemma3 => {
            let both = (by_type.object(FULL)?, by_type.object(SLIDING)?);
            by_type.finish("rope_parameters", &[])?;
            both
        }
        None => (fields.object("rope_scaling")?, None),
        newer => (newer, None),
    };
    let usual = if family == Family::Gemma3 { 1_000_000.0 } else { 10_000.0 };
    let full = Rotary::read(&full.unwrap_or_else(nothing), theta.unwrap_or(usual), max_positions)?;
    if is_newer
        && let Some(older) = fields.object("rope_scaling")?
        && Rotary::read(&older, full.theta, max_positions)? != full
    {
        return Err(fields.wrong("rope_scaling", "absent, since there is `rope_parameters`, or the same"));
    }
    if family != Family::Gemma3 {
        return Ok((full, full));
    }
    let theta = fields.get_or_null::<f64>("rope_local_base_freq", None)?.unwrap_or(10_000.0);
    Ok((full, Rotary::read(&local.unwrap_or_else(nothing), theta, max_positions)?))
}

pub(super) fn write(config: &DecoderConfig) -> Map<String, Value> {
    let (family, names) = (config.family, Names::of(config.family));
    let mut object = Map::new();
    let mut add = |name: &str, value: Value| object.insert(name.to_owned(), value);
    add("model_type", json!(family.model_type()));
    add("vocab_size", json!(config.vocab_size));
    add(names.hidden_size, json!(config.hidden_size));
    add(names.intermediate_size, json!(config.intermediate_size));
    add(names.heads, json!(config.heads));
    add(names.kv_heads, json!(config.kv_heads));
    add("head_dim", json!(config.head_dim));
    add(names.layers, json!(config.layers.len()));
    add(names.max_positions, json!(config.max_positions));
    add(names.activation, json!(config.activation.name(family)));
    add(names.epsilon, json!(config.norm.epsilon));
    add("tie_word_embeddings", json!(config.tied_embeddings));
    add(names.attention_dropout, json!(config.dropout.attention));
    add("initializer_range", json!(config.initializer_range));
    if !matches!(family, Family::Mistral | Family::Qwen2) {
        add("attention_bias", json!(config.biases.qkv));
    }
    if family == Family::Llama {
        add("mlp_bias", json!(config.biases.mlp));
    }
    if is_gemma(family) {
        add("query_pre_attn_scalar", json!(config.attention_scale.powi(-2).round() as u64));
        add("final_logit_softcapping", json!(config.logit_softcap));
    }
    if family == Family::Gemma2 {
        add("attn_logit_softcapping", json!(config.attention_softcap));
    }
    write_layers(config, &mut add);
    config.tokens.write(&mut object);
    config.labels.write(&mut object);
    object
}

fn write_layers(config: &DecoderConfig, add: &mut impl FnMut(&str, Value) -> Option<Value>) {
    let family = config.family;
    let windows = || config.layers.iter().map(|layer| layer.window);
    let sliding = windows().position(|window| window.is_some());
    let rotary = |with_window: bool| {
        let layer = config.layers.iter().find(|layer| layer.window.is_some() == with_window);
        layer.and_then(|layer| layer.rotary)
    };
    let full = if family == Family::Gemma3 {
        rotary(false)
    } else {
        config.layers.first().and_then(|layer| layer.rotary)
    };
    let local = rotary(true).filter(|_| family == Family::Gemma3);
    if let Some(scaled) = local.filter(|local| local.scaling != RotaryScaling::None) {
        let by_type = [(FULL, full), (SLIDING, Some(scaled))];
        let by_type =
            by_type.into_iter().filter_map(|(name, rotary)| Some((name.to_owned(), rotary?.write())));
        add("rope_parameters", Value::Object(by_type.collect()));
    } else {
        if let Some(full) = full {
            add("rope_theta", json!(full.theta));
            add("rope_scaling", full.write_scaling());
        }
        if let Some(local) = local {
            add("rope_local_base_freq", json!(local.theta));
        }
    }
    if family != Family::Llama {
        add("sliding_window", json!(windows().flatten().next()));
    }
    if is_qwen(family) {
        add("use_sliding_window", json!(sliding.is_some()));
        add("max_window_layers", json!(sliding.unwrap_or(config.layers.len())));
    }
    if is_qwen(family) || is_gemma(family) {
        let types: Vec<_> = windows().map(|window| if window.is_some() { SLIDING } else { FULL }).collect();
        add("layer_types", json!(types));
    }
}

/// Fields that say together how heads are rotated, in files of any version.
pub(super) fn rotary_fields() -> impl Iterator<Item = &'static str> {
    ROTARY_FIELDS.into_iter().chain(["rope_parameters"])
}
