//! GPT-2: pre-norm transformer with learned positions (Radford et al., "Language Models are
//! Unsupervised Multitask Learners", 2019).
//!
//! Blocks: `embedding`, `h.0` … `h.{layers-1}`, `head`. Parameters carry Hugging Face's GPT-2 names
//! in files ([`mapping`]); linear weights are `[in, out]`, as that project's `Conv1D` keeps them.

mod blocks;
mod targets;

use brigade_core::{Batch, Chain, Model};
use burn::module::Param;
use burn::nn::{DropoutConfig, LayerNorm, LayerNormConfig};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::Logits;
use crate::initial::normal;
use crate::layers::{Linear, LinearConfig, ScoreHead};
use crate::lora::{Adapters, in_adapters};
use crate::tokens::{Hidden, Tokens};
use crate::weights::WeightsMapping;
use blocks::{Attention, Embedding, FeedForward, Head, LastToken, Layer};

pub(crate) use targets::cross_entropy_with;
pub use targets::{ACCURACY, Targets, cross_entropy};

/// That of GPT-2, which is Burn's default, too.
pub(crate) const EPSILON: f64 = 1e-5;

/// GPT-2's own deviation of initial weights.
fn usual_deviation() -> f64 {
    0.02
}

/// The activation of the feed-forward layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gelu {
    /// Exact, by the error function.
    #[default]
    Gelu,
    /// The tanh approximation; `gelu_new` in Hugging Face's files, and what OpenAI's weights were trained with.
    GeluTanh,
}

/// Shape of a GPT-2 model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GptConfig {
    /// Rows of the token embedding; token ids are below it. In a configuration, 0 stands for the size of the tokenizer.
    pub vocabulary: usize,
    /// Longest sequence, in tokens. In a configuration with a model in a folder, 0 stands for as many as it has positions for, but at most 1,024.
    pub sequence_length: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Transformer layers.
    pub layers: usize,
    /// Attention heads; their number divides the width.
    pub heads: usize,
    /// Whether the head shares the token embedding's weights.
    pub tied_head: bool,
    /// The activation of the feed-forward layers.
    pub activation: Gelu,
    /// Dropout probability for embeddings, attention probabilities, and the outputs of attention and feed-forward layers.
    #[serde(default)]
    pub dropout: f64,
    /// Standard deviation of initial weights. Those of the two layers of a block that write to the residual stream have it divided by sqrt(2 · `layers`).
    #[serde(default = "usual_deviation")]
    pub initializer_range: f64,
}

/// What the `config.json` of a GPT-2 may say otherwise than a [`GptConfig`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct GptDetails {
    /// Width of the feed-forward layers.
    pub inner: usize,
    /// What norms add to the variance.
    pub epsilon: f64,
    /// What the products of queries and keys are multiplied by.
    pub attention_scale: f64,
    /// Dropout probabilities: of embeddings, of attention probabilities, and of the outputs of attention and feed-forward layers.
    pub dropout: [f64; 3],
}

impl From<&GptConfig> for GptDetails {
    fn from(config: &GptConfig) -> Self {
        Self {
            inner: config.width.saturating_mul(4),
            epsilon: EPSILON,
            attention_scale: (config.width as f64 / config.heads as f64).powf(-0.5),
            dropout: [config.dropout; 3],
        }
    }
}

/// Why a [`GptConfig`] is invalid.
#[derive(Debug, thiserror::Error)]
#[error("model.{option} = {given} is not possible: {allowed}")]
pub struct ShapeError {
    option: &'static str,
    given: String,
    allowed: String,
}

impl ShapeError {
    fn new(option: &'static str, given: impl ToString, allowed: impl Into<String>) -> Self {
        Self { option, given: given.to_string(), allowed: allowed.into() }
    }
}

impl GptConfig {
    /// Checks that the shape is valid.
    ///
    /// # Errors
    /// If a size is 0 or too large, the heads do not divide the width, the dropout is not a probability, or the deviation is not a number from 0.
    pub fn check(&self) -> Result<(), ShapeError> {
        let sizes = [
            ("vocabulary", self.vocabulary),
            ("sequence_length", self.sequence_length),
            ("width", self.width),
            ("layers", self.layers),
            ("heads", self.heads),
        ];
        if let Some((option, given)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(ShapeError::new(option, given, "it must be at least 1"));
        }
        let most = [
            ("vocabulary", self.vocabulary, 1 << 24),
            ("sequence_length", self.sequence_length, 1 << 17),
            ("width", self.width, 1 << 17),
            ("layers", self.layers, 1 << 14),
        ];
        if let Some((option, given, most)) = most.into_iter().find(|(_, size, most)| size > most) {
            return Err(ShapeError::new(option, given, format!("it must be at most {most}")));
        }
        if !self.width.is_multiple_of(self.heads) {
            let allowed = format!("the number of heads must divide model.width = {}", self.width);
            return Err(ShapeError::new("heads", self.heads, allowed));
        }
        // In fp32, in which layers compute, it must not be 1 either.
        if !(0.0..1.0).contains(&(self.dropout as f32)) {
            return Err(ShapeError::new("dropout", self.dropout, "it must be at least 0 and below 1"));
        }
        if !(0.0..=1e6).contains(&self.initializer_range) {
            let allowed = "it must be a number from 0 to 1e6";
            return Err(ShapeError::new("initializer_range", self.initializer_range, allowed));
        }
        Ok(())
    }

