//! Decoders: language models in which a token sees those before it.

use super::checks::{Checks, Labels, SpecialTokens};
use super::family::Family;
use super::rotary::Rotary;
use crate::error::HfError;

/// Everything that a decoder computes by. The families are special cases: each reads its fields of `config.json` into this.
///
/// A layer computes `x += attention(norm(x))` and `x += mlp(norm(x))`, with additional norms of what is added
/// where [`post_norms`](Self::post_norms) says so. A last norm stands before the head.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderConfig {
    /// Whose names its fields and tensors have.
    pub family: Family,
    /// Rows of the table of embeddings, and logits of a token.
    pub vocab_size: usize,
    /// Numbers of a token between layers.
    pub hidden_size: usize,
    /// Numbers of a token within an MLP.
    pub intermediate_size: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values: a divisor of [`heads`](Self::heads).
    pub kv_heads: usize,
    /// Numbers of a head; `heads · head_dim` need not be the hidden size.
    pub head_dim: usize,
    /// What layers differ in, from the first to the last.
    pub layers: Vec<LayerConfig>,
    /// The longest row: of the table of positions, if they are learned; else what the model was trained for.
    pub max_positions: usize,
    /// Whether a learned table of `max_positions` rows is added to the embeddings. Else layers rotate queries and keys.
    pub learned_positions: bool,
    /// The MLP's activation.
    pub activation: ActivationFunction,
    /// Whether an MLP is `down(activation(gate(x)) · up(x))` instead of `down(activation(up(x)))`.
    pub gated_mlp: bool,
    /// All norms.
    pub norm: Norm,
    /// Whether what attention and MLP give is normed once more before it is added.
    pub post_norms: bool,
    /// Whether queries and keys are normed by head, before they are rotated; weights of `head_dim`, of the same kind as other norms.
    pub qk_norm: bool,
    /// Which linear layers have biases. The head has none.
    pub biases: Biases,
    /// Whether the head is the table of embeddings.
    pub tied_embeddings: bool,
    /// What embeddings of tokens are multiplied by, in the number type of the weights.
    pub embedding_scale: f64,
    /// What products of queries and keys are multiplied by.
    pub attention_scale: f64,
    /// `c`, where scores `s` of attention become `c · tanh(s / c)` before they are masked.
    pub attention_softcap: Option<f64>,
    /// `c`, where logits `l` become `c · tanh(l / c)`.
    pub logit_softcap: Option<f64>,
    /// Parts that training leaves out at random.
    pub dropout: Dropout,
    /// The standard deviation of initial weights.
    pub initializer_range: f64,
    /// Tokens with a meaning of their own. Where [`pad`](SpecialTokens::pad) is one, `transformers` gives its embedding no gradient, but for
    /// GPT-2's.
    pub tokens: SpecialTokens,
    /// Labels of a classification.
    pub labels: Labels,
}

/// What layers may differ in.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerConfig {
    /// `w`, where token `i` sees only tokens `j` of `i − w < j ≤ i`: itself and `w − 1` before.
    pub window: Option<usize>,
    /// How queries and keys are rotated; none if positions are learned.
    pub rotary: Option<Rotary>,
}

/// The activation of an MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivationFunction {
    /// `x · Φ(x)`, with the error function.
    Gelu,
    /// The same by the hyperbolic tangent.
    GeluTanh,
    /// `x · sigmoid(x)`
    Silu,
}

/// A norm of the numbers of a token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    /// Its kind.
    pub kind: NormKind,
    /// What is added to the variance, or to the mean of the squares.
    pub epsilon: f64,
}

/// Kinds of norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// `(x − mean) / deviation · weight + bias`
    Layer,
    /// `x / root mean square · weight`
    Rms,
    /// `x / root mean square · (1 + weight)`
    RmsPlusOne,
}

/// Which linear layers have biases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Biases {
    /// Those of queries, keys and values.
    pub qkv: bool,
    /// The one that mixes the heads.
    pub attention_output: bool,
    /// Those of the MLP.
    pub mlp: bool,
}

/// Probabilities of leaving out, in training.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Dropout {
    /// Embeddings.
    pub embedding: f64,
    /// Weights of attention, after their softmax.
    pub attention: f64,
    /// What attention and MLP give, before it is added.
    pub residual: f64,
    /// What the head of a classification gets.
    pub classifier: f64,
}

