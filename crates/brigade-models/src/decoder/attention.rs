//! Causal self-attention with rotary positions.

use burn::module::Module;
use burn::nn::Dropout;
use burn::tensor::Tensor;

use crate::layers::{KeyValueCache, Linear, RmsNorm, RotaryTable, attend};
use crate::tokens::{Documents, causal_mask, positions};

#[derive(Module, Debug)]
pub(super) struct SelfAttention {
    pub q_proj: Linear,
    pub k_proj: Linear,
    pub v_proj: Linear,
    pub o_proj: Linear,
    pub q_norm: Option<RmsNorm>,
    pub k_norm: Option<RmsNorm>,
    pub rotary: RotaryTable,
    pub heads: usize,
    pub key_heads: usize,
    pub window: Option<usize>,
    pub scale: f64,
    /// Of scores.
    pub softcap: Option<f64>,
    /// Of probabilities.
    pub dropout: Dropout,
}

impl SelfAttention {
    /// What goes into `o_proj`, `[rows, heads · depth]`. `x`: `[rows, width]`, of `batch` sequences, which follow what is in the cache.
    pub fn forward(
        &self,
        x: Tensor<2>,
        batch: usize,
        documents: Option<&Documents>,
        cache: Option<&mut KeyValueCache>,
    ) -> Tensor<2> {
        let length = x.dims()[0] / batch;
        let vectors = |layer: &Linear, heads: usize| {
            let y = layer.forward(x.clone());
            let depth = y.dims()[1] / heads;
            y.reshape([batch, length, heads, depth])
        };
        let own = documents.map(positions);
        let start = cache.as_ref().map_or(0, |cache| cache.seen());
        let turned = |x: Tensor<4>, norm: &Option<RmsNorm>| {
            let x = norm.iter().fold(x, |x, norm| norm.forward(x));
            self.rotary.rotate(x, start, own.as_ref()).swap_dims(1, 2)
        };
        let q = turned(vectors(&self.q_proj, self.heads), &self.q_norm);
        let k = turned(vectors(&self.k_proj, self.key_heads), &self.k_norm);
        let v = vectors(&self.v_proj, self.key_heads).swap_dims(1, 2);
        let [k, v] = match cache {
            Some(cache) => cache.append([k, v], self.window),
            None => [k, v],
        };
        let mask = causal_mask(documents, self.window);
        let mixed = attend([q, k, v], mask, self.scale, self.softcap, &self.dropout).swap_dims(1, 2);
        let [_, _, heads, depth] = mixed.dims();
        mixed.reshape([batch * length, heads * depth])
    }
}
