//! Decoders with rotary positions, RMS norms and gated feed-forward layers: Llama, Mistral, Qwen 2 and 3, Gemma 2 and 3, which are special cases of one [`DecoderConfig`].
//!
//! Blocks: `embedding`, `layers.0` … `layers.{n-1}`, `head`. Parameters have the names that they have in Hugging Face's files ([`mapping`]), and lie as there: linear
//! weights are `[outputs, inputs]`.

mod attention;
mod embedding_and_head;
mod layer;

use brigade_core::Chain;
use brigade_hf::config::{DecoderConfig, Family, LayerConfig, NormKind};
use burn::nn::DropoutConfig;
use burn::tensor::{Device, Tensor};

use crate::initial::normal;
use crate::layers::{LinearConfig, RmsNormConfig, RotaryTable, ScoreHead, activation};
use crate::lora::Adapters;
use crate::weights::WeightsMapping;
use crate::{Hidden, Logits, Tokens};
use attention::SelfAttention;
use embedding_and_head::{Embedding, Head, LastToken};
use layer::{FeedForward, Layer};

/// A configuration that no model here has.
#[derive(Debug, thiserror::Error)]
#[error("`{family}` with {what} is not supported")]
pub struct UnsupportedError {
    family: Family,
    what: String,
}

/// What blocks are built with.
struct Builder<'a> {
    config: &'a DecoderConfig,
    adapters: &'a Adapters,
    seed: u64,
    device: &'a Device,
    /// Rows of tables of positions.
    positions: usize,
}

/// The blocks of a decoder for rows of `positions` tokens, from [`Tokens`] to [`Logits`] of `[batch · positions, vocabulary]`. Nothing is allocated but tables of
/// positions: each parameter gets its values from (`seed`, name) when first read. Where there are adapters, all other parameters are frozen.
///
/// # Errors
/// If there is something in the configuration that none of the families here computes.
pub fn chain(
    config: &DecoderConfig,
    adapters: &Adapters,
    positions: usize,
    seed: u64,
    device: &Device,
) -> Result<Chain<Tokens, Logits>, UnsupportedError> {
    check(config)?;
    let builder = Builder { config, adapters, seed, device, positions };
    let chain = builder.layers().then("head", adapters.frozen(builder.head()));
    Ok(if config.tied_embeddings { chain.tie("head.lm_head", "embedding.embed_tokens") } else { chain })
}

/// A decoder that gives logits of a text's labels, `[batch, labels]`, by the last token of each row's first document. Blocks: as of [`chain`], but `norm` and `head` in place of
/// `head`, which is trained beside adapters.
///
/// # Errors
/// As [`chain`].
pub fn sequence_classification(
    config: &DecoderConfig,
    labels: usize,
    adapters: &Adapters,
    positions: usize,
    seed: u64,
    device: &Device,
) -> Result<Chain<Tokens, Tensor<2>>, UnsupportedError> {
    check(config)?;
    let builder = Builder { config, adapters, seed, device, positions };
    let norm = adapters.frozen(LastToken { norm: builder.norm(config.hidden_size) });
    let head = ScoreHead::new([labels, config.hidden_size], seed, builder.deviation(), device);
    Ok(builder.layers().begin_head().then("norm", norm).then("head", head))
}

/// Relative costs of the blocks of [`chain`], in order, found without a device.
pub fn costs(config: &DecoderConfig) -> Vec<f64> {
    let [width, inner] = [config.hidden_size, config.intermediate_size].map(|size| size as f64);
    let mixed = (config.query_size() + config.key_size()) as f64;
    let layer = 2.0 * width * mixed + 3.0 * width * inner;
    let layers = std::iter::repeat_n(layer, config.layers.len());
    std::iter::once(width).chain(layers).chain([config.vocab_size as f64 * width]).collect()
}

/// Refuses a configuration that no family here computes.
pub(crate) fn check(config: &DecoderConfig) -> Result<(), UnsupportedError> {
    let DecoderConfig { dropout, norm, .. } = config;
    refuse(
        config.family,
        &[
            (config.learned_positions, "learned positions"),
            (config.layers.iter().any(|layer| layer.rotary.is_none()), "layers without rotary positions"),
            (!config.gated_mlp, "feed-forward layers without gates"),
            (norm.kind == NormKind::Layer, "layer norms"),
            (dropout.embedding + dropout.residual > 0.0, "dropout of embeddings or of the layers' outputs"),
        ],
    )
}

/// Refuses the first thing that is so.
pub(crate) fn refuse(family: Family, cannot: &[(bool, &str)]) -> Result<(), UnsupportedError> {
    match cannot.iter().find(|(is_so, _)| *is_so) {
        None => Ok(()),
        Some((_, what)) => Err(UnsupportedError { family, what: (*what).to_owned() }),
    }
}

