//! Optimizers whose step is one pass: on the CPU over a copy of the values, which others may still hold.

mod adamw;
mod lion;
mod sgd;

use std::ops::Range;

use burn::optim::{LearningRate, Optimizer};
use burn::tensor::{DType, Device, Int, Tensor};
use burn_flex::{Flex, FlexTensor};

use crate::host::{Buffer, contiguous, is_on_host, values};

pub use adamw::{AdamW, AdamWConfig};
pub use lion::{Lion, LionConfig};
pub use sgd::{Sgd, SgdConfig, SgdState};

/// An optimizer that multiplies the gradient in the pass that steps.
pub trait ScaledStep: Optimizer {
    /// As [`Optimizer::step`] with the gradient times `scale`, if one is given: to the same bits.
    fn step_scaled<const D: usize>(
        &self,
        learning_rate: LearningRate,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        scale: Option<f64>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>);

    /// The same for a part of flat values and their gradient, whose state is given: `stepped` with the new values of the part in their place, to the same bits.
    fn step_part(
        &self,
        learning_rate: LearningRate,
        of: [&Tensor<1>; 2],
        part: Range<usize>,
        stepped: Tensor<1>,
        scale: Option<f64>,
        state: Option<Self::State<1>>,
    ) -> (Tensor<1>, Option<Self::State<1>>) {
        part_alone(self, learning_rate, of, part, stepped, scale, state)
    }

    /// Whether [`step_runs`](Self::step_runs) takes runs of elements with these optimizers, in fp32 on this device.
    fn is_one_pass(_runs: &[&Self], _device: &Device) -> bool {
        false
    }

    /// One pass over flat values and their gradient whose runs have optimizers and learning rates of their own; the state is of all elements. None if it [is not](Self::is_one_pass).
    fn step_runs(
        _runs: &[StepRun<'_, Self>],
        _of: [&Tensor<1>; 2],
        _scale: Option<f64>,
        _state: Option<Self::State<1>>,
    ) -> Option<(Tensor<1>, Self::State<1>)> {
        None
    }
}

/// Elements of a flat tensor that one optimizer steps: from `start` on, up to the next run.
#[derive(Debug)]
pub struct StepRun<'a, O> {
    /// The first of them.
    pub start: usize,
    /// What steps them.
    pub optimizer: &'a O,
    /// Their learning rate.
    pub learning_rate: LearningRate,
}

/// [`ScaledStep::step_part`] by a step of the part alone.
fn part_alone<O: ScaledStep>(
    optimizer: &O,
    learning_rate: LearningRate,
    of: [&Tensor<1>; 2],
    part: Range<usize>,
    stepped: Tensor<1>,
    scale: Option<f64>,
    state: Option<O::State<1>>,
) -> (Tensor<1>, Option<O::State<1>>) {
    let [values, gradient] = of.map(|tensor| tensor.clone().slice(part.clone()));
    let (values, state) = optimizer.step_scaled(learning_rate, values, gradient, scale, state);
    (stepped.slice_assign([part], values), state)
}

/// Of each `chunk` elements of flat fp32 tensors, the last of each tensor padded with zeros, the sum of squares; all of those, added up without rounding by a kernel of their device: none
/// where there is none. A chunk has the same sum wherever it is. `[sets, 256, 2]` whole numbers of 32 bits: those of each exponent, added up as whole numbers, are the second number times
/// 2¹² plus the first, over all sets. For the exponent 255 it is more than 0 if a sum was not finite.
pub fn square_sums(tensors: &[Tensor<1>], chunk: usize) -> Option<Tensor<3, Int>> {
    #[cfg(feature = "cube")]
    return crate::cube::square_sums(tensors, chunk);
    #[cfg(not(feature = "cube"))]
    {
        let _ = (tensors, chunk);
        None
    }
}

/// Of each `chunk` elements of a flat fp32 tensor in host memory, the last padded with zeros, the sum of squares, in one pass; none on other devices. A chunk has the same sum wherever it is.
pub fn chunk_square_sums(tensor: &Tensor<1>, chunk: usize) -> Option<Vec<f32>> {
    let values = fits(tensor).then(|| host(tensor.clone()))?;
    let values = self::values::<f32>(&values);
    let mut sums = vec![0.0; values.len().div_ceil(chunk)];
    brigade_simd::chunk_square_sums(values, chunk, &mut sums);
    Some(sums)
}

/// A flat tensor of the type of `values`, and on its device, whose elements are all to be written: [`ScaledStep::step_part`] does. In host memory it is not cleared.
pub fn unwritten(elements: usize, values: &Tensor<1>) -> Tensor<1> {
    match fits(values) {
        true => Tensor::from_primitive::<Flex>(Buffer::<f32>::new(elements).into_tensor([elements])),
        false => Tensor::empty([elements], (&values.device(), values.dtype())),
    }
}

/// Whether a tensor can be stepped in one pass.
fn fits<const D: usize>(tensor: &Tensor<D>) -> bool {
    is_on_host(&tensor.clone().into_dispatch()) && tensor.dtype() == DType::F32
}

/// Whether it can be on a device with kernels.
#[cfg(feature = "cube")]
fn fits_kernels<const D: usize>(tensor: &Tensor<D>) -> bool {
    crate::cube::is_fused(&[&tensor.clone().into_dispatch()]) && tensor.dtype() == DType::F32
}

fn scaled<const D: usize>(gradient: Tensor<D>, scale: Option<f64>) -> Tensor<D> {
    scale.into_iter().fold(gradient, Tensor::mul_scalar)
}

/// The values after `step`, which is given them, the gradient and the state, and the state after it, which changes in its place. What there is none of yet is zero.
fn stepped<const D: usize, const N: usize>(
    tensor: Tensor<D>,
    gradient: Tensor<D>,
    state: [Option<Tensor<D>>; N],
    step: impl FnOnce(&mut [f32], &[f32], [&mut [f32]; N]),
) -> (Tensor<D>, [Tensor<D>; N]) {
    let shape = tensor.shape();
    let [tensor, gradient] = [tensor, gradient].map(host);
    let mut stepped = Buffer::<f32>::new(shape.num_elements());
    stepped.copy_from_slice(values::<f32>(&tensor));
    let zeros = || Buffer::<f32>::zeros(shape.num_elements()).into_tensor(shape.clone());
    let mut state = state.map(|state| state.map_or_else(zeros, |state| in_one_piece(host(state))));
    step(&mut stepped, values::<f32>(&gradient), state.each_mut().map(|state| state.storage_mut()));
    (Tensor::from_primitive::<Flex>(stepped.into_tensor(shape)), state.map(Tensor::from_primitive::<Flex>))
}

fn host<const D: usize>(tensor: Tensor<D>) -> FlexTensor {
    let tensor = tensor.inner().try_into_primitive::<Flex>();
    contiguous(tensor.unwrap_or_else(|error| panic!("a tensor that is fused is on the CPU: {error:?}")))
}

/// The tensor as all of its memory.
fn in_one_piece(tensor: FlexTensor) -> FlexTensor {
    let elements = tensor.layout().num_elements();
    if tensor.layout().start_offset() == 0 && tensor.bytes().len() == elements * size_of::<f32>() {
        return tensor;
    }
    let mut copy = Buffer::<f32>::new(elements);
    copy.copy_from_slice(values::<f32>(&tensor));
    copy.into_tensor(tensor.layout().shape().clone())
}
