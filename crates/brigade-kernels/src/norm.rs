//! Normalization of rows.

use brigade_simd::norm;
use burn::backend::DispatchTensor;
use burn::tensor::{FloatDType, Tensor};
use burn_flex::FlexTensor;

use crate::host::{Buffer, FusedOperation, Number, apply, cast, contiguous, rows, values};

/// `(x - mean) / sqrt(variance + epsilon) · gamma + beta` over the last dimension, with the variance of `n`, not `n - 1` (Ba et al., "Layer Normalization", 2016).
/// `gamma`, `beta`: as long as that dimension. They may have another type than `x`, as parameters that are kept in fp32: the norm is computed in the widest, and given in that of `x`.
///
/// # Panics
/// If the shapes do not fit.
pub fn layer_norm<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Option<Tensor<1>>,
    epsilon: f64,
) -> Tensor<D> {
    check(&x, &gamma);
    if let Some(beta) = &beta {
        assert!(
            beta.dims() == gamma.dims(),
            "`gamma` has the shape {:?} and `beta` {:?}, but both must have one shape",
            gamma.dims(),
            beta.dims()
        );
    }
    let parameters = [Some(&gamma), beta.as_ref()];
    if let Some(wide) = widest(&x, &parameters) {
        let own = x.dtype().into();
        let beta = beta.map(|beta| cast(beta, wide));
        return cast(layer_norm(cast(x, wide), cast(gamma, wide), beta, epsilon), own);
    }
    let operation = LayerNorm { epsilon: epsilon as f32, beta: beta.is_some() };
    let tensors = [x.clone().into_dispatch(), gamma.clone().into_dispatch()];
    match operation.fused(&tensors, beta.clone().map(Tensor::into_dispatch)) {
        Some(output) => Tensor::from_dispatch(output),
        None => burn::tensor::module::layer_norm(x, gamma, beta, epsilon),
    }
}

/// `x / sqrt(mean of x² + epsilon) · gamma` over the last dimension (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019). `gamma`: as long as
/// that dimension, and of another type than `x` as in [`layer_norm`].
///
/// # Panics
/// If the shapes do not fit.
pub fn rms_norm<const D: usize>(x: Tensor<D>, gamma: Tensor<1>, epsilon: f64) -> Tensor<D> {
    norm_of_squares(x, gamma, 0.0, epsilon)
}

/// [`rms_norm`] with the factors `1 + gamma`, as Gemma's. On the CPU the sum is fp32, so that in bf16 a small `gamma` counts; elsewhere it has the type of `gamma`.
///
/// # Panics
/// If the shapes do not fit.
pub fn rms_norm_above_one<const D: usize>(x: Tensor<D>, gamma: Tensor<1>, epsilon: f64) -> Tensor<D> {
    norm_of_squares(x, gamma, 1.0, epsilon)
}

fn norm_of_squares<const D: usize>(x: Tensor<D>, gamma: Tensor<1>, above: f32, epsilon: f64) -> Tensor<D> {
    check(&x, &gamma);
    if let Some(wide) = widest(&x, &[Some(&gamma)]) {
        let own = x.dtype().into();
        return cast(norm_of_squares(cast(x, wide), cast(gamma, wide), above, epsilon), own);
    }
    let operation = RmsNorm { epsilon: epsilon as f32, above };
    let tensors = [x.clone().into_dispatch(), gamma.clone().into_dispatch()];
    if let Some(output) = operation.fused(&tensors) {
        return Tensor::from_dispatch(output);
    }
    let gamma = if above == 0.0 { gamma } else { gamma.add_scalar(above) };
    let tensors = [x.clone().into_dispatch(), gamma.clone().into_dispatch()];
    match operation.by_kernels(&tensors) {
        Some(output) => Tensor::from_dispatch(output),
        None => {
            // In a narrow number type the squares would overflow.
            let dtype: FloatDType = x.dtype().into();
            let wide = if dtype == FloatDType::F64 { dtype } else { FloatDType::F32 };
            let x = x.cast(wide);
            let mean = x.clone().square().mean_dim(D - 1);
            let normal = (x / (mean + epsilon).sqrt()).cast(dtype);
            normal * gamma.unsqueeze()
        }
    }
}

/// The widest type of all, where they have several.
fn widest<const D: usize>(x: &Tensor<D>, parameters: &[Option<&Tensor<1>>]) -> Option<FloatDType> {
    let types = || parameters.iter().flatten().map(|tensor| tensor.dtype()).chain([x.dtype()]);
    let widest = types().max_by_key(|dtype| dtype.size())?;
    types().any(|dtype| dtype != widest).then(|| widest.into())
}

fn check<const D: usize>(x: &Tensor<D>, gamma: &Tensor<1>) {
    let [width] = gamma.dims();
    assert!(
        D > 0 && x.dims()[D - 1] == width,
        "a norm of {width} elements cannot take an input of {:?}",
        x.dims()
    );
}

/// Its inputs are x, gamma, and beta if there is one.
#[derive(Debug, Clone, Copy)]
struct LayerNorm {
    epsilon: f32,
    beta: bool,
}

impl LayerNorm {
    /// The operation where there is one for these tensors. It is compiled here, not in each crate with such a layer.
    fn fused(self, tensors: &[DispatchTensor; 2], beta: Option<DispatchTensor>) -> Option<DispatchTensor> {
        let [x, gamma] = tensors;
        let fused = match &beta {
            None => apply(self, [x, gamma]),
            Some(beta) => apply(self, [x, gamma, beta]),
        };
        #[cfg(feature = "cube")]
        let fused = fused.or_else(|| {
            let norm = crate::cube::Norm { epsilon: self.epsilon, is_centred: true };
            match &beta {
                None => crate::cube::apply(norm, [x, gamma]),
                Some(beta) => crate::cube::apply(norm, [x, gamma, beta]),
            }
        });
        fused.map(|(output, ())| output)
    }
}

