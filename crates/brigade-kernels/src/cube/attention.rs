//! Attention whose probabilities are made in the place of its scores.

use brigade_simd::attention::AttentionShape;
use burn::backend::Cube;
use burn::tensor::{DType, Int, Tensor, TensorData};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use super::launch::{empty, transposed};
use super::softmax::{Keys, Visible, softmax, softmax_backward};
use crate::attention::Mask;
use super::products::product;
use crate::graph::Operation;

/// Attention to the keys that a mask shows.
#[derive(Debug, Clone)]
pub(crate) struct Attention {
    pub shape: AttentionShape,
    pub mask: Mask,
    pub scale: f32,
}

/// Where the queries, keys and values are.
#[derive(Debug, Clone)]
pub(crate) enum Layout {
    /// In three tensors of `[batch, heads, positions, depth]`.
    Separate(Attention),
    /// In one, `[batch, positions, (heads + 2 · key_heads) · depth]`.
    Packed(Attention),
}

/// Queries as `[batch, key_heads, queries of the heads that share keys, depth]`, keys and values, and the probabilities.
#[derive(Debug, Clone)]
pub(crate) struct Saved {
    q: CubeTensor,
    k: CubeTensor,
    v: CubeTensor,
    probabilities: CubeTensor,
}

impl Attention {
    fn forward(&self, [q, k, v]: [Tensor<4>; 3]) -> (Tensor<4>, Saved) {
        let AttentionShape { batch, heads, key_heads, queries, depth, value_depth, .. } = self.shape;
        let q = q.reshape([batch, key_heads, heads / key_heads * queries, depth]);
        let [q, k, v] = [q, k, v].map(inner);
        let scores = product(q.clone(), transposed(k.clone()), q.dtype);
        let probabilities = softmax(scores, &self.keys(&q), self.scale);
        let mixed = product(probabilities.clone(), v.clone(), q.dtype);
        let mixed = outer::<4>(mixed).reshape([batch, heads, queries, value_depth]);
        (mixed, Saved { q, k, v, probabilities })
    }

    /// The gradients of queries, keys and values.
    fn backward(&self, saved: Saved, gradient: Tensor<4>) -> [Tensor<4>; 3] {
        let AttentionShape { batch, heads, key_heads, queries, depth, value_depth, .. } = self.shape;
        let Saved { q, k, v, probabilities } = saved;
        let gradient = inner(gradient.reshape([batch, key_heads, heads / key_heads * queries, value_depth]));
        let dtype = q.dtype;
        let d_v = product(transposed(probabilities.clone()), gradient.clone(), dtype);
        let d_probabilities = product(gradient, transposed(v), dtype);
        let d_scores = softmax_backward(d_probabilities, probabilities, self.scale);
        let d_q = product(d_scores.clone(), k, dtype);
        let d_k = product(transposed(d_scores), q, dtype);
        let d_q = outer::<4>(d_q).reshape([batch, heads, queries, depth]);
        [d_q, outer(d_k), outer(d_v)]
    }

    fn keys(&self, like: &CubeTensor) -> Keys {
        let none = || empty(like, [2], DType::U32);
        let (visible, window, ranges) = match &self.mask {
            Mask::None => (Visible::All, self.shape.keys, none()),
            Mask::Causal => (Visible::Causal, self.shape.keys, none()),
            Mask::Window(window) => (Visible::Causal, (*window).min(self.shape.keys), none()),
            Mask::Ranges(ranges) => {
                let bounds = TensorData::new(ranges.concat(), [2 * ranges.len()]);
                let device = outer::<4>(like.clone()).device();
                let bounds = Tensor::<1, Int>::from_data(bounds, (&device, DType::U32));
                let Ok(bounds) = bounds.try_into_primitive::<Cube>() else {
                    unreachable!("it is on the device of the queries")
                };
                (Visible::Ranges, self.shape.keys, bounds)
            }
        };
        Keys { visible, window, ranges, heads: self.shape.heads, queries: self.shape.queries }
    }
}

fn inner(tensor: Tensor<4>) -> CubeTensor {
    let Ok(tensor) = tensor.try_into_primitive::<Cube>() else {
        unreachable!("operations are run on tensors of their devices")
    };
    tensor
}

fn outer<const D: usize>(tensor: CubeTensor) -> Tensor<D> {
    Tensor::from_primitive::<Cube>(tensor)
}

impl<const N: usize> Operation<N, CubeTensor> for Layout {
    type Saved = Saved;
    type Extra = ();

    fn forward(&self, inputs: [CubeTensor; N], _: bool) -> (CubeTensor, Option<Saved>, ()) {
        let mut inputs = inputs.into_iter();
        let mut next = || inputs.next().unwrap_or_else(|| unreachable!("it has as many inputs as its layout"));
        match self {
            Self::Separate(attention) => {
                let (mixed, saved) = attention.forward([(); 3].map(|()| outer(next())));
                (inner(mixed), Some(saved), ())
            }
            Self::Packed(attention) => {
                let AttentionShape { batch, heads, key_heads, queries, depth, .. } = attention.shape;
                let vectors = outer::<3>(next()).reshape([batch, queries, heads + 2 * key_heads, depth]);
                let vectors = vectors.swap_dims(1, 2);
                let part = |start, length| vectors.clone().narrow(1, start, length);
                let parts = [part(0, heads), part(heads, key_heads), part(heads + key_heads, key_heads)];
                let (mixed, saved) = attention.forward(parts);
                let mixed = mixed.swap_dims(1, 2).reshape([batch, queries, heads * depth]);
                let Ok(mixed) = mixed.try_into_primitive::<Cube>() else {
                    unreachable!("it is on the device of the queries")
                };
                (mixed, Some(saved), ())
            }
        }
    }

    fn backward(self, saved: Saved, gradient: CubeTensor, _: [bool; N]) -> [Option<CubeTensor>; N] {
        let found = match self {
            Self::Separate(attention) => {
                attention.backward(saved, outer(gradient)).map(|gradient| Some(inner(gradient)))
            }
            Self::Packed(attention) => {
                let AttentionShape { batch, heads, key_heads, queries, depth, .. } = attention.shape;
                let gradient = outer::<3>(gradient).reshape([batch, queries, heads, depth]).swap_dims(1, 2);
                let vectors = Tensor::cat(attention.backward(saved, gradient).to_vec(), 1).swap_dims(1, 2);
                let packed = vectors.reshape([batch, queries, (heads + 2 * key_heads) * depth]);
                [packed.try_into_primitive::<Cube>().ok().map(into_contiguous), None, None]
            }
        };
        let mut found = found.into_iter();
        std::array::from_fn(|_| found.next().flatten())
    }
}
