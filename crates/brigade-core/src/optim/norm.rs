//! The global gradient norm, which has the same bits on any mesh, and clipping by it.

use brigade_kernels::{chunk_square_sums, square_sums};
use brigade_plan::CHUNK;
use burn::tensor::{Int, Tensor, TensorData, Transaction};

use crate::error::{Error, Result};
use crate::exact_sum::{EXPONENTS, ExactSum};

/// Sums of squares on a device.
enum Squares {
    /// By exponent, as [`square_sums`] makes them.
    ByExponent(Tensor<3, Int>),
    /// Those of chunks, by Burn's operations.
    OfChunks(Tensor<1>),
}

/// What there is to read of a device, if it does not have all of them already.
fn squares(gradients: &[Tensor<1>], at_once: usize, sum: &mut ExactSum) -> Option<Squares> {
    if let Some(sums) = square_sums(gradients, CHUNK) {
        return Some(Squares::ByExponent(sums));
    }
    let on_host: Option<Vec<_>> =
        gradients.iter().map(|gradient| chunk_square_sums(gradient, CHUNK)).collect();
    if let Some(sums) = on_host {
        sums.iter().for_each(|sums| sum.add_all(sums));
        return None;
    }
    let chunks: Vec<_> = gradients.iter().flat_map(|gradient| chunks(gradient, at_once)).collect();
    (!chunks.is_empty()).then(|| Squares::OfChunks(Tensor::cat(chunks, 0)))
}

/// The sum of the squares of flat gradients, without rounding what each chunk of [`CHUNK`] elements has in fp32, so that those of all shards add up to that of the whole buffer: a shard
/// consists of whole chunks, and the last chunk is padded with zeros. It processes `at_once` elements (whole chunks) at a time. With it come other `numbers`, a tensor each: it waits for
/// a device once, for all of them.
///
/// # Errors
/// If they cannot be read from it.
pub(crate) fn sum_of_squares(
    gradients: &[Tensor<1>],
    at_once: usize,
    numbers: Vec<Tensor<1>>,
) -> Result<(ExactSum, Vec<f32>)> {
    let mut sum = ExactSum::default();
    let squares = squares(gradients, at_once, &mut sum);
    let device = |squares: &Squares| match squares {
        Squares::ByExponent(sums) => sums.device(),
        Squares::OfChunks(sums) => sums.device(),
    };
    let (together, apart): (Vec<_>, Vec<_>) = match &squares {
        Some(squares) if numbers.iter().any(|number| number.device() != device(squares)) => {
            (Vec::new(), numbers)
        }
        _ => (numbers, Vec::new()),
    };
    let mut read = match squares {
        None => Transaction::default(),
        Some(Squares::ByExponent(ref sums)) => Transaction::default().register(sums.clone()),
        Some(Squares::OfChunks(ref sums)) => Transaction::default().register(sums.clone()),
    };
    for number in together {
        read = read.register(number);
    }
    let mut read = execute(read)?.into_iter();
    match squares.and_then(|squares| Some((squares, read.next()?))) {
        Some((Squares::ByExponent(_), sums)) => {
            let sums: Vec<u32> = sums.iter::<u32>().collect();
            for set in sums.chunks_exact(2 * EXPONENTS) {
                let wide = |pair: &[u32]| (u64::from(pair[1]) << 12) + u64::from(pair[0]);
                sum.add_of_exponents(set.chunks_exact(2).map(wide));
            }
        }
        Some((Squares::OfChunks(_), sums)) => sum.add_all(&sums.iter::<f32>().collect::<Vec<_>>()),
        None => {}
    }
    let apart = execute(apart.into_iter().fold(Transaction::default(), Transaction::register))?;
    Ok((sum, read.chain(apart).filter_map(|data| data.iter::<f32>().next()).collect()))
}

fn execute(transaction: Transaction) -> Result<Vec<TensorData>> {
    transaction.try_execute().map_err(|error| Error::Device(error.to_string()))
}

/// The sum of squares of each chunk, by Burn's operations.
fn chunks(gradient: &Tensor<1>, at_once: usize) -> Vec<Tensor<1>> {
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
            let sum = |values: &[f32]| {
                sum_of_squares(&[Tensor::from_floats(values, &device)], AT_ONCE, vec![]).unwrap().0
            };
            let whole = sum(&values);
            assert!((whole.value() - exact).abs() <= 1e-5 * exact.max(1e-9), "{len}: {whole:?} {exact}");
            let mut padded = values.clone();
            padded.resize(len.next_multiple_of(CHUNK), 0.0);
            let mut shards = ExactSum::default();
            for shard in padded.chunks(2 * CHUNK).rev() {
                shards.merge(&sum(shard));
            }
            assert_eq!(whole, shards, "neither padding nor sharding changes anything at {len}");
            let gradient = Tensor::from_floats(values.as_slice(), &device);
            let mut by_burn = ExactSum::default();
            for sums in chunks(&gradient, AT_ONCE) {
                by_burn.add_all(&sums.into_data().iter::<f32>().collect::<Vec<_>>());
            }
            assert!((by_burn.value() - exact).abs() <= 1e-5 * exact.max(1e-9), "{len}: {by_burn:?} {exact}");
        }
    }

    #[test]
    fn clips_only_above_the_limit() {
        assert_eq!(clip_factor(0.5, Some(1.0)), None);
        assert_eq!(clip_factor(2.0, None), None);
        assert!((clip_factor(2.0, Some(1.0)).unwrap() - 0.5).abs() < 1e-6);
    }
}
