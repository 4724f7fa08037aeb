//! A step of AdamW in one pass.

use std::ops::Range;

use burn::backend::Cube;
use burn::tensor::Tensor;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::{unit_count, unit_for_each, vector_size};

/// Elements of a part from `start` on, up to the next run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepRun {
    pub start: usize,
    pub learning_rate: f64,
    pub weight_decay: f32,
}

/// A step of a part of flat tensors, whose new values take their place in `stepped`, which nobody else has: that, and the moments after it, which change in their place where nobody
/// else has them. All are in fp32 on such a device ([`is_fused`](super::is_fused)), and the moments are the part's alone. The runs cover the part, in order.
pub(crate) fn adamw(
    [beta_1, beta_2, epsilon]: [f32; 3],
    (number, scale): (i32, f32),
    runs: &[StepRun],
    [values, gradient]: [&Tensor<1>; 2],
    moments: [Tensor<1>; 2],
    part: Range<usize>,
    stepped: Tensor<1>,
) -> [Tensor<1>; 3] {
    let [values, gradient, stepped] = [values.clone(), gradient.clone(), stepped].map(inner);
    let [moment_1, moment_2] = moments.map(inner).map(own);
    let starts = runs.iter().map(|run| run.start).chain([part.len(), part.start]);
    let vector = starts.map(|place| vector_size(&[&values], place)).min().unwrap_or(1);
    let (cubes, units) = unit_for_each(part.len() / vector);
    let corrections = [beta_1, beta_2].map(|beta| 1.0 - f64::from(beta).powi(number) as f32);
    debug_assert!(part.end <= values.meta.num_elements() && part.len() == moment_1.meta.num_elements());
    let (mut starts, mut rates, mut keeps) = (SequenceArg::new(), SequenceArg::new(), SequenceArg::new());
    for run in runs {
        starts.push(run.start / vector);
        rates.push(corrections[0].recip() * run.learning_rate as f32);
        keeps.push(1.0 - (run.learning_rate * f64::from(run.weight_decay)) as f32);
    }
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
            scale,
            beta_1,
            beta_2,
            corrections[1].recip(),
            epsilon,
            starts,
            rates,
            keeps,
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
    correction_2: f32,
    epsilon: f32,
    starts: Sequence<usize>,
    rates: Sequence<f32>,
    keeps: Sequence<f32>,
) {
    let mut index = ABSOLUTE_POS;
    while index < elements {
        let place = first + index;
        let mut rate = rates[0];
        let mut keep = keeps[0];
        #[unroll]
        for run in 1..comptime!(starts.len()) {
            let is_later = index >= starts[run];
            rate = select(is_later, rates[run], rate);
            keep = select(is_later, keeps[run], keep);
        }
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
