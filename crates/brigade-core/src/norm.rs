//! The global gradient norm, whose bits no mesh changes, and clipping by it.

use brigade_plan::CHUNK;
use burn::tensor::Tensor;

use crate::error::{Error, Result};
use crate::exact::ExactSum;

/// Elements that are squared and summed at once: small enough to stay in a core's cache.
const PIECE: usize = 256 * CHUNK;

/// The sum of squares of a flat gradient: each chunk of [`CHUNK`] elements in fp32, the last one
/// padded with zeros, then the chunks without rounding. A shard, being whole chunks, gives the same
/// numbers for its chunks as the whole buffer does, and the sum of all shards' sums is that of the whole.
///
/// # Errors
/// If the sums cannot be read from the device.
pub(crate) fn squares(gradient: &Tensor<1>) -> Result<ExactSum> {
    let [len] = gradient.dims();
    let mut sums = Vec::new();
    for start in (0..len).step_by(PIECE) {
        let mut piece = gradient.clone().slice(start..(start + PIECE).min(len));
        let [length] = piece.dims();
        let padded = length.next_multiple_of(CHUNK);
        if padded > length {
            let zeros = Tensor::zeros([padded - length], &piece.device());
            piece = Tensor::cat(vec![piece, zeros], 0);
        }
        let squares = piece.clone().mul(piece).reshape([padded / CHUNK, CHUNK]);
        sums.push(squares.sum_dim(1).reshape([padded / CHUNK]));
    }
    let mut sum = ExactSum::default();
    if !sums.is_empty() {
        let sums = Tensor::cat(sums, 0).try_into_vec_as::<f32>().map_err(|e| Error::Device(e.to_string()))?;
        sums.into_iter().for_each(|chunk| sum.add(chunk));
    }
    Ok(sum)
}

/// The factor that brings a gradient of norm `norm` down to `limit`: `limit / (norm + 1e-6)` where
/// that is below 1, as PyTorch's `clip_grad_norm_` has it; none where nothing is to be scaled.
pub fn clip_factor(norm: f64, limit: Option<f64>) -> Option<f64> {
    limit.map(|limit| limit / (norm + 1e-6)).filter(|factor| *factor < 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn whole_chunks_add_up_to_the_whole() {
        let device = Device::default();
        for len in [0usize, 1, 255, 256, 257, 3 * CHUNK, PIECE + 300] {
            let values: Vec<f32> = (0..len).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.01).collect();
            let exact: f64 = values.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
            let whole = squares(&Tensor::from_floats(values.as_slice(), &device)).unwrap();
            assert!((whole.value() - exact).abs() <= 1e-5 * exact.max(1e-9), "{len}: {whole:?} {exact}");
            let mut padded = values.clone();
            padded.resize(len.next_multiple_of(CHUNK), 0.0);
            let mut shards = ExactSum::default();
            for shard in padded.chunks(2 * CHUNK).rev() {
                shards.merge(&squares(&Tensor::from_floats(shard, &device)).unwrap());
            }
            assert_eq!(whole, shards, "neither padding nor sharding changes anything at {len}");
        }
    }

    #[test]
    fn clips_only_above_the_limit() {
        assert_eq!(clip_factor(0.5, Some(1.0)), None);
        assert_eq!(clip_factor(2.0, None), None);
        assert!((clip_factor(2.0, Some(1.0)).unwrap() - 0.5).abs() < 1e-6);
    }
}
