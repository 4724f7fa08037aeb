//! Attention: by kernels that keep scores in registers where the device has them, else with probabilities that are made in the place of the scores.

pub(crate) mod causal;
pub(crate) mod flash;
pub(crate) mod heads;
pub(crate) mod softmax;

use std::ops::Range;

use brigade_simd::attention::AttentionShape;
use burn::backend::Cube;
use burn::tensor::{DType, Int, Tensor, TensorData};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use crate::autodiff::graph::Operation;
use crate::cube::attention::causal::blocks;
use crate::cube::attention::flash::{Flash, Vectors};
use crate::cube::attention::heads::Heads;
use crate::cube::attention::softmax::{Keys, Part, Visible, softmax, softmax_backward};
use crate::cube::launch::{empty, reshaped, rows, transposed};
use crate::cube::linear::products::{product, products};
use crate::mask::Mask;

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

/// What the backward pass needs.
#[derive(Debug, Clone)]
pub(crate) enum Saved {
    Logarithms(Box<Logarithms>),
    Probabilities(Box<Probabilities>),
}

/// Of kernels that make scores again: queries, keys and values as they came, the output, and the logarithm of each query's sum.
#[derive(Debug, Clone)]
pub(crate) struct Logarithms {
    flash: Flash,
    inputs: [CubeTensor; 3],
    output: CubeTensor,
    logarithms: CubeTensor,
}

/// Queries as `[batch, key_heads, queries of the heads that share keys, depth]`, keys and values, and the probabilities.
#[derive(Debug, Clone)]
pub(crate) struct Probabilities {
    q: CubeTensor,
    k: CubeTensor,
    v: CubeTensor,
    probabilities: CubeTensor,
    /// If they were computed by blocks.
    blocks: Option<Vec<Range<usize>>>,
}

impl Attention {
    /// The output, `[batch, heads, queries, value_depth]`. All tensors are contiguous.
    fn forward(&self, [q, k, v]: [CubeTensor; 3]) -> (CubeTensor, Probabilities) {
        let AttentionShape { batch, heads, key_heads, queries, keys, depth, value_depth } = self.shape;
        let q = reshaped(q, [batch, key_heads, heads / key_heads * queries, depth]);
        let visible = self.keys(&q);
        let blocks = (self.mask == Mask::Causal && heads == key_heads && depth == value_depth)
            .then(|| blocks(&q, [queries, keys]))
            .flatten();
        if let Some(blocks) = blocks
            && let Some([mixed, probabilities]) = causal::forward([&q, &k, &v], &blocks, &visible, self.scale)
        {
            return (mixed, Probabilities { q, k, v, probabilities, blocks: Some(blocks) });
        }
        let (scores, _) = rows(product(q.clone(), transposed(k.clone()), q.dtype));
        softmax(&scores, &visible, self.scale, Part::all(&scores));
        let (mixed, _) = rows(product(scores.clone(), v.clone(), q.dtype));
        let mixed = reshaped(mixed, [batch, heads, queries, value_depth]);
        (mixed, Probabilities { q, k, v, probabilities: scores, blocks: None })
    }

    /// The gradients of queries, keys and values. All tensors are contiguous.
    fn backward(&self, saved: Probabilities, gradient: CubeTensor) -> [CubeTensor; 3] {
        let AttentionShape { batch, heads, key_heads, queries, depth, value_depth, .. } = self.shape;
        let Probabilities { q, k, v, probabilities, blocks } = saved;
        let gradient = reshaped(gradient, [batch, key_heads, heads / key_heads * queries, value_depth]);
        if let Some(blocks) = blocks {
            let of = [&probabilities, &gradient];
            let found = causal::backward([&q, &k, &v], of, &blocks, self.scale);
            return found
                .unwrap_or_else(|| panic!("products of the forward pass, but none of the backward pass"));
        }
        let dtype = q.dtype;
        let of_v = (transposed(probabilities.clone()), gradient.clone());
        let [d_v, slopes] = products([of_v, (gradient, transposed(v))], dtype);
        let (slopes, _) = rows(slopes);
        softmax_backward(&slopes, &probabilities, self.scale, Part::all(&slopes));
        let [d_q, d_k] = products([(slopes.clone(), k), (transposed(slopes), q)], dtype);
        let [d_q, d_k, d_v] = [d_q, d_k, d_v].map(|gradient| rows(gradient).0);
        [reshaped(d_q, [batch, heads, queries, depth]), d_k, d_v]
    }

    fn keys(&self, like: &CubeTensor) -> Keys {
        let none = || empty(like, [2], DType::U32);
        let (visible, window, ranges) = match &self.mask {
            Mask::None => (Visible::All, self.shape.keys, none()),
            Mask::Causal => (Visible::Causal, self.shape.keys, none()),
            Mask::Window(window) => (Visible::Causal, (*window).min(self.shape.keys), none()),
            Mask::Ranges(ranges) => {
                let expected = self.shape.batch * self.shape.queries;
                assert!(ranges.len() == expected, "{} ranges of keys for {expected} queries", ranges.len());
                (Visible::Ranges, self.shape.keys, numbers(ranges.concat(), like))
            }
        };
        Keys { visible, window, ranges, key_heads: self.shape.key_heads, queries: self.shape.queries }
    }
}

/// Numbers on the device of a tensor.
pub(crate) fn numbers(numbers: Vec<u32>, like: &CubeTensor) -> CubeTensor {
    let (count, flat) = (numbers.len(), [like.meta.num_elements()]);
    let device = Tensor::<1>::from_primitive::<Cube>(reshaped(like.clone(), flat)).device();
    let numbers = Tensor::<1, Int>::from_data(TensorData::new(numbers, [count]), (&device, DType::U32));
    let Ok(numbers) = numbers.try_into_primitive::<Cube>() else {
        unreachable!("it is on the device of the tensor")
    };
    numbers
}

