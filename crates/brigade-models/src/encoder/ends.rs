//! The first block, and the last of each task.

use brigade_core::Block;
use brigade_kernels::{ActivationFunction, embedding};
use burn::module::{Module, Param};
use burn::nn::Dropout;
use burn::tensor::{Int, Tensor};

use crate::Logits;
use crate::layers::{LayerNorm, Linear};
use crate::tokens::{Hidden, Tokens, positions};

/// Tokens to vectors: the sum of what tables have for token, position and type, normed.
#[derive(Module, Debug)]
pub(super) struct Embedding {
    pub words: Param<Tensor<2>>,
    pub positions: Param<Tensor<2>>,
    pub types: Param<Tensor<2>>,
    pub norm: LayerNorm,
    pub dropout: Dropout,
    /// The row of the first position.
    pub offset: usize,
}

impl Block for Embedding {
    type Input = Tokens;
    type Output = Hidden;

    fn forward(&self, Tokens { ids, documents, types }: Tokens) -> Hidden {
        let [_, length] = ids.dims();
        let places = match &documents {
            None => self.positions.val().slice(self.offset..self.offset + length).unsqueeze::<3>(),
            Some(documents) => {
                embedding(self.positions.val(), positions(documents).add_scalar(self.offset as i64))
            }
        };
        let types = match types {
            None => self.types.val().slice(0..1).unsqueeze::<3>(),
            Some(types) => embedding(self.types.val(), types),
        };
        let x = self.norm.forward(embedding(self.words.val(), ids) + places + types);
        Hidden { x: self.dropout.forward(x), documents }
    }

    /// Multiplications per token: none, but the gradient of the table is as large as the table.
    fn cost(&self) -> f64 {
        self.words.lazy_shape()[1] as f64
    }
}

/// Vectors to logits of `[batch · positions, vocabulary]`, by the table of embeddings.
#[derive(Module, Debug)]
pub(super) struct MaskedHead {
    pub dense: Linear,
    #[module(skip)]
    pub activation: ActivationFunction,
    pub norm: LayerNorm,
    pub words: Param<Tensor<2>>,
    pub bias: Param<Tensor<1>>,
}

impl Block for MaskedHead {
    type Input = Hidden;
    type Output = Logits;

    fn forward(&self, Hidden { x, .. }: Hidden) -> Logits {
        let [batch, length, width] = x.dims();
        let x = self.dense.activated(x.reshape([batch * length, width]), self.activation);
        let (weight, bias) = (self.words.val(), Some(self.bias.val()));
        Logits::Product { x: self.norm.forward(x), weight, bias }
    }

    /// Multiplications per token, also where the table is shared with the embedding.
    fn cost(&self) -> f64 {
        let [vocabulary, width] = [0, 1].map(|dimension| self.words.lazy_shape()[dimension]);
        (width * (width + vocabulary)) as f64
    }
}

/// The vector of a row's first token to logits of its labels, `[batch, labels]`: dropout, a linear layer, tanh, dropout, a linear layer.
#[derive(Module, Debug)]
pub(super) struct LabelHead {
    pub dropout_before: Dropout,
    pub dense: Linear,
    pub dropout: Dropout,
    pub labels: Linear,
}

impl Block for LabelHead {
    type Input = Hidden;
    type Output = Tensor<2>;

    fn forward(&self, Hidden { x, .. }: Hidden) -> Tensor<2> {
        let [batch, _, width] = x.dims();
        let first = x.narrow(1, 0, 1).reshape([batch, width]);
        let pooled = self.dense.forward(self.dropout_before.forward(first)).tanh();
        self.labels.forward(self.dropout.forward(pooled))
    }

    /// Few: of one token of a row.
    fn cost(&self) -> f64 {
        self.labels.shape().iter().product::<usize>() as f64
    }
}

/// The mean of the vectors of each row's first document, `[batch, width]`, scaled to a length of 1 or not.
#[derive(Module, Debug)]
pub(super) struct MeanPooling {
    pub normalized: bool,
}

impl Block for MeanPooling {
    type Input = Hidden;
    type Output = Tensor<2>;

    fn forward(&self, Hidden { x, documents }: Hidden) -> Tensor<2> {
        let [batch, length, width] = x.dims();
        let x = match documents {
            None => x.mean_dim(1),
            Some(documents) => {
                let ends = documents.slice([0..batch, 0..1, 1..2]).reshape([batch, 1]);
                let all = Tensor::<1, Int>::arange(0..length as i64, &ends.device()).unsqueeze::<2>();
                let counts = all.lower(ends.clone()).float().cast(x.dtype()).reshape([batch, length, 1]);
                (x * counts).sum_dim(1) / ends.float().reshape([batch, 1, 1])
            }
        };
        let x = x.reshape([batch, width]);
        match self.normalized {
            false => x,
            true => {
                let length = x.clone().square().sum_dim(1).sqrt().clamp_min(1e-12);
                x / length
            }
        }
    }
}
