//! Points on two interleaved spirals.

use burn::prelude::*;

pub const POINTS: usize = 512;

/// The points `[points, 2]` with these numbers, and for each the probabilities of the spirals: 1 of its own, 0 of the other.
pub fn spirals(numbers: &[usize], device: &Device) -> (Tensor<2>, Tensor<2>) {
    let point = |number: &usize| {
        let (radius, arm) = ((number / 2) as f32 / 256.0, (number % 2) as f32 * std::f32::consts::PI);
        [radius * (6.0 * radius + arm).cos(), radius * (6.0 * radius + arm).sin()]
    };
    let points: Vec<f32> = numbers.iter().flat_map(point).collect();
    let wanted: Vec<f32> = numbers.iter().flat_map(|number| [[1.0, 0.0], [0.0, 1.0]][number % 2]).collect();
    let tensor = |values: &[f32]| Tensor::<1>::from_data(values, device).reshape([-1, 2]);
    (tensor(&points), tensor(&wanted))
}
