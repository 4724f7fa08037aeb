//! Dropout of activations.

pub use brigade_simd::DropoutMask;

use burn::backend::DispatchTensor;
use burn::tensor::{DType, Device, Distribution, Tensor};
use burn_flex::FlexTensor;

use crate::host::{Buffer, FusedOperation, Number, apply, contiguous, is_on_host, values};

/// Dropout in training (Srivastava et al., 2014): each element of `x` is multiplied by 0 with this probability, and else by `1 / (1 - probability)`; the result is
/// added to the residual, if there is one. With a probability of 1 all are multiplied by 0.
///
/// It draws from the random generator of the tensor's device, as Burn's `nn::Dropout` does, but other masks: what is drawn are four numbers, of which the mask is a function. The backward pass keeps these alone, and no mask.
///
/// # Panics
/// If the shapes differ, or the probability is not between 0 and 1.
pub fn dropout<const D: usize>(x: Tensor<D>, residual: Option<Tensor<D>>, probability: f64) -> Tensor<D> {
    assert!(
        (0.0..=1.0).contains(&probability),
        "the probability of dropout is {probability}, but must be between 0 and 1"
    );
    if let Some(residual) = &residual {
        assert!(
            x.dims() == residual.dims(),
            "dropout adds a residual of {:?} to {:?}, but both must have one shape",
            residual.dims(),
            x.dims()
        );
    }
    let tensors = [Some(&x), residual.as_ref()].map(|tensor| Some(tensor?.clone().into_dispatch()));
    match fused(&tensors, probability as f32, &x.device()) {
        Some(output) => Tensor::from_dispatch(output),
        None => {
            let kept = 1.0 - probability;
            let mask = x.random_like(Distribution::Bernoulli(kept));
            // As a mask decides, whose probability is `f32`.
            let factor = if (probability as f32) < 1.0 { 1.0 / kept } else { 0.0 };
            let dropped = x * mask * factor;
            residual.map_or_else(|| dropped.clone(), |residual| residual + dropped.clone())
        }
    }
}

/// A seed from Burn's generator on the CPU, for a [`DropoutMask`].
pub fn draw_seed(device: &Device) -> u64 {
    drawn(device).into_data().iter::<f32>().fold(0, |seed, digits| seed << 16 | digits as u64)
}

/// Four numbers below 65536 from Burn's generator.
fn drawn(device: &Device) -> Tensor<1> {
    Tensor::<1>::random([4], Distribution::Uniform(0.0, 65536.0), (&device.clone().inner(), DType::F32))
}

/// The operation where there is one for these tensors. It is compiled here, not in each crate with such a layer.
fn fused(
    [x, residual]: &[Option<DispatchTensor>; 2],
    probability: f32,
    device: &Device,
) -> Option<DispatchTensor> {
    let x = x.as_ref()?;
    if is_on_host(x) {
        let mask = Dropout(DropoutMask { probability, seed: draw_seed(device) });
        let output = match residual {
            None => apply::<1, _>(mask, [x]),
            Some(residual) => apply::<2, _>(mask, [x, residual]),
        };
        return output.map(|(output, ())| output);
    }
    #[cfg(feature = "cube")]
    {
        let all: Vec<_> = [Some(x), residual.as_ref()].into_iter().flatten().collect();
        if crate::cube::is_fused(&all) {
            let operation = crate::cube::Dropout { probability, drawn: drawn(device) };
            let output = match residual {
                None => crate::cube::apply::<1, _>(operation, [x]),
                Some(residual) => crate::cube::apply::<2, _>(operation, [x, residual]),
            };
            return output.map(|(output, ())| output);
        }
    }
    None
}

/// Its inputs are what is dropped of, and the residual, if there is one.
#[derive(Debug, Clone, Copy)]
struct Dropout(DropoutMask);

