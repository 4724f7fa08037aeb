//! Parameters whose initial values come from (seed, path) alone.

use brigade_core::keyed_seed;
use burn::module::{Param, ParamId};
use burn::tensor::{Device, Shape, Tensor, TensorData};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rand_distr::{Distribution, StandardNormal};

/// A parameter of values from a normal distribution around 0.
pub(crate) fn normal<const D: usize>(
    seed: u64,
    path: &str,
    shape: [usize; D],
    deviation: f32,
    device: &Device,
) -> Param<Tensor<D>> {
    drawn(seed, path, shape, device, move |generator| {
        let value: f32 = StandardNormal.sample(generator);
        value * deviation
    })
}

/// A parameter of values that are equally likely from `-bound` to `bound`.
pub(crate) fn uniform<const D: usize>(
    seed: u64,
    path: &str,
    shape: [usize; D],
    bound: f32,
    device: &Device,
) -> Param<Tensor<D>> {
    // As many bits as fp32 has for fractions.
    const STEPS: f32 = (1 << 24) as f32;
    drawn(seed, path, shape, device, move |generator| {
        let value = (generator.next_u32() >> 8) as f32 / STEPS;
        (2.0 * value - 1.0) * bound
    })
}

/// A parameter of values drawn from a ChaCha8 generator seeded by (`seed`, `path`) when the parameter is first read.
fn drawn<const D: usize>(
    seed: u64,
    path: &str,
    shape: [usize; D],
    device: &Device,
    draw: impl Fn(&mut ChaCha8Rng) -> f32 + Send + Sync + 'static,
) -> Param<Tensor<D>> {
    let key = keyed_seed(seed, path);
    Param::uninitialized(
        ParamId::new(),
        move |device, require_grad| {
            let mut generator = ChaCha8Rng::seed_from_u64(key);
            let elements = shape.iter().product::<usize>();
            let values: Vec<f32> = (0..elements).map(|_| draw(&mut generator)).collect();
            Tensor::from_data(TensorData::new(values, shape), device).set_require_grad(require_grad)
        },
        device.clone(),
        true,
        Shape::from(shape),
    )
}