impl Layout {
    fn attention(&self) -> &Attention {
        let (Self::Separate(attention) | Self::Packed(attention)) = self;
        attention
    }

    /// Queries, keys and values among packed vectors.
    fn heads(&self) -> [Heads; 3] {
        let AttentionShape { batch, heads, key_heads, queries, depth, .. } = self.attention().shape;
        [(0, heads), (heads, key_heads), (heads + key_heads, key_heads)].map(|(first, count)| {
            let all = heads + 2 * key_heads;
            Heads { batch, positions: queries, depth, all, first, count }
        })
    }

    /// The heads of the output.
    fn output(&self) -> Heads {
        let AttentionShape { batch, heads, queries, value_depth, .. } = self.attention().shape;
        Heads { batch, positions: queries, depth: value_depth, all: heads, first: 0, count: heads }
    }

    /// Where queries, keys, values and outputs are.
    fn vectors(&self) -> [Vectors; 4] {
        match self {
            Self::Separate(attention) => {
                let AttentionShape { heads, key_heads, queries, keys, depth, value_depth, .. } =
                    attention.shape;
                let of = |heads: usize, positions: usize, depth: usize| Vectors {
                    first: 0,
                    batch: heads * positions * depth,
                    head: positions * depth,
                    position: depth,
                };
                [
                    of(heads, queries, depth),
                    of(key_heads, keys, depth),
                    of(key_heads, keys, value_depth),
                    of(heads, queries, value_depth),
                ]
            }
            Self::Packed(_) => {
                let of = |Heads { positions, depth, all, first, .. }: Heads| Vectors {
                    first: first * depth,
                    batch: positions * all * depth,
                    head: depth,
                    position: all * depth,
                };
                let [q, k, v] = self.heads();
                [q, k, v, self.output()].map(of)
            }
        }
    }

    /// Memory for the output.
    fn empty_output(&self, like: &CubeTensor) -> CubeTensor {
        let AttentionShape { batch, heads, queries, value_depth, .. } = self.attention().shape;
        match self {
            Self::Separate(_) => empty(like, [batch, heads, queries, value_depth], like.dtype),
            Self::Packed(_) => empty(like, [batch, queries, heads * value_depth], like.dtype),
        }
    }

    /// Queries, keys and values, contiguous: those of a packed tensor are all in one.
    fn inputs(&self, mut given: impl Iterator<Item = CubeTensor>) -> [CubeTensor; 3] {
        let mut next =
            || given.next().map_or_else(|| unreachable!("as many as the layout has"), into_contiguous);
        match self {
            Self::Separate(_) => [(); 3].map(|()| next()),
            Self::Packed(_) => {
                let all = next();
                [all.clone(), all.clone(), all]
            }
        }
    }
}

impl<const N: usize> Operation<N, CubeTensor> for Layout {
    type Saved = Saved;
    type Extra = ();

    fn forward(&self, inputs: [CubeTensor; N], _: [bool; N]) -> (CubeTensor, Option<Saved>, ()) {
        let inputs = self.inputs(inputs.into_iter());
        if let Some(flash) = Flash::of(self.attention(), self.vectors(), &inputs[0]) {
            let output = self.empty_output(&inputs[0]);
            let logarithms = flash.forward(inputs.each_ref(), &output);
            let saved = Logarithms { flash, inputs, output: output.clone(), logarithms };
            return (output, Some(Saved::Logarithms(Box::new(saved))), ());
        }
        match self {
            Self::Separate(attention) => {
                let (mixed, saved) = attention.forward(inputs);
                (mixed, Some(Saved::Probabilities(Box::new(saved))), ())
            }
            Self::Packed(attention) => {
                let (mixed, saved) = attention.forward(self.heads().map(|heads| heads.split(&inputs[0])));
                let output = self.empty_output(&inputs[0]);
                self.output().merge(mixed, &output);
                (output, Some(Saved::Probabilities(Box::new(saved))), ())
            }
        }
    }

    fn backward(self, saved: Saved, gradient: CubeTensor, _: [bool; N]) -> [Option<CubeTensor>; N] {
        let gradient = into_contiguous(gradient);
        let like = |tensor: &CubeTensor| empty(tensor, tensor.meta.shape().clone(), tensor.dtype);
        let gradients = match (&self, saved) {
            (_, Saved::Logarithms(saved)) => {
                let Logarithms { flash, inputs, output, logarithms } = *saved;
                let gradients = self.inputs(inputs.iter().map(like));
                let of = [&output, &gradient, &logarithms];
                flash.backward(inputs.each_ref(), of, gradients.each_ref());
                gradients
            }
            (Self::Separate(attention), Saved::Probabilities(saved)) => attention.backward(*saved, gradient),
            (Self::Packed(attention), Saved::Probabilities(saved)) => {
                let parts = attention.backward(*saved, self.output().split(&gradient));
                let AttentionShape { batch, heads, key_heads, queries, depth, .. } = attention.shape;
                let packed = [batch, queries, (heads + 2 * key_heads) * depth];
                let packed = empty(&gradient, packed, gradient.dtype);
                for (heads, part) in self.heads().into_iter().zip(parts) {
                    heads.merge(part, &packed);
                }
                [packed.clone(), packed.clone(), packed]
            }
        };
        // Of a packed tensor, all are the same.
        let mut gradients = gradients.into_iter();
        std::array::from_fn(|_| gradients.next())
    }
}
