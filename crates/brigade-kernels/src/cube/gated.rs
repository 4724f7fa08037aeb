//! Gated units: an activation times another tensor.

use burn_cubecl::cubecl;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::activation::{activate, derivative};
use super::launch::{element, empty, rows, unit_count, unit_for_each, vector_size};
use crate::activation::ActivationFunction;
use crate::activation::Gated;
use crate::autodiff::graph::Operation;

impl Operation<2, CubeTensor> for Gated {
    type Saved = [CubeTensor; 2];
    type Extra = ();

    fn forward(&self, inputs: [CubeTensor; 2], _: [bool; 2]) -> (CubeTensor, Option<[CubeTensor; 2]>, ()) {
        let [gate, up] = inputs.map(|input| rows(input).0);
        let output = empty(&gate, gate.meta.shape().clone(), gate.dtype);
        let (elements, vector) = elements(&gate);
        let (cubes, units) = unit_for_each(elements);
        // SAFETY: it reads and writes as many elements as all three tensors have.
        unsafe {
            gated_kernel::launch_unchecked(
                &gate.client,
                cubes,
                units,
                gate.required_address_type(),
                vector,
                gate.clone().into_buffer_arg(),
                up.clone().into_buffer_arg(),
                output.clone().into_buffer_arg(),
                elements,
                self.0,
                element(&gate),
            );
        }
        (output, Some([gate, up]), ())
    }

    fn backward(
        self,
        [gate, up]: [CubeTensor; 2],
        gradient: CubeTensor,
        wanted: [bool; 2],
    ) -> [Option<CubeTensor>; 2] {
        let (gradient, _) = rows(gradient);
        let slopes = [(); 2].map(|()| empty(&gate, gate.meta.shape().clone(), gate.dtype));
        let [d_gate, d_up] = slopes.each_ref();
        let (elements, vector) = elements(&gate);
        let (cubes, units) = unit_for_each(elements);
        // SAFETY: it reads and writes as many elements as all five tensors have.
        unsafe {
            gated_backward_kernel::launch_unchecked(
                &gate.client,
                cubes,
                units,
                gate.required_address_type(),
                vector,
                gate.clone().into_buffer_arg(),
                up.into_buffer_arg(),
                gradient.into_buffer_arg(),
                d_gate.clone().into_buffer_arg(),
                d_up.clone().into_buffer_arg(),
                elements,
                self.0,
                element(&gate),
            );
        }
        let mut wanted = wanted.into_iter();
        slopes.map(|slope| wanted.next().unwrap_or(false).then_some(slope))
    }
}

/// How many vectors a tensor has, and of how many elements.
fn elements(tensor: &CubeTensor) -> (usize, usize) {
    let elements = tensor.meta.num_elements();
    let vector = vector_size(&[tensor], elements);
    (elements / vector, vector)
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn gated_kernel<T: Float, N: Size>(
    gate: &[Vector<T, N>],
    up: &[Vector<T, N>],
    output: &mut [Vector<T, N>],
    elements: usize,
    #[comptime] activation: ActivationFunction,
    #[define(T)] _element: ElemType,
) {
    let mut index = ABSOLUTE_POS;
    while index < elements {
        let value = activate::<N>(Vector::cast_from(gate[index]), activation);
        output[index] = Vector::cast_from(value * Vector::cast_from(up[index]));
        index += unit_count();
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn gated_backward_kernel<T: Float, N: Size>(
    gate: &[Vector<T, N>],
    up: &[Vector<T, N>],
    gradient: &[Vector<T, N>],
    d_gate: &mut [Vector<T, N>],
    d_up: &mut [Vector<T, N>],
    elements: usize,
    #[comptime] activation: ActivationFunction,
    #[define(T)] _element: ElemType,
) {
    let mut index = ABSOLUTE_POS;
    while index < elements {
        let x = Vector::<f32, N>::cast_from(gate[index]);
        let slope = Vector::<f32, N>::cast_from(gradient[index]);
        let of_gate = derivative::<N>(x, activation) * Vector::cast_from(up[index]);
        d_gate[index] = Vector::cast_from(slope * of_gate);
        d_up[index] = Vector::cast_from(slope * activate::<N>(x, activation));
        index += unit_count();
    }
}