    /// The model's blocks: [`chain`], without adapters.
    ///
    /// # Errors
    /// As [`GptConfig::check`].
    pub fn chain(&self, seed: u64, device: &Device) -> Result<Chain<Tokens, Logits>, ShapeError> {
        chain(self, &Adapters::default(), seed, device)
    }

    /// Relative costs of the model's blocks, in order: embedding, layers, head. They are those of
    /// [`chain`](Self::chain), found without a device.
    ///
    /// # Errors
    /// As [`GptConfig::check`].
    pub fn costs(&self) -> Result<Vec<f64>, ShapeError> {
        self.costs_with(&self.into())
    }

    /// The same with details.
    pub(crate) fn costs_with(&self, details: &GptDetails) -> Result<Vec<f64>, ShapeError> {
        self.check()?;
        let (width, inner) = (self.width as f64, details.inner as f64);
        // Four squares of attention, two matrices of the feed-forward layer; biases and norms.
        let layer = 4.0 * width * width + 2.0 * width * inner + 9.0 * width + inner;
        let layers = std::iter::repeat_n(layer, self.layers);
        Ok(std::iter::once(width).chain(layers).chain([self.vocabulary as f64 * width]).collect())
    }

    /// A micro-batch of `sequences` that all have the first token throughout, to measure what the model needs:
    /// [`Model::measure_activations`].
    pub fn blank_batch(&self, sequences: usize, device: &Device) -> Batch<Tokens, Targets> {
        let tokens = || Tensor::zeros([sequences, self.sequence_length], device);
        let targets = Targets { tokens: tokens(), mask: None };
        Batch::new(tokens().into(), targets, sequences * self.sequence_length)
    }

    /// The model with its loss, ready to train: [`GptConfig::chain`] and the cross entropy of the next token, with the share of
    /// tokens that it predicts best as the metric [`ACCURACY`].
    ///
    /// # Errors
    /// As [`GptConfig::check`].
    pub fn model(&self, seed: u64, device: &Device) -> Result<Model<Tokens, Logits, Targets>, ShapeError> {
        Ok(self.chain(seed, device)?.loss_with_metrics([ACCURACY], cross_entropy))
    }
}

/// A GPT-2's blocks, from [`Tokens`] to [`Logits`] of `[batch · sequence, vocabulary]`. Nothing is allocated: each parameter gets its values from (`seed`, name) when first
/// read. Where there are adapters, all other parameters are frozen.
///
/// Weights are normal with the configuration's deviation, those of the two layers that write to the residual
/// stream with that divided by sqrt(2 · layers); biases 0, norms 1, as in GPT-2.
///
/// # Errors
/// As [`GptConfig::check`].
pub fn chain(
    config: &GptConfig,
    adapters: &Adapters,
    seed: u64,
    device: &Device,
) -> Result<Chain<Tokens, Logits>, ShapeError> {
    chain_with((config, &config.into()), adapters, seed, device)
}

/// [`chain`] with details.
pub(crate) fn chain_with(
    (config, details): (&GptConfig, &GptDetails),
    adapters: &Adapters,
    seed: u64,
    device: &Device,
) -> Result<Chain<Tokens, Logits>, ShapeError> {
    config.check()?;
    let builder = Builder { config, details, adapters, seed, device };
    let chain = builder.layers().then("head", adapters.frozen(builder.head()));
    Ok(if config.tied_head { chain.tie("head.lm_head", "embedding.wte") } else { chain })
}

/// A GPT-2 that gives logits of a text's labels, `[batch, labels]`, by the last token of each row's first document. Blocks: as of [`chain`], but `norm` and `head` in place of
/// `head`, which is trained beside adapters.
///
/// # Errors
/// As [`GptConfig::check`].
pub(crate) fn sequence_classification(
    (config, details): (&GptConfig, &GptDetails),
    labels: usize,
    adapters: &Adapters,
    seed: u64,
    device: &Device,
) -> Result<Chain<Tokens, Tensor<2>>, ShapeError> {
    config.check()?;
    let builder = Builder { config, details, adapters, seed, device };
    let head = ScoreHead::new([labels, config.width], seed, builder.deviation(), device);
    let norm = adapters.frozen(LastToken { ln_f: builder.norm(), epsilon: details.epsilon });
    Ok(builder.layers().begin_head().then("norm", norm).then("head", head))
}