impl DecoderConfig {
    /// Elements of all heads of queries.
    pub fn query_size(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements of all heads of keys, and of values.
    pub fn key_size(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Checks what no field says alone.
    ///
    /// # Errors
    /// If sizes do not fit. `file` is for messages.
    pub(super) fn check(&self, file: &str) -> Result<(), HfError> {
        let names = Names::of(self.family);
        let checks = Checks { file };
        checks.positive(&[
            ("vocab_size", self.vocab_size),
            (names.hidden_size, self.hidden_size),
            (names.intermediate_size, self.intermediate_size),
            (names.heads, self.heads),
            (names.kv_heads, self.kv_heads),
            ("head_dim", self.head_dim),
            (names.layers, self.layers.len()),
            (names.max_positions, self.max_positions),
        ])?;
        if !self.heads.is_multiple_of(self.kv_heads) {
            let allowed = format!("a divisor of `{}`, {}", names.heads, self.heads);
            return Err(HfError::field(file, names.kv_heads, self.kv_heads, allowed));
        }
        if !self.learned_positions && !self.head_dim.is_multiple_of(2) {
            return Err(HfError::field(
                file,
                "head_dim",
                self.head_dim,
                "an even number, since heads are rotated",
            ));
        }
        if self.layers.iter().any(|layer| layer.window == Some(0)) {
            return Err(HfError::field(file, "sliding_window", 0, "a whole number from 1, or null"));
        }
        checks.above_zero(&[
            (names.epsilon, Some(self.norm.epsilon)),
            ("attn_logit_softcapping", self.attention_softcap),
            ("final_logit_softcapping", self.logit_softcap),
        ])?;
        checks.deviation(self.initializer_range)?;
        checks.probabilities(&[
            (names.embedding_dropout, self.dropout.embedding),
            (names.attention_dropout, self.dropout.attention),
            (names.residual_dropout, self.dropout.residual),
            ("classifier_dropout", self.dropout.classifier),
        ])
    }
}

/// The names of fields that families do not share.
pub(super) struct Names {
    pub hidden_size: &'static str,
    pub intermediate_size: &'static str,
    pub heads: &'static str,
    pub kv_heads: &'static str,
    pub layers: &'static str,
    pub max_positions: &'static str,
    pub activation: &'static str,
    pub epsilon: &'static str,
    pub embedding_dropout: &'static str,
    pub attention_dropout: &'static str,
    pub residual_dropout: &'static str,
}

impl Names {
    pub fn of(family: Family) -> Self {
        match family {
            Family::Gpt2 => Self {
                hidden_size: "n_embd",
                intermediate_size: "n_inner",
                heads: "n_head",
                kv_heads: "n_head",
                layers: "n_layer",
                max_positions: "n_positions",
                activation: "activation_function",
                epsilon: "layer_norm_epsilon",
                embedding_dropout: "embd_pdrop",
                attention_dropout: "attn_pdrop",
                residual_dropout: "resid_pdrop",
            },
            Family::Bert | Family::Roberta => Self {
                epsilon: "layer_norm_eps",
                embedding_dropout: "hidden_dropout_prob",
                attention_dropout: "attention_probs_dropout_prob",
                residual_dropout: "hidden_dropout_prob",
                ..Self::most()
            },
            Family::Gemma2 | Family::Gemma3 => Self { activation: "hidden_activation", ..Self::most() },
            _ => Self::most(),
        }
    }

    const fn most() -> Self {
        Self {
            hidden_size: "hidden_size",
            intermediate_size: "intermediate_size",
            heads: "num_attention_heads",
            kv_heads: "num_key_value_heads",
            layers: "num_hidden_layers",
            max_positions: "max_position_embeddings",
            activation: "hidden_act",
            epsilon: "rms_norm_eps",
            embedding_dropout: "embedding_dropout",
            attention_dropout: "attention_dropout",
            residual_dropout: "residual_dropout",
        }
    }
}

impl ActivationFunction {
    /// All names, each with what it means.
    const NAMES: [(&str, Self); 9] = [
        ("gelu", Self::Gelu),
        ("gelu_python", Self::Gelu),
        ("gelu_new", Self::GeluTanh),
        ("gelu_pytorch_tanh", Self::GeluTanh),
        ("gelu_python_tanh", Self::GeluTanh),
        ("gelu_fast", Self::GeluTanh),
        ("gelu_accurate", Self::GeluTanh),
        ("silu", Self::Silu),
        ("swish", Self::Silu),
    ];

    pub(super) fn of_name(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find_map(|(known, activation)| (known == name).then_some(activation))
    }

    /// The name that is written: one that the first versions with the family know.
    pub(super) fn name(self, family: Family) -> &'static str {
        match self {
            Self::Gelu => "gelu",
            Self::GeluTanh if family.is_encoder() || family == Family::Gpt2 => "gelu_new",
            Self::GeluTanh => "gelu_pytorch_tanh",
            Self::Silu => "silu",
        }
    }

    pub(super) fn allowed() -> String {
        Self::NAMES.map(|(name, _)| format!("\"{name}\"")).join(", ")
    }
}
