//! A few pictures of other shapes than those of the example `images`, drawn in the same way.

use burn::prelude::*;

/// The weights that the example `images` has trained.
pub const BACKBONE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/examples/frozen_backbone/backbone.safetensors");

pub const TRAIN: usize = 256;
pub const TEST: usize = 512;
pub const SHAPES: usize = 3;
const SIZE: usize = 16;

/// The pixels of a picture and its shape, by its number.
fn picture(number: usize) -> ([f32; SIZE * SIZE], usize) {
    let mut state = number as u64;
    let mut draw = |from: f32, to: f32| {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        from + ((x ^ (x >> 31)) >> 40) as f32 / (1 << 24) as f32 * (to - from)
    };
    let (shape, radius) = (number % SHAPES, draw(3.0, 5.5));
    let (middle_x, middle_y) = (draw(5.5, 10.5), draw(5.5, 10.5));
    let mut pixels = [0.0; SIZE * SIZE];
    for (i, pixel) in pixels.iter_mut().enumerate() {
        let (x, y) = ((i % SIZE) as f32 + 0.5 - middle_x, (i / SIZE) as f32 + 0.5 - middle_y);
        let inside = match shape {
            0 => (0.6..1.0).contains(&((x * x + y * y).sqrt() / radius)),
            1 => x.abs() + y.abs() < radius,
            _ => x.abs() < radius && y.abs() < 0.3 * radius,
        };
        *pixel = draw(-0.5, 0.5) + if inside { 1.0 } else { 0.0 };
    }
    (pixels, shape)
}

/// Pictures `[pictures, 1, SIZE, SIZE]` of these numbers, and their shapes.
pub fn train(numbers: &[usize], device: &Device) -> (Tensor<4>, Tensor<1, Int>) {
    let (pictures, shapes): (Vec<_>, Vec<_>) = numbers.iter().map(|number| picture(*number)).unzip();
    let shapes: Vec<i64> = shapes.into_iter().map(|shape| shape as i64).collect();
    let pictures = Tensor::<1>::from_data(&pictures.concat()[..], device);
    let pictures = pictures.reshape([-1, 1, SIZE as i64, SIZE as i64]);
    (pictures, Tensor::from_data(&shapes[..], device))
}

/// The same of the pictures to test with, which are others.
pub fn test(numbers: &[usize], device: &Device) -> (Tensor<4>, Tensor<1, Int>) {
    let numbers: Vec<usize> = numbers.iter().map(|number| TRAIN + number).collect();
    train(&numbers, device)
}
