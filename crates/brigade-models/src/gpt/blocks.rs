//! The blocks of a GPT-2.

use brigade_core::{Block, BlockCache};
use brigade_kernels::{ActivationFunction, embedding, feed_forward, layer_norm};
use burn::module::{Module, Param};
use burn::nn::{Dropout, LayerNorm};
use burn::tensor::Tensor;

use crate::Logits;
use crate::layers::{KeyValueCache, Linear, attend, attend_packed, dropped, dropped_onto};
use crate::tokens::{Documents, Hidden, Tokens, causal_mask, last_tokens, positions};

/// Tokens to residual stream.
#[derive(Module, Debug)]
pub(super) struct Embedding {
    pub wte: Param<Tensor<2>>,
    pub wpe: Param<Tensor<2>>,
    pub dropout: Dropout,
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
        Hidden { x: dropped(x, &self.dropout), documents }
    }
}

/// One transformer layer: `x + attention(norm(x))`, then `x + feed_forward(norm(x))`.
#[derive(Module, Debug)]
pub(super) struct Layer {
    pub ln_1: LayerNorm,
    pub attn: Attention,
    pub ln_2: LayerNorm,
    pub mlp: FeedForward,
    pub epsilon: f64,
    pub dropout: Dropout,
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

fn norm(layer: &LayerNorm, x: Tensor<2>, epsilon: f64) -> Tensor<2> {
    layer_norm(x, layer.gamma.val(), layer.beta.as_ref().map(Param::val), epsilon)
}

impl Layer {
    /// The linear layers, by path.
    pub fn linears(&mut self) -> [(&'static str, &mut Linear); 4] {
        [
            ("attn.c_attn", &mut self.attn.c_attn),
            ("attn.c_proj", &mut self.attn.c_proj),
            ("mlp.c_fc", &mut self.mlp.c_fc),
            ("mlp.c_proj", &mut self.mlp.c_proj),
        ]
    }

    /// The layer on what follows what is in the cache.
    fn run(&self, Hidden { x, documents }: Hidden, cache: Option<&mut KeyValueCache>) -> Hidden {
        let [batch, length, width] = x.dims();
        let x = x.reshape([batch * length, width]);
        let mixed =
            self.attn.forward(norm(&self.ln_1, x.clone(), self.epsilon), batch, documents.as_ref(), cache);
        let x = self.add(mixed, &self.attn.c_proj, x);
        let normed = norm(&self.ln_2, x.clone(), self.epsilon);
        let x = match self.dropout.prob > 0.0 {
            false => self.mlp.forward(normed, Some(x)),
            true => dropped_onto(self.mlp.forward(normed, None), x, &self.dropout),
        };
        Hidden { x: x.reshape([batch, length, width]), documents }
    }

    /// What a linear layer gives, added to the residual stream.
    fn add(&self, x: Tensor<2>, layer: &Linear, residual: Tensor<2>) -> Tensor<2> {
        match self.dropout.prob > 0.0 {
            false => layer.forward_onto(x, residual),
            true => dropped_onto(layer.forward(x), residual, &self.dropout),
        }
    }
}

/// Causal self-attention with all heads' queries, keys and values from one product.
#[derive(Module, Debug)]
pub(super) struct Attention {
    pub c_attn: Linear,
    pub c_proj: Linear,
    pub heads: usize,
    pub scale: f64,
    pub dropout: Dropout,
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
        let qkv = self.c_attn.forward(x);
        let qkv = qkv.reshape([batch, rows / batch, 3 * width]);
        let (heads, depth) = (self.heads, width / self.heads);
        let (mask, scale) = (causal_mask(documents, None), self.scale);
        let Some(cache) = cache else {
            return attend_packed(qkv, heads, mask, scale, &self.dropout).reshape([rows, width]);
        };
        let vectors = qkv.reshape([batch, rows / batch, 3 * heads, depth]).swap_dims(1, 2);
        let [q, k, v] = [0, 1, 2].map(|index| vectors.clone().narrow(1, index * heads, heads));
        let [k, v] = cache.append([k, v], None);
        attend([q, k, v], mask, scale, None, &self.dropout).swap_dims(1, 2).reshape([rows, width])
    }
}

#[derive(Module, Debug)]
pub(super) struct FeedForward {
    pub c_fc: Linear,
    pub c_proj: Linear,
    pub approximate: bool,
}

impl FeedForward {
    /// What it gives, added to the residual if there is one.
    fn forward(&self, x: Tensor<2>, residual: Option<Tensor<2>>) -> Tensor<2> {
        let activation =
            if self.approximate { ActivationFunction::GeluTanh } else { ActivationFunction::Gelu };
        if self.c_fc.lora.is_none() && self.c_proj.lora.is_none() {
            let layer = |layer: &Linear| (layer.weight(), layer.bias());
            return feed_forward(x, layer(&self.c_fc), activation, layer(&self.c_proj), residual);
        }
        let hidden = self.c_fc.activated(x, activation);
        match residual {
            Some(residual) => self.c_proj.forward_onto(hidden, residual),
            None => self.c_proj.forward(hidden),
        }
    }
}

/// Residual stream to logits of `[batch · sequence, vocabulary]`.
#[derive(Module, Debug)]
pub(super) struct Head {
    pub ln_f: LayerNorm,
    pub lm_head: Param<Tensor<2>>,
    pub epsilon: f64,
}

impl Block for Head {
    type Input = Hidden;
    type Output = Logits;

    fn forward(&self, Hidden { x, .. }: Hidden) -> Logits {
        let [batch, length, width] = x.dims();
        let x = norm(&self.ln_f, x.reshape([batch * length, width]), self.epsilon);
        Logits::new(x, self.lm_head.val())
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
    pub ln_f: LayerNorm,
    pub epsilon: f64,
}

impl Block for LastToken {
    type Input = Hidden;
    type Output = Tensor<2>;

    fn forward(&self, hidden: Hidden) -> Tensor<2> {
        norm(&self.ln_f, last_tokens(hidden), self.epsilon)
    }

    /// Few: of one token of a row.
    fn cost(&self) -> f64 {
        self.num_params() as f64
    }
}
