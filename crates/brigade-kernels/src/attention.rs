//! Scaled dot-product attention, without a matrix of scores.

use brigade_simd::DropoutMask;
use brigade_simd::attention::AttentionShape;
use burn::tensor::activation::softmax;
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

use crate::host::apply;
use crate::host::attention::{Attention, Packed, Separate};
use crate::mask::Mask;

/// `softmax(scale · q · kᵀ) · v` over the keys that each query sees; 0 for a query that sees none.
///
/// `q`: `[batch, heads, queries, depth]`; `k`: `[batch, key_heads, keys, depth]`; `v`: `[batch, key_heads, keys, value_depth]`, where `heads` is a multiple of
/// `key_heads`. The result: `[batch, heads, queries, value_depth]`. On the CPU no more scores than a tile are in memory, forward and backward, and tensors are read
/// as they lie, also where heads and positions are swapped, as they are in the result then.
///
/// # Panics
/// If the shapes do not fit.
pub fn attention(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, mask: Mask, scale: f64) -> Tensor<4> {
    attend(q, k, v, mask, scale, None)
}

/// [`attention`] in training, with dropout of the probabilities. Which are dropped is a function of the dropout's seed and of the place alone, on any device and in any type.
/// Where operations are not [fused on the CPU](crate::is_fused_on_cpu), what is dropped is decided on the host, which takes long.
///
/// # Panics
/// As [`attention`], and if the dropout's probability is not between 0 and 1.
pub fn attention_with_dropout(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    mask: Mask,
    scale: f64,
    dropout: DropoutMask,
) -> Tensor<4> {
    attend(q, k, v, mask, scale, Some(dropout))
}

fn attend(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    mask: Mask,
    scale: f64,
    dropout: Option<DropoutMask>,
) -> Tensor<4> {
    let ([batch, heads, queries, depth], [_, key_heads, keys, _]) = (q.dims(), k.dims());
    let value_depth = v.dims()[3];
    let fits =
        k.dims() == [batch, key_heads, keys, depth] && v.dims() == [batch, key_heads, keys, value_depth];
    assert!(
        fits,
        "keys of {:?} and values of {:?} do not fit queries of {:?}: keys must be [{batch}, key heads, keys, {depth}], and values [{batch}, key heads, keys, any depth]",
        k.dims(),
        v.dims(),
        q.dims()
    );
    check_heads(heads, key_heads);
    let shape = AttentionShape { batch, heads, key_heads, queries, keys, depth, value_depth };
    let operation = Separate(Attention { shape, mask: mask.clone(), scale: scale as f32, dropout });
    let tensors = [&q, &k, &v].map(|tensor| tensor.clone().into_dispatch());
    let fused = apply(operation, tensors.each_ref());
    #[cfg(feature = "cube")]
    let fused = fused.or_else(|| {
        let attention = crate::cube::Attention { shape, mask: mask.clone(), scale: scale as f32 };
        // Before the first key there is none to see.
        let runs = dropout.is_none() && queries <= keys;
        runs.then(|| crate::cube::apply(crate::cube::Layout::Separate(attention), tensors.each_ref()))
            .flatten()
    });
    match fused {
        Some((output, ())) => Tensor::from_dispatch(output),
        None => plain(q, k, v, &mask, scale, None, |probabilities| dropped(probabilities, &shape, dropout)),
    }
}

fn check_heads(heads: usize, key_heads: usize) {
    assert!(
        key_heads > 0 && heads.is_multiple_of(key_heads),
        "{heads} heads of queries are not a multiple of {key_heads} heads of keys and values"
    );
}

/// Probabilities after dropout, if there is any.
fn dropped(probabilities: Tensor<4>, shape: &AttentionShape, dropout: Option<DropoutMask>) -> Tensor<4> {
    let Some(dropout) = dropout else { return probabilities };
    let factors = factors(dropout, [shape.rows(), shape.keys], &probabilities.device().inner());
    let factors = factors.cast(FloatDType::from(probabilities.dtype()));
    let dims = probabilities.dims();
    probabilities * factors.reshape(dims)
}

/// What multiplies the probabilities of each query of each head, `[rows, keys]`.
fn factors(dropout: DropoutMask, [rows, keys]: [usize; 2], device: &Device) -> Tensor<2> {
    let mut factors = vec![0.0f32; rows * keys];
    for (row, factors) in factors.chunks_exact_mut(keys.max(1)).enumerate() {
        dropout.factors(row, 0, factors);
    }
    Tensor::from_data(TensorData::new(factors, [rows, keys]), (device, DType::F32))
}

/// [`attention`] by Burn's operations. Its scores become `softcap · tanh(score / softcap)` where there is a soft cap (Gemma Team, "Gemma 2", 2024), and its
/// probabilities, `[batch, heads, queries, keys]`, go through a function before they meet the values, such as dropout.
pub fn attention_through(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    mask: &Mask,
    scale: f64,
    softcap: Option<f64>,
    function: impl FnOnce(Tensor<4>) -> Tensor<4>,
) -> Tensor<4> {
    let ([batch, heads, queries, _], [_, key_heads, keys, _]) = (q.dims(), k.dims());
    plain(q, k, v, mask, scale, softcap, |probabilities| {
        let grouped = [batch, key_heads, heads / key_heads * queries, keys];
        function(probabilities.reshape([batch, heads, queries, keys])).reshape(grouped)
    })
}

