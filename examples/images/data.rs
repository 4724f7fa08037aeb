//! Pictures of shapes, drawn at random places in random sizes on a noisy ground.

use burn::prelude::*;

pub const TRAIN: usize = 4096;
pub const TEST: usize = 512;
pub const SHAPES: usize = 4;
const SIZE: usize = 16;

/// Whether a shape of this radius has the point.
fn inside(shape: usize, radius: f32, x: f32, y: f32) -> bool {
    match shape {
        0 => x * x + y * y < radius * radius,
        1 => x.abs().max(y.abs()) < 0.85 * radius,
        2 => y.abs() < radius && x.abs() < 0.5 * (y + radius),
        _ => x.abs().max(y.abs()) < radius && x.abs().min(y.abs()) < 0.3 * radius,
    }
}

/// The pixels of a picture of a shape, by its number.
fn picture(number: usize, shape: usize, inside: fn(usize, f32, f32, f32) -> bool) -> [f32; SIZE * SIZE] {
    let mut state = number as u64;
    let mut draw = |from: f32, to: f32| {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        from + ((x ^ (x >> 31)) >> 40) as f32 / (1 << 24) as f32 * (to - from)
    };
    let radius = draw(3.0, 5.5);
    let (middle_x, middle_y) = (draw(5.5, 10.5), draw(5.5, 10.5));
    let mut pixels = [0.0; SIZE * SIZE];
    for (i, pixel) in pixels.iter_mut().enumerate() {
        let (x, y) = ((i % SIZE) as f32 + 0.5 - middle_x, (i / SIZE) as f32 + 0.5 - middle_y);
        *pixel = draw(-0.5, 0.5) + if inside(shape, radius, x, y) { 1.0 } else { 0.0 };
    }
    pixels
}

/// Pictures `[pictures, 1, SIZE, SIZE]` of these numbers, and their shapes.
pub fn pictures(
    numbers: &[usize],
    shapes: usize,
    inside: fn(usize, f32, f32, f32) -> bool,
    device: &Device,
) -> (Tensor<4>, Tensor<1, Int>) {
    let pixels: Vec<_> = numbers.iter().map(|number| picture(*number, number % shapes, inside)).collect();
    let shapes: Vec<i64> = numbers.iter().map(|number| (number % shapes) as i64).collect();
    let pictures = Tensor::<1>::from_data(&pixels.concat()[..], device);
    let pictures = pictures.reshape([-1, 1, SIZE as i64, SIZE as i64]);
    (pictures, Tensor::from_data(&shapes[..], device))
}

/// The pictures to train on.
pub fn train(numbers: &[usize], device: &Device) -> (Tensor<4>, Tensor<1, Int>) {
    pictures(numbers, SHAPES, inside, device)
}

/// Those to test with, which are others.
pub fn test(numbers: &[usize], device: &Device) -> (Tensor<4>, Tensor<1, Int>) {
    let numbers: Vec<usize> = numbers.iter().map(|number| TRAIN + number).collect();
    train(&numbers, device)
}
