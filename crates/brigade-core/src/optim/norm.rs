//! The global gradient norm, which has the same bits on any mesh, and clipping by it.

use brigade_kernels::chunk_squares;
use brigade_plan::CHUNK;
use burn::tensor::Tensor;

use crate::error::{Error, Result};
use crate::exact_sum::ExactSum;

/// Sums of squares of a flat gradient: one per chunk of [`CHUNK`] elements, in fp32, the last chunk padded with zeros. It processes
/// `at_once` elements (whole chunks) at a time. A shard consists of whole chunks, so it gives the same numbers for its chunks
/// as the whole buffer does.
pub(crate) fn squares(gradient: &Tensor<1>, at_once: usize) -> Vec<Tensor<1>> {
    if let Some(sums) = chunk_squares(gradient, CHUNK) {
        return sums;
    }
    let [len] = gradient.dims();
    let starts = (0..len).step_by(at_once);
    let sums = starts.map(|start| {
        let mut piece = gradient.clone().slice(start..(start + at_once).min(len));
        let [length] = piece.dims();
        let padded = length.next_multiple_of(CHUNK);
        if padded > length {
            let zeros = Tensor::zeros([padded - length], &piece.device());
            piece = Tensor::cat(vec![piece, zeros], 0);
        }
        let squares = piece.clone().mul(piece).reshape([padded / CHUNK, CHUNK]);
        squares.sum_dim(1).reshape([padded / CHUNK])
    });
    sums.collect()
}

/// The sum of all chunks, without rounding, so that the sums of all shards add up to that of the whole buffer. It waits for the
/// device once.
///
/// # Errors
/// If the sums cannot be read from it.
pub(crate) fn exact_sum(chunks: Vec<Tensor<1>>) -> Result<ExactSum> {
    let mut sum = ExactSum::default();
    if !chunks.is_empty() {
        let read = Tensor::cat(chunks, 0).try_into_vec_as::<f32>();
        sum.add_all(&read.map_err(|e| Error::Device(e.to_string()))?);
    }
    Ok(sum)
}

/// The factor that brings a gradient of norm `norm` down to `limit`: `limit / (norm + 1e-6)` where
/// that is below 1, as in PyTorch's `clip_grad_norm_`; `None` if nothing needs scaling.
pub fn clip_factor(norm: f64, limit: Option<f64>) -> Option<f64> {
    limit.map(|limit| limit / (norm + 1e-6)).filter(|factor| *factor < 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    const AT_ONCE: usize = 16 * CHUNK;

    #[test]
    fn whole_chunks_add_up_to_the_whole() {
        let device = Device::default();
        for len in [0usize, 1, 255, 256, 257, 3 * CHUNK, AT_ONCE + 300] {
            let values: Vec<f32> = (0..len).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.01).collect();
            let exact: f64 = values.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
            let sum =
                |values: &[f32]| exact_sum(squares(&Tensor::from_floats(values, &device), AT_ONCE)).unwrap();
            let whole = sum(&values);
            assert!((whole.value() - exact).abs() <= 1e-5 * exact.max(1e-9), "{len}: {whole:?} {exact}");
            let mut padded = values.clone();
            padded.resize(len.next_multiple_of(CHUNK), 0.0);
            let mut shards = ExactSum::default();
            for shard in padded.chunks(2 * CHUNK).rev() {
                shards.merge(&sum(shard));
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
