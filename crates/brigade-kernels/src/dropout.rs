//! Dropout of activations.

pub use brigade_simd::DropoutMask;

use burn::backend::DispatchTensor;
use burn::tensor::{Device, Distribution, Tensor};
use burn_flex::FlexTensor;

use crate::host::{Buffer, FusedOperation, Number, apply, contiguous, is_on_host, values};

/// Dropout in training (Srivastava et al., 2014): each element of `x` becomes 0 with this probability, at least 0 and below 1, and else grows by `1 / (1 - probability)`; the result is
/// added to the residual, if there is one.
///
/// It draws from the random generator of the tensor's device, as Burn's `nn::Dropout` does, but other masks: what is drawn are four numbers, of which the mask is a function. The backward pass keeps these alone, and no mask.
///
/// # Panics
/// If the shapes differ.
pub fn dropout<const D: usize>(x: Tensor<D>, residual: Option<Tensor<D>>, probability: f64) -> Tensor<D> {
    if let Some(residual) = &residual {
        assert!(x.dims() == residual.dims(), "dropout of {:?} onto {:?}", x.dims(), residual.dims());
    }
    let tensors = [Some(&x), residual.as_ref()].map(|tensor| Some(tensor?.clone().into_dispatch()));
    match fused(&tensors, probability as f32, &x.device()) {
        Some(output) => Tensor::from_dispatch(output),
        None => {
            let kept = 1.0 - probability;
            let mask = x.random_like(Distribution::Bernoulli(kept));
            let dropped = x * mask * (1.0 / kept);
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
    Tensor::<1>::random([4], Distribution::Uniform(0.0, 65536.0), &device.clone().inner())
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