struct Builder<'a> {
    config: &'a GptConfig,
    details: &'a GptDetails,
    adapters: &'a Adapters,
    seed: u64,
    device: &'a Device,
}

impl Builder<'_> {
    /// The blocks before the last norm.
    fn layers(&self) -> Chain<Tokens, Hidden> {
        let chain = Chain::new().then("embedding", self.adapters.frozen(self.embedding()));
        (0..self.config.layers).fold(chain, |chain, index| {
            let name = format!("h.{index}");
            let mut layer = self.adapters.frozen(self.layer(&name));
            for (path, linear) in layer.linears() {
                let path = format!("{name}.{path}");
                linear.lora =
                    self.adapters.lora(&format!("{PREFIX}{path}"), linear, self.seed, &path, self.device);
            }
            chain.then(name, layer)
        })
    }

    fn weight(&self, path: &str, rows: usize) -> Param<Tensor<2>> {
        normal(self.seed, path, [rows, self.config.width], self.deviation(), self.device)
    }

    fn deviation(&self) -> f32 {
        self.config.initializer_range as f32
    }

    fn norm(&self) -> LayerNorm {
        LayerNormConfig::new(self.config.width).with_epsilon(self.details.epsilon).init(self.device)
    }

    fn embedding(&self) -> Embedding {
        Embedding {
            wte: self.weight("wte.weight", self.config.vocabulary),
            wpe: self.weight("wpe.weight", self.config.sequence_length),
            dropout: DropoutConfig::new(self.details.dropout[0]).init(),
        }
    }

    fn layer(&self, name: &str) -> Layer {
        let GptConfig { width, layers, heads, activation, .. } = *self.config;
        let GptDetails { inner, epsilon, attention_scale, dropout } = *self.details;
        let [_, of_attention, of_outputs] = dropout.map(|probability| DropoutConfig::new(probability).init());
        let deviation = self.deviation();
        let residual = deviation / ((2 * layers) as f32).sqrt();
        let linear = |path: &str, inputs, outputs, deviation| -> Linear {
            let config = LinearConfig { inputs, outputs, bias: true, inputs_first: true };
            config.init(self.seed, &format!("{name}.{path}"), deviation, self.device)
        };
        Layer {
            ln_1: self.norm(),
            attn: Attention {
                c_attn: linear("attn.c_attn", width, 3 * width, deviation),
                c_proj: linear("attn.c_proj", width, width, residual),
                heads,
                scale: attention_scale,
                dropout: of_attention,
            },
            ln_2: self.norm(),
            mlp: FeedForward {
                c_fc: linear("mlp.c_fc", width, inner, deviation),
                c_proj: linear("mlp.c_proj", inner, width, residual),
                approximate: activation == Gelu::GeluTanh,
            },
            epsilon,
            dropout: of_outputs,
        }
    }

    fn head(&self) -> Head {
        let lm_head = self.weight("lm_head.weight", self.config.vocabulary);
        Head { ln_f: self.norm(), lm_head, epsilon: self.details.epsilon }
    }
}

/// What stands before the names of tensors in files of models with a head, but for language models as OpenAI's are kept.
const PREFIX: &str = "transformer.";

/// Where Hugging Face's files have GPT-2's parameters, and `peft`'s those of adapters.
pub fn mapping() -> WeightsMapping {
    mapping_with("").rule("head.lm_head", "lm_head.weight")
}

/// Where Hugging Face's files have the parameters of [`sequence_classification`]; `head` is the name of the head's weight. A head that no file has begins with its initial values.
pub(crate) fn classifier_mapping(head: String) -> WeightsMapping {
    mapping_with(PREFIX).rule("head.score.weight", head).optional("head.*.*")
}

fn mapping_with(prefix: &str) -> WeightsMapping {
    let at = |name: &str| format!("{prefix}{name}");
    let lora = |matrix: &str| in_adapters(&format!("{PREFIX}h.*.*.*.lora_{matrix}.weight"));
    let mapping = WeightsMapping::default()
        .rule("embedding.wte", at("wte.weight"))
        .rule("embedding.wpe", at("wpe.weight"))
        .rule("h.*.*.*.lora.a", lora("A"))
        .rule("h.*.*.*.lora.b", lora("B"))
        .rule("h.*.*.*.*", at("h.*.*.*.*"))
        .rule("h.*.*.gamma", at("h.*.*.weight"))
        .rule("h.*.*.beta", at("h.*.*.bias"))
        .with_optional_prefix(PREFIX);
    ["head", "norm"].into_iter().fold(mapping, |mapping, block| {
        mapping
            .rule(format!("{block}.ln_f.gamma"), at("ln_f.weight"))
            .rule(format!("{block}.ln_f.beta"), at("ln_f.bias"))
    })
}
