//! Where a backward pass begins, with a gradient that is known already.

#[cfg(feature = "cube")]
use burn::backend::DispatchTensor;
use burn::tensor::Tensor;

/// A number whose backward pass gives `output` this gradient: `(output · gradient).sum()`. On devices with kernels (features `cuda` and `wgpu`) nothing is multiplied or added up for
/// it, and the number itself is 0: there, a whole sum takes longer than all else at the boundary of a block.
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
    #[cfg(feature = "cube")]
    {
        let tensor = output.clone().into_dispatch();
        if crate::cube::is_on_device(&tensor) {
            let function = WithGradient(gradient.without_autodiff());
            return Tensor::from_dispatch(crate::autodiff::function::apply_function(function, [tensor]).0);
        }
    }
    (output * gradient).sum()
}

#[cfg(feature = "cube")]
#[derive(Debug)]
struct WithGradient(Tensor<1>);

#[cfg(feature = "cube")]
impl crate::autodiff::function::Function<1> for WithGradient {
    type Saved = ();
    type Extra = ();

    fn forward(&self, _: [DispatchTensor; 1]) -> (DispatchTensor, (), ()) {
        (Tensor::<1>::zeros([1], (&self.0.device(), self.0.dtype())).into_dispatch(), (), ())
    }

    fn backward(self, (): (), _: DispatchTensor, _: [bool; 1]) -> [Option<DispatchTensor>; 1] {
        [Some(self.0.into_dispatch())]
    }
}
