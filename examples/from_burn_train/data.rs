//! Points on two interleaved spirals.

use burn::prelude::*;

pub const POINTS: usize = 512;

/// The points `[points, 2]` with these numbers, and the spiral that each belongs to.
pub fn spirals(numbers: &[usize], device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
    let point = |number: &usize| {
        let (radius, arm) = ((number / 2) as f32 / 256.0, (number % 2) as f32 * std::f32::consts::PI);
        [radius * (6.0 * radius + arm).cos(), radius * (6.0 * radius + arm).sin()]
    };
    let points: Vec<f32> = numbers.iter().flat_map(point).collect();
    let arms: Vec<i64> = numbers.iter().map(|number| (number % 2) as i64).collect();
    (Tensor::<1>::from_data(&points[..], device).reshape([-1, 2]), Tensor::from_data(&arms[..], device))
}
