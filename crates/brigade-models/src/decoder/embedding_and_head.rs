//! The first block and the last.

use brigade_core::{Block, BlockCache};
use brigade_kernels::{embedding, soft_capped};
use burn::module::{Module, Param};
use burn::tensor::Tensor;

use crate::Logits;
use crate::layers::RmsNorm;
use crate::tokens::{Hidden, Tokens, last_tokens};

/// Tokens to residual stream.
#[derive(Module, Debug)]
pub(super) struct Embedding {
    pub embed_tokens: Param<Tensor<2>>,
    pub scale: Option<f64>,
}

impl Block for Embedding {
    type Input = Tokens;
    type Output = Hidden;

    fn forward(&self, Tokens { ids, documents, .. }: Tokens) -> Hidden {
        let x = embedding(self.embed_tokens.val(), ids);
        Hidden { x: self.scale.into_iter().fold(x, Tensor::mul_scalar), documents }
    }

    fn forward_cached(&self, tokens: Tokens, _: &mut BlockCache) -> Option<Hidden> {
        Some(self.forward(tokens))
    }

    /// Multiplications per token: none, but the gradient of the table is as large as the table.
    fn cost(&self) -> f64 {
        self.embed_tokens.lazy_shape()[1] as f64
    }
}

/// Residual stream to logits of `[batch · positions, vocabulary]`.
#[derive(Module, Debug)]
pub(super) struct Head {
    pub norm: RmsNorm,
    pub lm_head: Param<Tensor<2>>,
    /// Of logits.
    pub softcap: Option<f64>,
}

impl Block for Head {
    type Input = Hidden;
    type Output = Logits;

    fn forward(&self, Hidden { x, .. }: Hidden) -> Logits {
        let [batch, length, width] = x.dims();
        let logits = Logits::new(self.norm.forward(x.reshape([batch * length, width])), self.lm_head.val());
        match self.softcap {
            None => logits,
            Some(cap) => Logits::Whole(soft_capped(logits.whole(), cap)),
        }
    }

    fn forward_cached(&self, hidden: Hidden, _: &mut BlockCache) -> Option<Logits> {
        Some(self.forward(hidden))
    }

    /// Multiplications per token, also where the weight is shared with the embedding.
    fn cost(&self) -> f64 {
        self.lm_head.lazy_shape().num_elements() as f64
    }
}

/// Residual stream to the vector of each row's last token, normed: `[batch, width]`.
#[derive(Module, Debug)]
pub(super) struct LastToken {
    pub norm: RmsNorm,
}

impl Block for LastToken {
    type Input = Hidden;
    type Output = Tensor<2>;

    fn forward(&self, hidden: Hidden) -> Tensor<2> {
        self.norm.forward(last_tokens(hidden))
    }

    /// Few: of one token of a row.
    fn cost(&self) -> f64 {
        self.num_params() as f64
    }
}
