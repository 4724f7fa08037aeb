//! A step of AdamW in one pass.

use brigade_simd::optimizer::{self as host, Step};
use burn::backend::{Cube, TensorMetadata};
use burn::tensor::{DType, Tensor};
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::{empty, unit_count, unit_for_each, vector_size};

/// The values after a step, and the moments after it, which change in their place where nobody else has them. `tensors`: values, gradient and moments, all in fp32 on such a
/// device ([`is_fused`](super::is_fused)).
pub(crate) fn adamw<const D: usize>(
    adamw: host::AdamW,
    step: Step,
    [values, gradient, moment_1, moment_2]: [Tensor<D>; 4],
) -> [Tensor<D>; 3] {
    let [values, gradient] = [values, gradient].map(inner);
    let [moment_1, moment_2] = [moment_1, moment_2].map(inner).map(own);
    let stepped = empty(&values, values.shape(), DType::F32);
    let elements = values.meta.num_elements();
    let vector = vector_size(&[&values], elements);
    let (cubes, units) = unit_for_each(elements / vector);
    let corrections = [adamw.beta_1, adamw.beta_2].map(|beta| 1.0 - f64::from(beta).powi(step.number) as f32);
    // SAFETY: it reads and writes as many elements as all five tensors have.
    unsafe {
        adamw_kernel::launch_unchecked(
            &values.client,
            cubes,
            units,
            values.required_address_type(),
            vector,
            values.clone().into_buffer_arg(),
            gradient.into_buffer_arg(),
            moment_1.clone().into_buffer_arg(),
            moment_2.clone().into_buffer_arg(),
            stepped.clone().into_buffer_arg(),
            elements / vector,
            step.scale,
            adamw.beta_1,
            adamw.beta_2,
            corrections[0].recip() * step.learning_rate as f32,
            corrections[1].recip(),
            adamw.epsilon,
            1.0 - (step.learning_rate * f64::from(adamw.weight_decay)) as f32,
        );
    }
    [stepped, moment_1, moment_2].map(Tensor::from_primitive::<Cube>)
}

fn inner<const D: usize>(tensor: Tensor<D>) -> CubeTensor {
    let Ok(tensor) = tensor.without_autodiff().try_into_primitive::<Cube>() else {
        unreachable!("it was asked whether the tensors are on such a device")
    };
    into_contiguous(tensor)
}

/// Memory that nobody else has.
fn own(tensor: CubeTensor) -> CubeTensor {
    if tensor.can_mut() { tensor } else { into_contiguous(tensor.copy()) }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn adamw_kernel<N: Size>(
    values: &[Vector<f32, N>],
    gradient: &[Vector<f32, N>],
    moment_1: &mut [Vector<f32, N>],
    moment_2: &mut [Vector<f32, N>],
    stepped: &mut [Vector<f32, N>],
    elements: usize,
    scale: f32,
    beta_1: f32,
    beta_2: f32,
    rate: f32,
    correction_2: f32,
    epsilon: f32,
    keep: f32,
) {
    let mut index = ABSOLUTE_POS;
    while index < elements {
        let slope = gradient[index] * Vector::new(scale);
        let first = moment_1[index] * Vector::new(beta_1) + slope * Vector::new(1.0f32 - beta_1);
        let second = moment_2[index] * Vector::new(beta_2) + slope * slope * Vector::new(1.0f32 - beta_2);
        moment_1[index] = first;
        moment_2[index] = second;
        let deviation = (second * Vector::new(correction_2)).sqrt() + Vector::new(epsilon);
        stepped[index] = values[index] * Vector::new(keep) - first * Vector::new(rate) / deviation;
        index += unit_count();
    }
}
