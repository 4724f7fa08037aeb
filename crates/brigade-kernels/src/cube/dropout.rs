//! Dropout of activations.

use burn::backend::Cube;
use burn::tensor::Tensor;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::launch::{counter_of, element, empty, rows, unit_count, unit_for_each};
use crate::autodiff::graph::Operation;

/// Its inputs are what is dropped of, and the residual, if there is one.
#[derive(Debug, Clone)]
pub(crate) struct Dropout {
    pub probability: f32,
    /// Four numbers below 65536, on the device: nobody waits for them.
    pub drawn: Tensor<1>,
}

impl Dropout {
    fn run(&self, x: CubeTensor, residual: Option<CubeTensor>) -> CubeTensor {
        let (x, residual) = (rows(x).0, residual.map(|residual| rows(residual).0));
        let Ok(drawn) = self.drawn.clone().try_into_primitive::<Cube>() else {
            unreachable!("it is on the device of the tensors")
        };
        let output = empty(&x, x.meta.shape().clone(), x.dtype);
        let elements = x.meta.num_elements();
        let (cubes, units) = unit_for_each(elements);
        // What is not read can be any tensor but that which is written.
        let adds = residual.is_some();
        let kept = if self.probability < 1.0 { 1.0 / (1.0 - self.probability) } else { 0.0 };
        let residual = residual.unwrap_or_else(|| x.clone());
        // SAFETY: it reads and writes as many elements as all three tensors have, and the four that were drawn.
        unsafe {
            dropout_kernel::launch_unchecked(
                &x.client,
                cubes,
                units,
                counter_of(elements),
                x.clone().into_buffer_arg(),
                residual.into_buffer_arg(),
                into_contiguous(drawn).into_buffer_arg(),
                output.clone().into_buffer_arg(),
                elements,
                (f64::from(self.probability) * 2f64.powi(32)) as u32,
                kept,
                adds,
                element(&x),
            );
        }
        output
    }
}

impl Operation<1, CubeTensor> for Dropout {
    type Saved = ();
    type Extra = ();

    fn forward(&self, [x]: [CubeTensor; 1], _: [bool; 1]) -> (CubeTensor, Option<()>, ()) {
        (self.run(x, None), Some(()), ())
    }

    fn backward(self, (): (), gradient: CubeTensor, _: [bool; 1]) -> [Option<CubeTensor>; 1] {
        [Some(self.run(gradient, None))]
    }
}

impl Operation<2, CubeTensor> for Dropout {
    type Saved = ();
    type Extra = ();

    fn forward(&self, [x, residual]: [CubeTensor; 2], _: [bool; 2]) -> (CubeTensor, Option<()>, ()) {
        (self.run(x, Some(residual)), Some(()), ())
    }

    fn backward(self, (): (), gradient: CubeTensor, wanted: [bool; 2]) -> [Option<CubeTensor>; 2] {
        [wanted[0].then(|| self.run(gradient.clone(), None)), Some(gradient)]
    }
}

/// See [`brigade_simd::DropoutMask`].
#[cube]
fn scramble(x: u32) -> u32 {
    let x = (x ^ (x >> 16u32)) * 0x7feb_352du32;
    let x = (x ^ (x >> 15u32)) * 0x846c_a68bu32;
    x ^ (x >> 16u32)
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn dropout_kernel<T: Float>(
    x: &[T],
    residual: &[T],
    drawn: &[f32],
    output: &mut [T],
    elements: usize,
    least: u32,
    kept: f32,
    #[comptime] adds: bool,
    #[define(T)] _element: ElemType,
) {
    let first = (u32::cast_from(drawn[0]) << 16u32) | u32::cast_from(drawn[1]);
    let second = (u32::cast_from(drawn[2]) << 16u32) | u32::cast_from(drawn[3]);
    let mut index = ABSOLUTE_POS;
    while index < elements {
        let bits = scramble(scramble(first + u32::cast_from(index)) ^ second);
        let value = f32::cast_from(x[index]) * select(bits < least, 0.0f32, kept);
        if comptime!(adds) {
            output[index] = T::cast_from(f32::cast_from(residual[index]) + value);
        } else {
            output[index] = T::cast_from(value);
        }
        index += unit_count();
    }
}
