//! Parameters whose initial values come from (seed, path) alone.

use brigade_core::keyed_seed;
use burn::module::{Param, ParamId};
use burn::tensor::{Device, Shape, Tensor, TensorData};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, StandardNormal};

/// A parameter of values from a normal distribution around 0, drawn from a ChaCha8 generator
/// seeded by (`seed`, `path`) when the parameter is first read.
pub(crate) fn normal<const D: usize>(
    seed: u64,
    path: &str,
    shape: [usize; D],
    deviation: f32,
    device: &Device,
) -> Param<Tensor<D>> {
    let key = keyed_seed(seed, path);
    Param::uninitialized(
        ParamId::new(),
        move |device, require_grad| {
            let mut generator = ChaCha8Rng::seed_from_u64(key);
            let draw = |_| {
                let value: f32 = StandardNormal.sample(&mut generator);
                value * deviation
            };
            let values: Vec<f32> = (0..shape.iter().product::<usize>()).map(draw).collect();
            Tensor::from_data(TensorData::new(values, shape), device).set_require_grad(require_grad)
        },
        device.clone(),
        true,
        Shape::from(shape),
    )
}