#[derive(Debug, Clone)]
struct Saved {
    x: FlexTensor,
    gamma: FlexTensor,
    /// Of each row; none for the RMS norm.
    means: Option<FlexTensor>,
    /// What each row's deviations are multiplied with.
    factors: FlexTensor,
}

impl<const N: usize> FusedOperation<N> for LayerNorm {
    type Saved = Saved;
    type Extra = ();

    fn forward<T: Number>(&self, inputs: [FlexTensor; N], _: [bool; N]) -> (FlexTensor, Option<Saved>, ()) {
        let mut inputs = inputs.map(contiguous).into_iter();
        let mut next = || inputs.next().unwrap_or_else(|| unreachable!("it has as many inputs as flags"));
        let (x, gamma) = (next(), next());
        let beta = self.beta.then(next);
        let [count, width] = rows(&x);
        let mut y = Buffer::<T>::new(count * width);
        let [mut means, mut factors] = [(); 2].map(|()| Buffer::<f32>::new(count));
        let (scales, shifts) = (wide::<T>(&gamma, 0.0), beta.map(|beta| wide::<T>(&beta, 0.0)));
        let shifts = shifts.as_deref();
        norm::layer_norm(values::<T>(&x), &scales, shifts, self.epsilon, &mut y, &mut means, &mut factors);
        let y = y.into_tensor(x.layout().shape().clone());
        let (means, factors) = (Some(means.into_tensor([count])), factors.into_tensor([count]));
        (y, Some(Saved { x, gamma, means, factors }), ())
    }

    fn backward<T: Number>(
        self,
        saved: Saved,
        gradient: FlexTensor,
        _: [bool; N],
    ) -> [Option<FlexTensor>; N] {
        let Saved { x, gamma, means, factors } = saved;
        let gradient = contiguous(gradient);
        let [count, width] = rows(&x);
        let mut d_x = Buffer::<T>::new(count * width);
        let [mut d_gamma, mut d_beta] = [(); 2].map(|()| Buffer::<f32>::zeros(width));
        norm::layer_norm_backward::<T>(
            values(&gradient),
            values(&x),
            means.as_ref().map_or(&[], values),
            values(&factors),
            &wide::<T>(&gamma, 0.0),
            &mut d_x,
            &mut d_gamma,
            &mut d_beta,
        );
        let d_x = d_x.into_tensor(x.layout().shape().clone());
        let [d_gamma, d_beta] = [d_gamma, d_beta].map(|sums| sums.into_tensor_of::<T>([width]));
        let mut found = [d_x, d_gamma, d_beta].into_iter();
        std::array::from_fn(|_| found.next())
    }
}

/// Its inputs are x and gamma.
#[derive(Debug, Clone, Copy)]
struct RmsNorm {
    epsilon: f32,
    /// What is added to gamma.
    above: f32,
}

impl RmsNorm {
    /// The operation where the tensors are in host memory. It is compiled here, not in each crate with such a layer.
    fn fused(self, tensors: &[DispatchTensor; 2]) -> Option<DispatchTensor> {
        apply(self, tensors.each_ref()).map(|(output, ())| output)
    }

    /// The operation on other devices with kernels, where `above` has been added.
    #[cfg(feature = "cube")]
    fn by_kernels(self, tensors: &[DispatchTensor; 2]) -> Option<DispatchTensor> {
        let norm = crate::cube::Norm { epsilon: self.epsilon, is_centred: false };
        crate::cube::apply(norm, tensors.each_ref()).map(|(output, ())| output)
    }

    #[cfg(not(feature = "cube"))]
    fn by_kernels(self, _: &[DispatchTensor; 2]) -> Option<DispatchTensor> {
        None
    }
}

/// A parameter's values in fp32.
fn wide<T: Number>(parameter: &FlexTensor, above: f32) -> Buffer<f32> {
    let mut wide = Buffer::new(parameter.layout().num_elements());
    brigade_simd::convert(values::<T>(parameter), &mut wide);
    if above != 0.0 {
        wide.iter_mut().for_each(|value| *value += above);
    }
    wide
}

impl FusedOperation<2> for RmsNorm {
    type Saved = Saved;
    type Extra = ();

    fn forward<T: Number>(&self, inputs: [FlexTensor; 2], _: [bool; 2]) -> (FlexTensor, Option<Saved>, ()) {
        let [x, gamma] = inputs.map(contiguous);
        let [count, width] = rows(&x);
        let (mut y, mut factors) = (Buffer::<T>::new(count * width), Buffer::<f32>::new(count));
        norm::rms_norm(values::<T>(&x), &wide::<T>(&gamma, self.above), self.epsilon, &mut y, &mut factors);
        let y = y.into_tensor(x.layout().shape().clone());
        (y, Some(Saved { x, gamma, means: None, factors: factors.into_tensor([count]) }), ())
    }

    fn backward<T: Number>(
        self,
        saved: Saved,
        gradient: FlexTensor,
        _: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        let Saved { x, gamma, factors, .. } = saved;
        let gradient = contiguous(gradient);
        let [count, width] = rows(&x);
        let (mut d_x, mut d_gamma) = (Buffer::<T>::new(count * width), Buffer::<f32>::zeros(width));
        let (gradient, factors, scales) =
            (values(&gradient), values(&factors), wide::<T>(&gamma, self.above));
        norm::rms_norm_backward::<T>(gradient, values(&x), factors, &scales, &mut d_x, &mut d_gamma);
        [Some(d_x.into_tensor(x.layout().shape().clone())), Some(d_gamma.into_tensor_of::<T>([width]))]
    }
}
