//! What a model gives with a cache of keys and values, beside what it gives without.

use brigade_core::{Cache, Chain};
use brigade_models::{Logits, Tokens};
use burn::tensor::{Device, Int, Tensor, TensorData};

const ROWS: usize = 2;

/// Some tokens, `[ROWS, positions]`.
pub fn tokens(positions: usize, vocabulary: usize) -> Tensor<2, Int> {
    let ids: Vec<i64> = (0..ROWS * positions)
        .map(|index| (index * index * 7 + index / 3) % vocabulary)
        .map(|id| id as i64)
        .collect();
    Tensor::from_data(TensorData::new(ids, [ROWS, positions]), &Device::flex())
}

/// The lengths of the parts of a text: a prompt, single tokens, and several at once.
pub fn parts(positions: usize) -> Vec<usize> {
    let beginning = [7, 1, 1, 3, 1, 1];
    let rest = positions - beginning.iter().sum::<usize>();
    beginning.into_iter().chain(std::iter::repeat_n(1, rest)).collect()
}

/// Checks that logits are the same where the positions of two texts come in parts, up to `positions`. Their bits need not be: products of fewer rows may add in
/// another order.
pub fn same_with_a_cache(chain: &Chain<Tokens, Logits>, positions: usize, vocabulary: usize) {
    let (chain, tokens) = (chain.valid(), tokens(positions, vocabulary));
    let whole = chain.predict(tokens.clone().into()).unwrap().whole().reshape([ROWS, positions, vocabulary]);
    let (mut cache, mut start) = (Cache::default(), 0);
    for length in parts(positions) {
        let part = tokens.clone().narrow(1, start, length);
        let found: Vec<f32> =
            chain.predict_cached(part.into(), &mut cache).unwrap().whole().try_into_vec_as().unwrap();
        let expected: Vec<f32> = whole.clone().narrow(1, start, length).try_into_vec_as().unwrap();
        for (a, b) in found.iter().zip(&expected) {
            assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{length} from {start}: {a}, not {b}");
        }
        start += length;
    }
}
