//! Burn's batch norm beside its dropout, on GPUs: running statistics as on the CPU, and the same on every mesh.

use brigade::core::{Batch, Chain, Dtype, Model, NamedTensor, Recompute};
use brigade::nn::SyncBatchNorm;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor, activation::relu};

use super::case::{Case, floats, of};
use crate::backend::{CPU, backends};
use crate::compare::{near, near_together};

fn images(device: &Device, dropout: f64) -> Model<Tensor<4>, Tensor<2>, Tensor<2>> {
    normed(device, dropout, |norm| norm, BatchNorm::forward)
}

/// With statistics over the data-parallel ranks.
pub fn synchronised_images(device: &Device) -> Model<Tensor<4>, Tensor<2>, Tensor<2>> {
    normed(device, 0.0, SyncBatchNorm::from, SyncBatchNorm::forward)
}

fn normed<N: Module + 'static>(
    device: &Device,
    dropout: f64,
    norm: impl Fn(BatchNorm) -> N,
    normalise: impl Fn(&N, Tensor<4>) -> Tensor<4> + Send + Sync + Copy + 'static,
) -> Model<Tensor<4>, Tensor<2>, Tensor<2>> {
    let device = &device.clone().autodiff();
    let layer = |inputs, outputs| -> (Conv2d, N, Dropout) {
        let conv = Conv2dConfig::new([inputs, outputs], [3, 3]).init(device);
        let batch_norm = BatchNormConfig::new(outputs).with_momentum(0.3).init(device);
        (conv, norm(batch_norm), DropoutConfig::new(dropout).init())
    };
    let convolve = move |(conv, norm, drop): &(Conv2d, N, Dropout), x: Tensor<4>| {
        drop.forward(relu(normalise(norm, conv.forward(x))))
    };
    Chain::new()
        .then_fn("stem", layer(1, 3), convolve)
        .then_fn("body", layer(3, 4), convolve)
        .then_fn("last", layer(4, 4), convolve)
        .then_fn("head", LinearConfig::new(4, 2).init(device), |linear: &Linear, x: Tensor<4>| {
            linear.forward(x.mean_dim(3).mean_dim(2).flatten::<2>(1, 3))
        })
        .loss(|output, target: Tensor<2>| (output - target).square().sum())
}

pub fn batch(number: usize, device: &Device) -> Batch<Tensor<4>, Tensor<2>> {
    Batch::new(floats(number, 1, [3, 1, 8, 8], device), floats(number, 2, [3, 2], device), 3)
}

/// The running means and variances.
fn statistics(tensors: &[NamedTensor]) -> Vec<NamedTensor> {
    let of_norm = |tensor: &&NamedTensor| tensor.name.contains("running");
    let found: Vec<_> = tensors.iter().filter(of_norm).cloned().collect();
    assert_eq!(found.len(), 6);
    found
}

#[test]
fn statistics_and_masks_are_the_same_on_every_mesh() {
    for backend in backends() {
        let case = || Case { model: |device: &Device| images(device, 0.5), batch, seed: 11 };
        let one = case().equals_one_process(&backend);
        let apart = case().distance_of_another_seed(&backend, &one);
        assert!(apart > 0.1, "{}: {apart} apart", backend.name);
    }
}

/// Without dropout, whose masks are others there. Each forward of a recomputed block finds the statistics that it found the first time, and they are applied once.
#[test]
fn statistics_are_the_cpus() {
    let case = Case { model: |device: &Device| images(device, 0.0), batch, seed: 11 };
    let expected = statistics(&case.alone(&CPU).weights);
    let first = |name: &str| {
        let found = expected.iter().find(|tensor| tensor.name == name).unwrap();
        found.data.as_slice::<f32>().unwrap()[0]
    };
    assert!(first("stem.1.running_mean") != 0.0 && first("last.1.running_var") != 1.0, "they are updated");
    for backend in backends() {
        let tolerance = backend.tolerance(Dtype::F32);
        let compare = if tolerance.rounds { near_together } else { near };
        for recompute in [Recompute::None, Recompute::Every(1)] {
            let found = case.on(&backend, &((1, 1), of(0, recompute)), 0..3, None).remove(0);
            let what = format!("{recompute:?} on {}", backend.name);
            compare(&statistics(&found.weights), &expected, tolerance.relative, &what);
        }
    }
}
