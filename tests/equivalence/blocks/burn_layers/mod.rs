//! Every module of `burn-nn`: on replicas, stages and shards, and computed again, with the bits of one process.

mod activations;
mod all;
mod layers;
mod losses;

use brigade::core::{Batch, Chain, Dtype, EngineSettings, Groups, Model, Precision};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

use crate::case::{Case, floats, one_mesh_each};

/// Samples of a micro-batch, and values of each.
const ROWS: usize = 2;
const WIDTH: usize = 32;

type Vectors = Tensor<2>;

fn device() -> Device {
    brigade_cpu::device().autodiff()
}

fn dense() -> Linear {
    LinearConfig::new(WIDTH, WIDTH).init(&device())
}

fn apply(linear: &Linear, x: Vectors) -> Vectors {
    linear.forward(x)
}

/// The values of each sample as a vector, repeated or cut.
fn vectors<const D: usize>(x: Tensor<D>) -> Vectors {
    let flat: Vectors = x.reshape([ROWS as i32, -1]);
    let times = WIDTH.div_ceil(flat.dims()[1]);
    Tensor::cat(vec![flat; times], 1).narrow(1, 0, WIDTH)
}

fn batch(number: usize) -> Batch<Vectors, Vectors> {
    Batch::new(floats(number, 1, [ROWS, WIDTH]), floats(number, 2, [ROWS, WIDTH]), ROWS)
}

fn trains_alike(model: &(dyn Fn() -> Model<Vectors, Vectors, Vectors> + Sync)) {
    let one = Case { model, batch }.equals_one_process_on(&one_mesh_each());
    let figures: Vec<f64> = one.figures.into_iter().map(f64::from_bits).collect();
    assert!(figures.iter().all(|figure| figure.is_finite()) && figures[1] > 0.0, "{figures:?}");
}

/// A model with two of a module.
fn with_two<M: Module + 'static, const D: usize>(
    modules: [M; 2],
    forward: impl Fn(&M, Vectors) -> Tensor<D> + Copy + Send + Sync + 'static,
) -> Model<Vectors, Vectors, Vectors> {
    let forward = move |module: &M, x: Vectors| vectors(forward(module, x));
    let [a, b] = modules;
    Chain::new()
        .then_fn("in", dense(), apply)
        .then_fn("a", a, forward)
        .then_fn("b", b, forward)
        .then_fn("out", dense(), apply)
        .loss(|output: Vectors, target: Vectors| (output - target).square().sum())
}

fn step_on_one_process(compute: Dtype, model: impl Fn() -> Model<Vectors, Vectors, Vectors> + Sync) {
    let precision = Precision { compute, ..Precision::default() };
    let settings = EngineSettings { precision, ..EngineSettings::default() };
    let mut engine = Case { model, batch }.engine(Groups::single_rank(), settings).unwrap();
    engine.step(vec![batch(0)], 1e-2).unwrap();
}

/// A test of each layer, and the names of their types.
macro_rules! each_layer {
    ($($name:ident: $module:expr, |$m:ident: $type:ty, $x:ident| $forward:expr;)*) => {
        pub const TYPES: &[&str] = &[$(stringify!($type)),*];

        $(#[test]
        fn $name() {
            super::trains_alike(&|| {
                super::with_two([$module, $module], |$m: &$type, $x: super::Vectors| $forward)
            });
        })*
    };
}

use each_layer;