/// [`attention`] where one product gave queries, keys and values: `qkv` is `[batch, positions, (heads + 2 · key_heads) · depth]`, of each position all queries, all keys, and
/// all values. The result: `[batch, positions, heads · depth]`. Its gradient is made in one piece.
///
/// # Panics
/// If the last dimension does not fit this number of heads.
pub fn attention_packed(qkv: Tensor<3>, heads: usize, key_heads: usize, mask: Mask, scale: f64) -> Tensor<3> {
    attend_packed(qkv, [heads, key_heads], mask, scale, None)
}

/// [`attention_packed`] in training, with dropout as that of [`attention_with_dropout`].
///
/// # Panics
/// As [`attention_packed`], and if the dropout's probability is not between 0 and 1.
pub fn attention_packed_with_dropout(
    qkv: Tensor<3>,
    heads: usize,
    key_heads: usize,
    mask: Mask,
    scale: f64,
    dropout: DropoutMask,
) -> Tensor<3> {
    attend_packed(qkv, [heads, key_heads], mask, scale, Some(dropout))
}

fn attend_packed(
    qkv: Tensor<3>,
    [heads, key_heads]: [usize; 2],
    mask: Mask,
    scale: f64,
    dropout: Option<DropoutMask>,
) -> Tensor<3> {
    let [batch, positions, width] = qkv.dims();
    let depth = width / (heads + 2 * key_heads).max(1);
    check_heads(heads, key_heads);
    assert!(
        depth * (heads + 2 * key_heads) == width,
        "the last dimension of {:?} must be a multiple of {}: {heads} heads of queries, {key_heads} of keys and {key_heads} of values",
        qkv.dims(),
        heads + 2 * key_heads
    );
    let shape = AttentionShape {
        batch,
        heads,
        key_heads,
        queries: positions,
        keys: positions,
        depth,
        value_depth: depth,
    };
    let operation = Packed(Attention { shape, mask: mask.clone(), scale: scale as f32, dropout });
    let tensor = qkv.clone().into_dispatch();
    let fused = apply(operation, [&tensor]);
    #[cfg(feature = "cube")]
    let fused = fused.or_else(|| {
        let attention = crate::cube::Attention { shape, mask: mask.clone(), scale: scale as f32 };
        let runs = dropout.is_none();
        runs.then(|| crate::cube::apply(crate::cube::Layout::Packed(attention), [&tensor])).flatten()
    });
    match fused {
        Some((output, ())) => Tensor::from_dispatch(output),
        None => {
            let vectors = qkv.reshape([batch, positions, heads + 2 * key_heads, depth]).swap_dims(1, 2);
            let part = |from: usize, to: usize| vectors.clone().slice([0..batch, from..to]);
            let (k, v) = (part(heads, heads + key_heads), part(heads + key_heads, heads + 2 * key_heads));
            let mixed = plain(part(0, heads), k, v, &mask, scale, None, |probabilities| {
                dropped(probabilities, &shape, dropout)
            });
            mixed.swap_dims(1, 2).reshape([batch, positions, heads * depth])
        }
    }
}

/// By Burn's operations, with a function of probabilities: `[batch, key_heads, queries of the heads that share keys, keys]`.
fn plain(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    mask: &Mask,
    scale: f64,
    softcap: Option<f64>,
    function: impl FnOnce(Tensor<4>) -> Tensor<4>,
) -> Tensor<4> {
    let ([batch, heads, queries, depth], [_, key_heads, keys, value_depth]) = (q.dims(), v.dims());
    let group = heads / key_heads;
    // The heads that look at the same keys, one after another.
    let q = q.mul_scalar(scale).reshape([batch, key_heads, group * queries, depth]);
    let scores = q.matmul(k.swap_dims(2, 3));
    let scores = softcap.into_iter().fold(scores, soft_capped);
    let device = scores.device().inner();
    let probabilities = match mask.hidden([batch, queries, keys], &device) {
        None => softmax(scores, 3),
        Some(hidden) => {
            let none = hidden.clone().all_dim(3);
            let shape = [batch, key_heads * group, queries, keys];
            let scores = scores.reshape(shape);
            let hidden = hidden.expand(shape);
            let probabilities = softmax(scores.mask_fill(hidden, f32::NEG_INFINITY), 3);
            let probabilities = match mask.may_hide_all([queries, keys]) {
                true => probabilities.mask_fill(none.expand(shape), 0.0),
                false => probabilities,
            };
            probabilities.reshape([batch, key_heads, group * queries, keys])
        }
    };
    function(probabilities).matmul(v).reshape([batch, heads, queries, value_depth])
}

/// `cap · tanh(x / cap)`: as x near 0, and never beyond the cap.
pub fn soft_capped<const D: usize>(x: Tensor<D>, cap: f64) -> Tensor<D> {
    x.div_scalar(cap).tanh().mul_scalar(cap)
}
