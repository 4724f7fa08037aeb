//! The first block, and the last of each task.

use brigade_core::Block;
use brigade_kernels::{ActivationFunction, embedding};
use burn::module::{Module, Param};
use burn::nn::Dropout;
use burn::tensor::{Int, Tensor};

use crate::Logits;
use crate::layers::{LayerNorm, Linear, dropped};
use crate::tokens::{Documents, Hidden, Tokens, positions};

/// Tokens to vectors: the sum of what tables have for token, position and type, normed.
#[derive(Module, Debug)]
pub(super) struct Embedding {
    pub words: Param<Tensor<2>>,
    pub positions: Param<Tensor<2>>,
    pub types: Param<Tensor<2>>,
    pub norm: LayerNorm,
    pub dropout: Dropout,
    /// The id of padding, where positions count all other tokens, from the row after the one of this number.
    pub padding: Option<usize>,
}

/// The rows of the table of positions where those count the tokens that are not padding, from the row behind padding's, which padding has.
fn rows_without(padding: usize, ids: &Tensor<2, Int>, documents: Option<&Documents>) -> Tensor<2, Int> {
    let counts = ids.clone().not_equal_elem(padding as i64).int();
    let up_to = counts.clone().cumsum(1);
    let within = match documents {
        None => up_to,
        Some(documents) => {
            let [batch, length, _] = documents.dims();
            let starts = documents.clone().slice([0..batch, 0..length, 0..1]).reshape([batch, length]);
            let before = (up_to.clone() - counts.clone()).gather(1, starts);
            up_to - before
        }
    };
    (within * counts).add_scalar(padding as i64)
}

impl Block for Embedding {
    type Input = Tokens;
    type Output = Hidden;

    fn forward(&self, Tokens { ids, documents, types }: Tokens) -> Hidden {
        let [_, length] = ids.dims();
        let places = match (&documents, self.padding) {
            (None, None) => self.positions.val().slice(0..length).unsqueeze::<3>(),
            (Some(documents), None) => embedding(self.positions.val(), positions(documents)),
            (documents, Some(padding)) => {
                embedding(self.positions.val(), rows_without(padding, &ids, documents.as_ref()))
            }
        };
        let types = match types {
            None => self.types.val().slice(0..1).unsqueeze::<3>(),
            Some(types) => embedding(self.types.val(), types),
        };
        let x = self.norm.forward(embedding(self.words.val(), ids) + places + types);
        Hidden { x: dropped(x, &self.dropout), documents }
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
        let pooled = self.dense.forward(dropped(first, &self.dropout_before)).tanh();
        self.labels.forward(dropped(pooled, &self.dropout))
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

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    /// As `create_position_ids_from_input_ids` of `transformers` counts them.
    #[test]
    fn positions_do_not_count_padding_within_a_text() {
        let device = Device::default();
        let ids = Tensor::<2, Int>::from_ints([[5, 1, 6, 7, 1, 8]], &device);
        let rows = |documents: Option<&Documents>| -> Vec<i64> {
            rows_without(1, &ids, documents).into_data().iter::<i64>().collect()
        };
        assert_eq!(rows(None), [2, 1, 3, 4, 1, 5]);
        // Two texts in a row: the second counts from its own beginning.
        let documents = Tensor::from_ints([[[0, 3], [0, 3], [0, 3], [3, 6], [3, 6], [3, 6]]], &device);
        assert_eq!(rows(Some(&documents)), [2, 1, 3, 2, 1, 3]);
    }
}
