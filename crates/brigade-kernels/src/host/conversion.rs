//! The same numbers in another type.

use std::marker::PhantomData;

use burn::tensor::{DType, FloatDType, Tensor, bf16};
use burn_flex::FlexTensor;

use super::{Buffer, FusedOperation, Number, apply, contiguous, values};

/// [`Tensor::cast`], rounded to the nearest even; a tensor of that type is given as it is.
///
/// ```
/// use brigade_kernels::cast;
/// use burn::tensor::{DType, Device, FloatDType, Tensor};
///
/// let narrow = cast(Tensor::<1>::from_floats([1.0, 0.1], &Device::flex()), FloatDType::BF16);
/// assert_eq!(narrow.dtype(), DType::BF16);
/// ```
pub fn cast<const D: usize>(tensor: Tensor<D>, dtype: FloatDType) -> Tensor<D> {
    let dtype_of_tensor = tensor.dtype();
    if dtype_of_tensor == dtype.into() {
        return tensor;
    }
    let dispatch = tensor.clone().into_dispatch();
    let cast = match (dtype_of_tensor, dtype) {
        (DType::F32, FloatDType::BF16) => apply(Cast::<bf16>(PhantomData), [&dispatch]),
        (DType::BF16, FloatDType::F32) => apply(Cast::<f32>(PhantomData), [&dispatch]),
        _ => None,
    };
    match cast {
        Some((cast, ())) => Tensor::from_dispatch(cast),
        None => tensor.cast(dtype),
    }
}

/// To this type.
#[derive(Debug)]
struct Cast<To>(PhantomData<To>);

impl<To: Number> FusedOperation<1> for Cast<To> {
    type Saved = ();
    type Extra = ();

    fn forward<T: Number>(&self, [x]: [FlexTensor; 1], _: [bool; 1]) -> (FlexTensor, Option<()>, ()) {
        (converted::<T, To>(x), Some(()), ())
    }

    fn backward<T: Number>(self, (): (), gradient: FlexTensor, _: [bool; 1]) -> [Option<FlexTensor>; 1] {
        [Some(converted::<To, T>(gradient))]
    }
}

fn converted<From: Number, To: Number>(tensor: FlexTensor) -> FlexTensor {
    let tensor = contiguous(tensor);
    let mut numbers = Buffer::<To>::new(tensor.layout().num_elements());
    brigade_simd::convert(values::<From>(&tensor), &mut numbers);
    numbers.into_tensor(tensor.layout().shape().clone())
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;

    /// Edges of both types, and numbers between two of bf16.
    fn numbers() -> Tensor<2> {
        let edges =
            [0.0, -0.0, f32::MIN_POSITIVE, 1e-40, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
        let between = (0..24).map(|index| f32::from_bits(0x3f80_0000 + 0x4000 * index + index % 3));
        let numbers: Vec<f32> = edges.into_iter().chain(between).collect();
        Tensor::from_data(TensorData::new(numbers, [4, 8]), &Device::flex())
    }

    fn bits<const D: usize>(tensor: Tensor<D>) -> Vec<u8> {
        tensor.into_data().as_bytes().to_vec()
    }

    #[test]
    fn it_has_the_bits_of_burns() {
        for x in [numbers(), numbers().slice([1..3, 2..7]), numbers().slice([0..0, 0..8])] {
            let narrow = cast(x.clone(), FloatDType::BF16);
            assert_eq!(narrow.dtype(), DType::BF16);
            assert_eq!(bits(narrow.clone()), bits(x.clone().cast(FloatDType::BF16)));
            assert_eq!(bits(cast(narrow.clone(), FloatDType::F32)), bits(narrow.cast(FloatDType::F32)));
            assert_eq!(
                bits(cast(x.clone().transpose(), FloatDType::BF16)),
                bits(x.transpose().cast(FloatDType::BF16))
            );
        }
    }

    #[test]
    fn gradients_come_back_in_the_type_of_what_was_cast() {
        let device = Device::flex().autodiff();
        let x = Tensor::<1>::from_floats([1.0, -2.0, 3.0], &device).require_grad();
        let y = cast(cast(x.clone(), FloatDType::BF16) * 3.0, FloatDType::F32) * 0.5;
        let gradient = x.grad(&y.sum().backward()).unwrap();
        assert_eq!(gradient.dtype(), DType::F32);
        assert_eq!(gradient.into_data().try_to_vec::<f32>().unwrap(), [1.5; 3]);
    }
}
