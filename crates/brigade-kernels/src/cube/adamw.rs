//! A step of AdamW in one pass.

use std::ops::Range;

use brigade_simd::optimizer::{self as host, Step};
use burn::backend::Cube;
use burn::tensor::Tensor;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::{unit_count, unit_for_each, vector_size};

/// A step of a part of flat tensors, whose new values take their place in `stepped`, which nobody else has: that, and the moments after it, which change in their place where nobody
/// else has them. All are in fp32 on such a device ([`is_fused`](super::is_fused)), and the moments are the part's alone.
pub(crate) fn adamw(
    adamw: host::AdamW,
    step: Step,
    [values, gradient]: [&Tensor<1>; 2],
    moments: [Tensor<1>; 2],
    part: Range<usize>,
    stepped: Tensor<1>,
) -> [Tensor<1>; 3] {
    let [values, gradient, stepped] = [values.clone(), gradient.clone(), stepped].map(inner);
    let [moment_1, moment_2] = moments.map(inner).map(own);
    let vector = vector_size(&[&values], part.len()).min(vector_size(&[&values], part.start));
    let (cubes, units) = unit_for_each(part.len() / vector);
    let corrections = [adamw.beta_1, adamw.beta_2].map(|beta| 1.0 - f64::from(beta).powi(step.number) as f32);
    debug_assert!(part.end <= values.meta.num_elements() && part.len() == moment_1.meta.num_elements());
    // SAFETY: it reads and writes the elements of the part, which all five tensors have.
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
            part.start / vector,
            part.len() / vector,
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

fn inner(tensor: Tensor<1>) -> CubeTensor {
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
    first: usize,
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
        let place = first + index;
        let slope = gradient[place] * Vector::new(scale);
        let first = moment_1[index] * Vector::new(beta_1) + slope * Vector::new(1.0f32 - beta_1);
        let second = moment_2[index] * Vector::new(beta_2) + slope * slope * Vector::new(1.0f32 - beta_2);
        moment_1[index] = first;
        moment_2[index] = second;
        let deviation = (second * Vector::new(correction_2)).sqrt() + Vector::new(epsilon);
        stepped[place] = values[place] * Vector::new(keep) - first * Vector::new(rate) / deviation;
        index += unit_count();
    }
}
