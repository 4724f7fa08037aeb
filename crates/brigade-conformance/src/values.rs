//! What ranks contribute, what the results must be, and how tensors are made and read.

use std::ops::Range;

use brigade_core::{Collectives, PairwiseSum};
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use half::{bf16, f16};

use crate::{Suite, Sums};

/// What rank `rank` contributes: values of that type whose sum over the ranks depends on the order of addition.
pub(crate) fn given(rank: usize, length: usize, dtype: FloatDType) -> Vec<f32> {
    let spread: f32 = if dtype == FloatDType::F32 { 1000.0 } else { 8.0 };
    let scale = spread.powi((rank % 4) as i32);
    (0..length).map(|i| round(((i * 31 + rank * 17) as f32 * 0.37).sin() * scale, dtype)).collect()
}

/// The nearest value of that type.
fn round(value: f32, dtype: FloatDType) -> f32 {
    match dtype {
        FloatDType::F32 => value,
        FloatDType::BF16 => bf16::from_f32(value).to_f32(),
        FloatDType::F16 => f16::from_f32(value).to_f32(),
        other => panic!("the suite has no values of {other:?}"),
    }
}

/// The difference between 1 and the next value of that type.
fn epsilon(dtype: FloatDType) -> f64 {
    match dtype {
        FloatDType::F32 => f32::EPSILON.into(),
        FloatDType::BF16 => bf16::EPSILON.into(),
        FloatDType::F16 => f16::EPSILON.into(),
        other => panic!("the suite has no values of {other:?}"),
    }
}

/// A tensor of these values, which are of that type already.
pub(crate) fn tensor(values: &[f32], dtype: FloatDType, device: &Device) -> Tensor<1> {
    let bytes: Vec<u8> = match dtype {
        FloatDType::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        FloatDType::BF16 => values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect(),
        FloatDType::F16 => values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(),
        other => panic!("the suite has no values of {other:?}"),
    };
    let data = TensorData::from_bytes_vec(bytes, [values.len()], DType::from(dtype));
    Tensor::from_data(data, (device, DType::from(dtype)))
}

/// A rank's contribution as a tensor.
pub(crate) fn contribution(suite: &Suite, rank: usize, length: usize, dtype: FloatDType) -> Tensor<1> {
    tensor(&given(rank, length, dtype), dtype, &suite.device)
}

/// A tensor's values, which are of that type.
pub(crate) fn values(tensor: Tensor<1>, dtype: FloatDType) -> Vec<f32> {
    let data = tensor.try_into_data().unwrap();
    assert_eq!(data.dtype(), DType::from(dtype), "the type of a result");
    let bytes = data.as_bytes();
    match dtype {
        FloatDType::F32 => bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect(),
        FloatDType::BF16 => {
            bytes.as_chunks().0.iter().map(|value| bf16::from_le_bytes(*value).to_f32()).collect()
        }
        FloatDType::F16 => {
            bytes.as_chunks().0.iter().map(|value| f16::from_le_bytes(*value).to_f32()).collect()
        }
        other => panic!("the suite has no values of {other:?}"),
    }
}

/// Fails unless both have the same bits.
pub(crate) fn same(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: number of elements");
    if let Some(i) = (0..found.len()).find(|i| found[*i].to_bits() != expected[*i].to_bits()) {
        panic!("{what}: element {i} is {:e}, not {:e}", found[i], expected[i]);
    }
}

/// Fails unless a rank has the sum over all ranks of these elements of contributions of `length` elements.
pub(crate) fn is_sum(
    suite: &Suite,
    ranks: &dyn Collectives,
    found: &[f32],
    elements: Range<usize>,
    length: usize,
    dtype: FloatDType,
) {
    let given: Vec<_> = (0..ranks.size()).map(|rank| given(rank, length, dtype)).collect();
    assert_eq!(found.len(), elements.len(), "a sum's number of elements, of {length} in {dtype:?}");
    for (i, found) in elements.zip(found) {
        let terms = || given.iter().map(|values| values[i]);
        let what = || format!("element {i} of {length} in {dtype:?} on rank {}", ranks.rank());
        match suite.sums {
            Sums::Exact => {
                let mut sum = PairwiseSum::new();
                terms().for_each(|term| sum.push(term, |a, b| a + b));
                let sum = round(sum.finish(|a, b| a + b).unwrap(), dtype);
                assert_eq!(found.to_bits(), sum.to_bits(), "{}: {found:e}, not {sum:e}", what());
            }
            Sums::Within(epsilons) => {
                let sum: f64 = terms().map(f64::from).sum();
                let most = epsilons * epsilon(dtype) * terms().map(|term| f64::from(term).abs()).sum::<f64>();
                let difference = (f64::from(*found) - sum).abs();
                assert!(difference <= most, "{}: {found:e} is {difference:e} from {sum:e}", what());
            }
        }
    }
}
