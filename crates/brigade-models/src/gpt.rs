//! GPT-2: pre-norm transformer with learned positions (Radford et al., "Language Models are
//! Unsupervised Multitask Learners", 2019).
//!
//! Blocks: `embedding`, `h.0` … `h.{layers-1}`, `head`. Parameters carry Hugging Face's GPT-2 names
//! in files ([`mapping`]); linear weights are `[in, out]`, as that project's `Conv1D` keeps them.

use brigade_core::{Batch, Block, BlockCache, Chain, Model};
use brigade_kernels::{Activation, attention_packed, feed_forward, layer_norm, linear, linear_residual};
use burn::module::{Module, Param};
use burn::nn::{Dropout, DropoutConfig, LayerNorm, LayerNormConfig, Linear};
use burn::tensor::module::embedding;
use burn::tensor::{Device, Int, Tensor};
use serde::{Deserialize, Serialize};

use crate::Logits;
use crate::initial::normal;
use crate::layers::{KeyValueCache, attend};
use crate::tokens::{Documents, Hidden, Tokens, causal_mask, positions};
use crate::weights::WeightsMapping;

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
    /// Rows of the token embedding; token ids are below it.
    pub vocabulary: usize,
    /// Longest sequence, in tokens.
    pub sequence_length: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Transformer layers.
    pub layers: usize,
    /// Attention heads; they divide the width.
    pub heads: usize,
    /// Whether the head shares the token embedding's weights.
    pub tied_head: bool,
    /// The activation of the feed-forward layers.
    pub activation: Gelu,
    /// The probability with which training leaves out elements of embeddings, of attention's probabilities, and of what attention and feed-forward layers give.
    #[serde(default)]
    pub dropout: f64,
}

