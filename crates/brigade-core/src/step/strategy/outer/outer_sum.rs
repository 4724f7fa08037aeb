//! How outer gradients are summed over the workers.

use std::sync::Arc;

use brigade_compress::{Codec, Quantizer, Rounding};
use brigade_kernels::cast;
use brigade_plan::CHUNK;
use burn::tensor::{DType, FloatDType, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::dist::{Collectives, Pending, PendingTensor};
use crate::error::{Error, Result};
use crate::step::gradients::accumulation::PairwiseSum;

/// The number type in which outer gradients are sent between workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OuterDtype {
    /// 32 bits.
    #[default]
    #[serde(rename = "fp32", alias = "f32")]
    F32,
    /// 16 bits: bfloat16, in which they are also summed.
    Bf16,
    /// 8-bit integers, rounded to nearest, and an fp32 scale for each [chunk](brigade_plan::CHUNK). They are summed in fp32, and the sum is
    /// sent in the same way. What rounding loses is not kept, as in Streaming DiLoCo (Douillard et al., 2025).
    Int8,
}

impl OuterDtype {
    /// Bytes of one value, without scales.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
            Self::Int8 => 1,
        }
    }

    /// Starts to sum fp32 values over the workers.
    pub(crate) fn sum(self, values: Tensor<1>, workers: &Arc<dyn Collectives>) -> PendingTensor {
        match self {
            Self::F32 => workers.all_reduce(values),
            Self::Bf16 => workers.all_reduce(cast(values, FloatDType::BF16)),
            Self::Int8 if workers.size() == 1 => Pending::ready(values),
            Self::Int8 => {
                sum_of_codes(values, workers).unwrap_or_else(|error| Pending::new(move || Err(error)))
            }
        }
    }
}

/// Elements of a unit are coded in the same blocks whatever part of it a rank has, since parts begin with a chunk: no mesh inside the workers
/// changes a bit.
const CODEC: Quantizer = Quantizer::int8(Rounding::Nearest, CHUNK);

/// The key of random numbers, which rounding to nearest does without.
const NO_KEY: u64 = 0;

/// Each worker codes a slice for every other, adds up its own of all, pairwise in their order, and codes that for all.
fn sum_of_codes(values: Tensor<1>, workers: &Arc<dyn Collectives>) -> Result<PendingTensor> {
    let (device, count, ranks) = (values.device(), values.dims()[0], workers.size());
    let slice = count.div_ceil(ranks).next_multiple_of(CHUNK);
    let bytes = CODEC.bytes(slice);
    let mut values = values.try_into_vec_as::<f32>().map_err(|error| Error::Device(error.to_string()))?;
    values.resize(slice * ranks, 0.0);
    let codes = values.chunks_exact(slice).flat_map(encoded).collect();
    let (pending, workers) = (workers.all_to_all_bytes(codes), workers.clone());
    Ok(Pending::in_phases(move || {
        let mut sum = PairwiseSum::new();
        for code in pending.wait()?.chunks_exact(bytes) {
            sum.push(decoded(code, slice), added);
        }
        let sum = sum.finish(added).unwrap_or_default();
        let codes = workers.all_gather_bytes(encoded(&sum));
        Ok(Pending::new(move || {
            let codes = codes.wait()?;
            let mut sums: Vec<f32> =
                codes.chunks_exact(bytes).flat_map(|code| decoded(code, slice)).collect();
            sums.truncate(count);
            Ok(Tensor::from_data(TensorData::new(sums, [count]), (&device, DType::F32)))
        }))
    }))
}

fn encoded(values: &[f32]) -> Vec<u8> {
    let mut code = vec![0; CODEC.bytes(values.len())];
    CODEC.encode(values, NO_KEY, &mut code);
    code
}

fn decoded(code: &[u8], count: usize) -> Vec<f32> {
    let mut values = vec![0.0; count];
    CODEC.decode(code, NO_KEY, &mut values);
    values
}

fn added(mut a: Vec<f32>, b: Vec<f32>) -> Vec<f32> {
    a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
    a
}