impl Builder<'_> {
    /// The blocks before the last norm.
    fn layers(&self) -> Chain<Tokens, Hidden> {
        let mut tables: Vec<(&LayerConfig, RotaryTable)> = Vec::new();
        let chain = Chain::new().then("embedding", self.adapters.frozen(self.embedding()));
        self.config.layers.iter().enumerate().fold(chain, |chain, (index, layer)| {
            // Layers with the same rotation share one table.
            let known = tables.iter().find(|(other, _)| other.rotary == layer.rotary);
            let table = known.map(|(_, table)| table.clone()).unwrap_or_else(|| {
                let table = self.rotary_table(layer);
                tables.push((layer, table.clone()));
                table
            });
            chain.then(format!("layers.{index}"), self.adapted(index, self.layer(index, layer, table)))
        })
    }

    fn deviation(&self) -> f32 {
        self.config.initializer_range as f32
    }

    fn linear(&self, path: &str, inputs: usize, outputs: usize, bias: bool) -> crate::layers::Linear {
        LinearConfig { inputs, outputs, bias, inputs_first: false }.init(
            self.seed,
            path,
            self.deviation(),
            self.device,
        )
    }

    fn norm(&self, width: usize) -> crate::layers::RmsNorm {
        let above_one = self.config.norm.kind == NormKind::RmsPlusOne;
        RmsNormConfig { epsilon: self.config.norm.epsilon, above_one }.init(width, self.device)
    }

    fn table(&self, path: &str) -> burn::module::Param<Tensor<2>> {
        let DecoderConfig { vocab_size, hidden_size, .. } = *self.config;
        normal(self.seed, path, [vocab_size, hidden_size], self.deviation(), self.device)
    }

    fn rotary_table(&self, layer: &LayerConfig) -> RotaryTable {
        let (frequencies, factor) = match &layer.rotary {
            Some(rotary) => (rotary.inverse_frequencies(self.config.head_dim), rotary.attention_factor()),
            None => (Vec::new(), 1.0),
        };
        RotaryTable::new(&frequencies, factor as f32, self.positions, self.device)
    }

    /// A layer with its adapters.
    fn adapted(&self, index: usize, layer: Layer) -> Layer {
        let mut layer = self.adapters.frozen(layer);
        for (name, linear) in layer.linears() {
            let path = format!("layers.{index}.{name}");
            linear.lora = self.adapters.lora(&format!("model.{path}"), linear, self.seed, &path, self.device);
        }
        layer
    }

    fn embedding(&self) -> Embedding {
        let scale = Some(self.config.embedding_scale).filter(|scale| *scale != 1.0);
        Embedding { embed_tokens: self.table("embedding.embed_tokens"), scale }
    }

    fn layer(&self, index: usize, of: &LayerConfig, rotary: RotaryTable) -> Layer {
        let config = self.config;
        let DecoderConfig { hidden_size: width, intermediate_size: inner, biases, .. } = *config;
        let (queries, keys) = (config.query_size(), config.key_size());
        let linear = |path: &str, inputs, outputs, bias| {
            self.linear(&format!("layers.{index}.{path}"), inputs, outputs, bias)
        };
        let self_attn = SelfAttention {
            q_proj: linear("self_attn.q_proj", width, queries, biases.qkv),
            k_proj: linear("self_attn.k_proj", width, keys, biases.qkv),
            v_proj: linear("self_attn.v_proj", width, keys, biases.qkv),
            o_proj: linear("self_attn.o_proj", queries, width, biases.attention_output),
            q_norm: config.qk_norm.then(|| self.norm(config.head_dim)),
            k_norm: config.qk_norm.then(|| self.norm(config.head_dim)),
            rotary,
            heads: config.heads,
            key_heads: config.kv_heads,
            window: of.window,
            scale: config.attention_scale,
            softcap: config.attention_softcap,
            dropout: DropoutConfig::new(config.dropout.attention).init(),
        };
        let mlp = FeedForward {
            gate_proj: linear("mlp.gate_proj", width, inner, biases.mlp),
            up_proj: linear("mlp.up_proj", width, inner, biases.mlp),
            down_proj: linear("mlp.down_proj", inner, width, biases.mlp),
            activation: activation(config.activation),
        };
        let further = || config.post_norms.then(|| self.norm(width));
        Layer {
            input_layernorm: self.norm(width),
            self_attn,
            post_attention_layernorm: self.norm(width),
            pre_feedforward_layernorm: further(),
            mlp,
            post_feedforward_layernorm: further(),
        }
    }

    fn head(&self) -> Head {
        Head {
            norm: self.norm(self.config.hidden_size),
            lm_head: self.table("head.lm_head"),
            softcap: self.config.logit_softcap,
        }
    }
}

/// Where Hugging Face's files have a decoder's parameters, and `peft`'s those of adapters.
pub fn mapping() -> WeightsMapping {
    WeightsMapping::default()
        .rule("embedding.embed_tokens", "model.embed_tokens.weight")
        .rule("layers.*.*.*.lora.a", "base_model.model.model.layers.*.*.*.lora_A.weight")
        .rule("layers.*.*.*.lora.b", "base_model.model.model.layers.*.*.*.lora_B.weight")
        .rule("layers.*.*.*.*", "model.layers.*.*.*.*")
        .rule("layers.*.*.*", "model.layers.*.*.*")
        .rule("head.norm.weight", "model.norm.weight")
        .rule("head.lm_head", "lm_head.weight")
}

/// Where Hugging Face's files have the parameters of [`sequence_classification`]; `head` is the name of the head's weight. A head that no file has begins with its initial values.
pub(crate) fn classifier_mapping(head: String) -> WeightsMapping {
    mapping()
        .rule("norm.norm.weight", "model.norm.weight")
        .rule("head.score.weight", head)
        .optional("head.*.*")
}
