//! One layer: attention and a gated feed-forward layer, each added to the residual stream.

use brigade_core::{Block, BlockCache};
use brigade_kernels::{ActivationFunction, gated};
use burn::module::Module;
use burn::tensor::Tensor;

use super::attention::SelfAttention;
use crate::layers::{KeyValueCache, Linear, RmsNorm};
use crate::tokens::Hidden;

/// `x + attention(norm(x))`, then `x + feed_forward(norm(x))`; where there are norms after them, what they norm is added.
#[derive(Module, Debug)]
pub(super) struct Layer {
    pub input_layernorm: RmsNorm,
    pub self_attn: SelfAttention,
    pub post_attention_layernorm: RmsNorm,
    pub pre_feedforward_layernorm: Option<RmsNorm>,
    pub mlp: FeedForward,
    pub post_feedforward_layernorm: Option<RmsNorm>,
}

#[derive(Module, Debug)]
pub(super) struct FeedForward {
    pub gate_proj: Linear,
    pub up_proj: Linear,
    pub down_proj: Linear,
    #[module(skip)]
    pub activation: ActivationFunction,
}

impl Layer {
    /// The linear layers, by path.
    pub fn linears(&mut self) -> [(&'static str, &mut Linear); 7] {
        let (SelfAttention { q_proj, k_proj, v_proj, o_proj, .. }, mlp) =
            (&mut self.self_attn, &mut self.mlp);
        [
            ("self_attn.q_proj", q_proj),
            ("self_attn.k_proj", k_proj),
            ("self_attn.v_proj", v_proj),
            ("self_attn.o_proj", o_proj),
            ("mlp.gate_proj", &mut mlp.gate_proj),
            ("mlp.up_proj", &mut mlp.up_proj),
            ("mlp.down_proj", &mut mlp.down_proj),
        ]
    }
}

impl FeedForward {
    /// What goes into `down_proj`.
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        gated(self.gate_proj.forward(x.clone()), self.up_proj.forward(x), self.activation)
    }
}

/// What a layer gives, added to the residual stream, normed before if there is a norm.
fn add(x: Tensor<2>, layer: &Linear, norm: Option<&RmsNorm>, residual: Tensor<2>) -> Tensor<2> {
    match norm {
        None => layer.forward_onto(x, residual),
        Some(norm) => residual + norm.forward(layer.forward(x)),
    }
}

impl Layer {
    /// The layer on what follows what is in the cache.
    fn run(&self, Hidden { x, documents }: Hidden, cache: Option<&mut KeyValueCache>) -> Hidden {
        let [batch, length, width] = x.dims();
        let x = x.reshape([batch * length, width]);
        // Where there are four norms, the second is of what attention gives; else it is of what the feed-forward layer gets.
        let (after, before) = match &self.pre_feedforward_layernorm {
            None => (None, &self.post_attention_layernorm),
            Some(before) => (Some(&self.post_attention_layernorm), before),
        };
        let normed = self.input_layernorm.forward(x.clone());
        let mixed = self.self_attn.forward(normed, batch, documents.as_ref(), cache);
        let x = add(mixed, &self.self_attn.o_proj, after, x);
        let hidden = self.mlp.forward(before.forward(x.clone()));
        let x = add(hidden, &self.mlp.down_proj, self.post_feedforward_layernorm.as_ref(), x);
        Hidden { x: x.reshape([batch, length, width]), documents }
    }
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
