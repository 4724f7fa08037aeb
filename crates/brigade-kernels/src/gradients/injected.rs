//! Where a backward pass begins, with a gradient that is known already.

use burn::backend::DispatchTensor;
use burn::tensor::Tensor;

use crate::autodiff::function::{Function, apply_function};

/// A number, 0, whose backward pass gives `output` this gradient, as that of `(output · gradient).sum()` does. Nothing is multiplied or added up for it.
///
/// ```
/// use brigade_kernels::with_gradient;
/// use burn::tensor::{Device, Tensor};
///
/// let device = Device::flex();
/// let x = Tensor::<1>::ones([3], &device.clone().autodiff()).require_grad();
/// let gradient = Tensor::<1>::from_floats([1.0, 2.0, 3.0], &device);
/// let gradients = with_gradient(x.clone() * 2.0, gradient).backward();
/// assert_eq!(x.grad(&gradients).unwrap().into_data().try_to_vec::<f32>().unwrap(), [2.0, 4.0, 6.0]);
/// ```
///
/// # Panics
/// If the shapes differ.
pub fn with_gradient(output: Tensor<1>, gradient: Tensor<1>) -> Tensor<1> {
    assert!(output.dims() == gradient.dims(), "a gradient of {:?} for {:?}", gradient.dims(), output.dims());
    let function = WithGradient(gradient.without_autodiff());
    Tensor::from_dispatch(apply_function(function, [output.into_dispatch()]).0)
}

#[derive(Debug)]
struct WithGradient(Tensor<1>);

impl Function<1> for WithGradient {
    type Saved = ();
    type Extra = ();

    fn forward(&self, _: [DispatchTensor; 1]) -> (DispatchTensor, (), ()) {
        (Tensor::<1>::zeros([1], (&self.0.device(), self.0.dtype())).into_dispatch(), (), ())
    }

    fn backward(self, (): (), _: DispatchTensor, _: [bool; 1]) -> [Option<DispatchTensor>; 1] {
        [Some(self.0.into_dispatch())]
    }
}
