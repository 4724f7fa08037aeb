//! A few pictures of other shapes than those of the example `images`, drawn in the same way.

#[allow(dead_code)] // Its own shapes.
#[path = "../images/data.rs"]
mod images;

use burn::prelude::*;

/// The weights that the example `images` has trained.
pub const BACKBONE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/examples/frozen_backbone/backbone.safetensors");

pub const TRAIN: usize = 256;
pub const TEST: usize = 512;
pub const SHAPES: usize = 3;

/// Whether a shape of this radius has the point.
fn inside(shape: usize, radius: f32, x: f32, y: f32) -> bool {
    match shape {
        0 => (0.6..1.0).contains(&((x * x + y * y).sqrt() / radius)),
        1 => x.abs() + y.abs() < radius,
        _ => x.abs() < radius && y.abs() < 0.3 * radius,
    }
}

/// Pictures `[pictures, 1, SIZE, SIZE]` of these numbers, and their shapes.
pub fn train(numbers: &[usize], device: &Device) -> (Tensor<4>, Tensor<1, Int>) {
    images::pictures(numbers, SHAPES, inside, device)
}

/// The same of the pictures to test with, which are others.
pub fn test(numbers: &[usize], device: &Device) -> (Tensor<4>, Tensor<1, Int>) {
    let numbers: Vec<usize> = numbers.iter().map(|number| TRAIN + number).collect();
    train(&numbers, device)
}