/// Why a [`GptConfig`] is not a model.
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
    /// Checks that the shape is a model.
    ///
    /// # Errors
    /// If a size is 0 or beyond any model, the heads do not divide the width, or the dropout is no probability.
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
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(ShapeError::new("dropout", self.dropout, "it must be at least 0 and below 1"));
        }
        Ok(())
    }

    /// The model's blocks, from [`Tokens`] to [`Logits`] of `[batch · sequence, vocabulary]`.
    /// Nothing is allocated: each parameter gets its values from (`seed`, name) when first read.
    ///
    /// Weights are normal with deviation 0.02, those of the two layers that write to the residual
    /// stream 0.02 / sqrt(2 · layers); biases 0, norms 1, as in GPT-2.
    ///
    /// # Errors
    /// As [`GptConfig::check`].
    pub fn chain(&self, seed: u64, device: &Device) -> Result<Chain<Tokens, Logits>, ShapeError> {
        self.check()?;
        let weight =
            |path: &str, rows, columns, deviation| normal(seed, path, [rows, columns], deviation, device);
        let linear = |path: &str, inputs, outputs, deviation| Linear {
            weight: weight(&format!("{path}.weight"), inputs, outputs, deviation),
            bias: Some(burn::module::Initializer::Zeros.init([outputs], device)),
        };
        let norm = || LayerNormConfig::new(self.width).with_epsilon(EPSILON).init(device);
        let dropout = || DropoutConfig::new(self.dropout).init();
        let (d, residual) = (self.width, 0.02 / ((2 * self.layers) as f32).sqrt());

        let mut layers = (0..self.layers).map(|index| {
            let name = format!("h.{index}");
            let at = |path: &str| format!("{name}.{path}");
            let layer = Layer {
                ln_1: norm(),
                attn: Attention {
                    c_attn: linear(&at("attn.c_attn"), d, 3 * d, 0.02),
                    c_proj: linear(&at("attn.c_proj"), d, d, residual),
                    heads: self.heads,
                    dropout: dropout(),
                },
                ln_2: norm(),
                mlp: FeedForward {
                    c_fc: linear(&at("mlp.c_fc"), d, 4 * d, 0.02),
                    c_proj: linear(&at("mlp.c_proj"), 4 * d, d, residual),
                    approximate: self.activation == Gelu::GeluTanh,
                },
                dropout: dropout(),
            };
            (name, layer)
        });
        let embedding = Embedding {
            wte: weight("wte.weight", self.vocabulary, d, 0.02),
            wpe: weight("wpe.weight", self.sequence_length, d, 0.02),
            dropout: dropout(),
        };
        let chain = Chain::new().then("embedding", embedding);
        let chain = layers.by_ref().fold(chain, |chain, (name, layer)| chain.then(name, layer));
        let chain = chain
            .then("head", Head { ln_f: norm(), lm_head: weight("lm_head.weight", self.vocabulary, d, 0.02) });
        Ok(if self.tied_head { chain.tie("head.lm_head", "embedding.wte") } else { chain })
    }

    /// Relative costs of the model's blocks, in order: embedding, layers, head. They are those of
    /// [`chain`](Self::chain), found without a device.
    ///
    /// # Errors
    /// As [`GptConfig::check`].
    pub fn costs(&self) -> Result<Vec<f64>, ShapeError> {
        self.check()?;
        let width = self.width as f64;
        // Four squares each of attention and, twice, of the feed-forward layer; biases and norms.
        let layers = std::iter::repeat_n(12.0 * width * width + 13.0 * width, self.layers);
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

/// Tokens to residual stream.
#[derive(Module, Debug)]
struct Embedding {
    wte: Param<Tensor<2>>,
    wpe: Param<Tensor<2>>,
    dropout: Dropout,
}

impl Block for Embedding {
    type Input = Tokens;
    type Output = Hidden;

    fn forward(&self, tokens: Tokens) -> Hidden {
        self.run(tokens, 0)
    }

    fn forward_cached(&self, tokens: Tokens, cache: &mut BlockCache) -> Option<Hidden> {
        let seen: &mut usize = cache.get();
        let (start, length) = (*seen, tokens.ids.dims()[1]);
        *seen += length;
        tokens.documents.is_none().then(|| self.run(tokens, start))
    }

    /// Multiplications per token: none, but the gradient of the table is as large as the table.
    fn cost(&self) -> f64 {
        self.wpe.lazy_shape()[1] as f64
    }
}

impl Embedding {
    /// Of tokens whose positions count from `start`, where they are not of documents.
    fn run(&self, Tokens { ids, documents, .. }: Tokens, start: usize) -> Hidden {
        let [_, length] = ids.dims();
        let positions = match &documents {
            None => self.wpe.val().slice(start..start + length).unsqueeze::<3>(),
            Some(documents) => embedding(self.wpe.val(), positions(documents)),
        };
        let x = embedding(self.wte.val(), ids) + positions;
        Hidden { x: self.dropout.forward(x), documents }
    }
}

/// One transformer layer: `x + attention(norm(x))`, then `x + feed_forward(norm(x))`.
#[derive(Module, Debug)]
struct Layer {
    ln_1: LayerNorm,
    attn: Attention,
    ln_2: LayerNorm,
    mlp: FeedForward,
    dropout: Dropout,
}

impl Block for Layer {
    type Input = Hidden;
    type Output = Hidden;

    fn forward(&self, hidden: Hidden) -> Hidden {
        self.run(hidden, None)
    }

    fn forward_cached(&self, hidden: Hidden, cache: &mut BlockCache) -> Option<Hidden> {
        hidden.documents.is_none().then(|| self.run(hidden, Some(cache.get())))
    }

    /// Multiplications per token of the products with weights; those of attention itself are few beside them.
    fn cost(&self) -> f64 {
        self.num_params() as f64
    }
}

/// That of GPT-2, which is Burn's default, too.
pub(crate) const EPSILON: f64 = 1e-5;

fn norm(layer: &LayerNorm, x: Tensor<2>) -> Tensor<2> {
    layer_norm(x, layer.gamma.val(), layer.beta.as_ref().map(Param::val), EPSILON)
}

impl Layer {
    /// The layer on what follows what is in the cache.
    fn run(&self, Hidden { x, documents }: Hidden, cache: Option<&mut KeyValueCache>) -> Hidden {
        let [batch, length, width] = x.dims();
        let x = x.reshape([batch * length, width]);
        let mixed = self.attn.forward(norm(&self.ln_1, x.clone()), batch, documents.as_ref(), cache);
        let x = self.add(mixed, &self.attn.c_proj, x);
        let normed = norm(&self.ln_2, x.clone());
        let x = match self.dropout.prob > 0.0 {
            false => self.mlp.forward(normed, Some(x)),
            true => x + self.dropout.forward(self.mlp.forward(normed, None)),
        };
        Hidden { x: x.reshape([batch, length, width]), documents }
    }

    /// What a linear layer gives, added to the residual stream.
    fn add(&self, x: Tensor<2>, layer: &Linear, residual: Tensor<2>) -> Tensor<2> {
        match self.dropout.prob > 0.0 {
            false => linear_residual(x, layer.weight.val(), bias(layer), residual),
            true => residual + self.dropout.forward(linear(x, layer.weight.val(), bias(layer))),
        }
    }
}

fn bias(layer: &Linear) -> Option<Tensor<1>> {
    layer.bias.as_ref().map(Param::val)
}

/// Causal self-attention with all heads' queries, keys and values from one product.
#[derive(Module, Debug)]
struct Attention {
    c_attn: Linear,
    c_proj: Linear,
    heads: usize,
    dropout: Dropout,
}

impl Attention {
    /// What goes into `c_proj`. `x`: `[batch · length, width]`, which follows what is in the cache.
    fn forward(
        &self,
        x: Tensor<2>,
        batch: usize,
        documents: Option<&Documents>,
        cache: Option<&mut KeyValueCache>,
    ) -> Tensor<2> {
        let [rows, width] = x.dims();
        let qkv = linear(x, self.c_attn.weight.val(), bias(&self.c_attn));
        let qkv = qkv.reshape([batch, rows / batch, 3 * width]);
        let (heads, depth) = (self.heads, width / self.heads);
        let (mask, scale) = (causal_mask(documents, None), (depth as f64).powf(-0.5));
        if self.dropout.prob == 0.0 && cache.is_none() {
            return attention_packed(qkv, heads, heads, mask, scale).reshape([rows, width]);
        }
        let vectors = qkv.reshape([batch, rows / batch, 3 * heads, depth]).swap_dims(1, 2);
        let [q, k, v] = [0, 1, 2].map(|index| vectors.clone().narrow(1, index * heads, heads));
        let [k, v] = match cache {
            Some(cache) => cache.append([k, v], None),
            None => [k, v],
        };
        attend([q, k, v], mask, scale, None, &self.dropout).swap_dims(1, 2).reshape([rows, width])
    }
}

#[derive(Module, Debug)]
struct FeedForward {
    c_fc: Linear,
    c_proj: Linear,
    approximate: bool,
}

impl FeedForward {
    /// What it gives, added to the residual if there is one.
    fn forward(&self, x: Tensor<2>, residual: Option<Tensor<2>>) -> Tensor<2> {
        let activation = if self.approximate { Activation::GeluTanh } else { Activation::Gelu };
        let layer = |layer: &Linear| (layer.weight.val(), bias(layer));
        feed_forward(x, layer(&self.c_fc), activation, layer(&self.c_proj), residual)
    }
}

/// Residual stream to logits of `[batch · sequence, vocabulary]`.
#[derive(Module, Debug)]
struct Head {
    ln_f: LayerNorm,
    lm_head: Param<Tensor<2>>,
}

impl Block for Head {
    type Input = Hidden;
    type Output = Logits;

    fn forward(&self, Hidden { x, .. }: Hidden) -> Logits {
        let [batch, length, width] = x.dims();
        Logits::new(norm(&self.ln_f, x.reshape([batch * length, width])), self.lm_head.val())
    }

    fn forward_cached(&self, hidden: Hidden, _: &mut BlockCache) -> Option<Logits> {
        Some(self.forward(hidden))
    }

    /// Multiplications per token, also where the weight is shared with the embedding.
    fn cost(&self) -> f64 {
        self.lm_head.lazy_shape().num_elements() as f64
    }
}

/// What a language model is to predict.
#[derive(Debug, Clone)]
pub struct Targets {
    /// The next token of each position, `[batch, sequence]`; below 0, such as -100, where it is masked as well.
    pub tokens: Tensor<2, Int>,
    /// 1 where the target counts, 0 where it is masked, `[batch, sequence]`; none if all count.
    pub mask: Option<Tensor<2>>,
}

/// The metric's name: the share of valid targets to which the model gives the highest logit.
pub const ACCURACY: &str = "next_token_accuracy";

/// The sum over valid targets of the cross entropy, in nats, and the number of those whose logit is the highest of their row,
/// each of shape `[1]`.
pub fn cross_entropy(logits: Logits, targets: Targets) -> (Tensor<1>, [Tensor<1>; 1]) {
    cross_entropy_in(logits, targets, 1)
}

/// [`cross_entropy`], with fewer logits in memory at a time.
pub(crate) fn cross_entropy_in(
    logits: Logits,
    targets: Targets,
    rows_divisor: usize,
) -> (Tensor<1>, [Tensor<1>; 1]) {
    let [batch, length] = targets.tokens.dims();
    let tokens = targets.tokens.reshape([batch * length]);
    let mask = targets.mask.map(|mask| mask.reshape([batch * length]));
    let (loss, correct) = logits.cross_entropy_in(tokens, mask, rows_divisor);
    (loss, [correct])
}

/// Where Hugging Face's files have GPT-2's parameters.
pub fn mapping() -> WeightsMapping {
    WeightsMapping::default()
        .rule("embedding.wte", "wte.weight")
        .rule("embedding.wpe", "wpe.weight")
        .rule("h.*.*.gamma", "h.*.*.weight")
        .rule("h.*.*.beta", "h.*.*.bias")
        .rule("head.ln_f.gamma", "ln_f.weight")
        .rule("head.ln_f.beta", "ln_f.bias")
        .rule("head.lm_head", "lm_head.weight")
        .with_optional_prefix("transformer.")
}
