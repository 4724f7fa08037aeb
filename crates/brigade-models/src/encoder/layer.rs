//! One layer: attention and a feed-forward layer, each added to the residual stream and then normed.

use brigade_core::Block;
use brigade_kernels::ActivationFunction;
use burn::module::Module;
use burn::nn::Dropout;
use burn::tensor::Tensor;

use crate::layers::{LayerNorm, Linear, attend, dropped_onto};
use crate::tokens::{Documents, Hidden, document_mask};

/// `norm(x + attention(x))`, then `norm(x + feed_forward(x))`.
#[derive(Module, Debug)]
pub(super) struct Layer {
    pub attention: SelfAttention,
    pub attention_output: Output,
    pub intermediate: Linear,
    #[module(skip)]
    pub activation: ActivationFunction,
    pub output: Output,
}

/// Attention in which every token of a document sees all others.
#[derive(Module, Debug)]
pub(super) struct SelfAttention {
    pub query: Linear,
    pub key: Linear,
    pub value: Linear,
    pub heads: usize,
    /// Of probabilities.
    pub dropout: Dropout,
}

/// What adds to the residual stream: a linear layer, dropout, the sum, and its norm.
#[derive(Module, Debug)]
pub(super) struct Output {
    pub dense: Linear,
    pub norm: LayerNorm,
    pub dropout: Dropout,
}

impl Layer {
    /// The linear layers, by path and by what they are called in an encoder's layer in Hugging Face's files.
    pub fn linears(&mut self) -> [(&'static str, &'static str, &mut Linear); 6] {
        let SelfAttention { query, key, value, .. } = &mut self.attention;
        [
            ("attention.query", "attention.self.query", query),
            ("attention.key", "attention.self.key", key),
            ("attention.value", "attention.self.value", value),
            ("attention_output.dense", "attention.output.dense", &mut self.attention_output.dense),
            ("intermediate", "intermediate.dense", &mut self.intermediate),
            ("output.dense", "output.dense", &mut self.output.dense),
        ]
    }
}

impl SelfAttention {
    /// `x`: `[rows, width]`, of `batch` sequences. The result has the same shape.
    fn forward(&self, x: Tensor<2>, batch: usize, documents: Option<&Documents>) -> Tensor<2> {
        let [rows, width] = x.dims();
        let depth = width / self.heads;
        let vectors = [&self.query, &self.key, &self.value].map(|layer| {
            layer.forward(x.clone()).reshape([batch, rows / batch, self.heads, depth]).swap_dims(1, 2)
        });
        let scale = (depth as f64).powf(-0.5);
        let mixed = attend(vectors, document_mask(documents), scale, None, &self.dropout);
        mixed.swap_dims(1, 2).reshape([rows, width])
    }
}

impl Output {
    fn forward(&self, x: Tensor<2>, residual: Tensor<2>) -> Tensor<2> {
        let sum = match self.dropout.prob > 0.0 {
            false => self.dense.forward_onto(x, residual),
            true => dropped_onto(self.dense.forward(x), residual, &self.dropout),
        };
        self.norm.forward(sum)
    }
}

impl Block for Layer {
    type Input = Hidden;
    type Output = Hidden;

    fn forward(&self, Hidden { x, documents }: Hidden) -> Hidden {
        let [batch, length, width] = x.dims();
        let x = x.reshape([batch * length, width]);
        let mixed = self.attention.forward(x.clone(), batch, documents.as_ref());
        let x = self.attention_output.forward(mixed, x);
        let inner = self.intermediate.activated(x.clone(), self.activation);
        let x = self.output.forward(inner, x);
        Hidden { x: x.reshape([batch, length, width]), documents }
    }

    /// Multiplications per token of the products with weights; those of attention itself are few beside them.
    fn cost(&self) -> f64 {
        self.num_params() as f64
    }
}