impl Dropout {
    fn run<T: Number>(self, x: FlexTensor, residual: Option<FlexTensor>) -> FlexTensor {
        let (x, residual) = (contiguous(x), residual.map(contiguous));
        let mut y = Buffer::<T>::new(x.layout().num_elements());
        self.0.apply(values(&x), residual.as_ref().map(values), &mut y);
        y.into_tensor(x.layout().shape().clone())
    }
}

impl FusedOperation<1> for Dropout {
    type Saved = ();
    type Extra = ();

    fn forward<T: Number>(&self, [x]: [FlexTensor; 1], _: [bool; 1]) -> (FlexTensor, Option<()>, ()) {
        (self.run::<T>(x, None), Some(()), ())
    }

    fn backward<T: Number>(self, (): (), gradient: FlexTensor, _: [bool; 1]) -> [Option<FlexTensor>; 1] {
        [Some(self.run::<T>(gradient, None))]
    }
}

impl FusedOperation<2> for Dropout {
    type Saved = ();
    type Extra = ();

    fn forward<T: Number>(
        &self,
        [x, residual]: [FlexTensor; 2],
        _: [bool; 2],
    ) -> (FlexTensor, Option<()>, ()) {
        (self.run::<T>(x, Some(residual)), Some(()), ())
    }

    fn backward<T: Number>(self, (): (), gradient: FlexTensor, wanted: [bool; 2]) -> [Option<FlexTensor>; 2] {
        [wanted[0].then(|| self.run::<T>(gradient.clone(), None)), Some(gradient)]
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;

    use super::*;
    use crate::{Mask, attention_with_dropout};

    /// There are kernels for the first two.
    const TYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F64];

    fn constant<const D: usize>(value: f32, shape: [usize; D], dtype: DType) -> Tensor<D> {
        let values = TensorData::new(vec![value; shape.iter().product()], shape);
        Tensor::from_data(values, (&Device::flex().autodiff(), dtype)).require_grad()
    }

    fn is_all<const D: usize>(tensor: Tensor<D>, value: f32) -> bool {
        tensor.into_data().iter::<f32>().all(|found| found == value)
    }

    #[test]
    fn a_probability_of_1_drops_everything() {
        for dtype in TYPES {
            let [x, residual] = [-2.5, 3.0].map(|value| constant(value, [20, 30], dtype));
            let (alone, y) = (dropout(x.clone(), None, 1.0), dropout(x.clone(), Some(residual.clone()), 1.0));
            let gradients = (alone.clone().sum() + y.clone().sum()).backward();
            assert!(is_all(alone, 0.0) && is_all(y, 3.0), "{dtype:?}");
            let [d_x, d_residual] = [x, residual].map(|tensor| tensor.grad(&gradients).unwrap());
            assert!(is_all(d_x, 0.0) && is_all(d_residual, 1.0), "{dtype:?}");
        }
    }

    #[test]
    fn attention_with_a_probability_of_1_gives_zeros() {
        for dtype in TYPES {
            let vectors = [0.5, -0.25, 2.0].map(|value| constant(value, [2, 3, 5, 4], dtype));
            let [q, k, v] = vectors.clone();
            let mask = DropoutMask { probability: 1.0, seed: 7 };
            let y = attention_with_dropout(q, k, v, Mask::Causal, 0.5, mask);
            let gradients = y.clone().sum().backward();
            assert!(is_all(y, 0.0), "{dtype:?}");
            for tensor in vectors {
                assert!(is_all(tensor.grad(&gradients).unwrap(), 0.0), "{dtype:?}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "but must be between 0 and 1")]
    fn a_probability_above_1_is_refused() {
        dropout(constant(1.0, [2, 3], DType::F32), None, 1.0 + 1e-9);
    }

    #[test]
    #[should_panic(expected = "the probability of dropout is NaN, but must be between 0 and 1")]
    fn a_probability_that_is_no_number_is_refused() {
        dropout(constant(1.0, [2, 3], DType::F32), None, f64::NAN);
    }
}
