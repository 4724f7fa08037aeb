//! Forward and backward of each operation, fused and by Burn's own, at the sizes of `configs/gpt-13m.toml` with 8 sequences.
//!
//! `matmul` is what the machine's matrix product alone reaches: the limit of operations that consist of products. Their throughput
//! is floating-point operations (criterion prints `Gelem/s`, read GFLOP/s), of the others bytes of their inputs and outputs.

use std::hint::black_box;

use brigade_kernels::{
    ActivationFunction, CrossEntropyConfig, Mask, attention_packed, layer_norm, linear, linear_activation,
    linear_cross_entropy, rms_norm, set_fused,
};
use brigade_simd::{Matrix, MatrixMut, Product, matmul};
use burn::tensor::{Device, Int, Tensor, TensorData};
use criterion::{
    BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime,
};

const BATCH: usize = 8;
const LENGTH: usize = 256;
const ROWS: usize = BATCH * LENGTH;
const WIDTH: usize = 384;
const HIDDEN: usize = 4 * WIDTH;
const HEADS: usize = 6;
const CLASSES: usize = 4096;

fn values<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    let elements: usize = shape.iter().product();
    let values: Vec<f32> = (0..elements).map(|i| (i * 7919 % 1009) as f32 / 1009.0 - 0.5).collect();
    Tensor::from_data(TensorData::new(values, shape), &Device::flex())
}

/// Runs a function and the backward of its sum, with and without fusing.
fn both<const N: usize, const D: usize>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    inputs: [Tensor<2>; N],
    function: impl Fn([Tensor<2>; N]) -> Tensor<D>,
) {
    for (name, fused) in [("fused", true), ("burn", false)] {
        set_fused(fused);
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let inputs = inputs.clone().map(|input| input.autodiff().require_grad());
                let output = function(inputs.clone());
                // The gradient of `sum(output · factor)` is the factor.
                let factor = output.clone().inner();
                let gradients = (output * factor).sum().backward();
                black_box(inputs.map(|input| input.grad(&gradients)))
            });
        });
    }
    set_fused(true);
}

fn products(c: &mut Criterion) {
    let mut group = c.benchmark_group("matmul");
    group.throughput(Throughput::Elements((2 * ROWS * WIDTH * HIDDEN) as u64));
    let (a, b, mut out) = (vec![0.5; ROWS * WIDTH], vec![0.25; WIDTH * HIDDEN], vec![0.0; ROWS * HIDDEN]);
    group.bench_function("2048x384x1536", |bencher| {
        bencher.iter(|| {
            let (a, b) = (Matrix::rows_of(&a, [ROWS, WIDTH]), Matrix::rows_of(&b, [WIDTH, HIDDEN]));
            matmul(a, b, MatrixMut::rows_of(&mut out, [ROWS, HIDDEN]), Product::Write, 1.0);
        });
    });
    group.finish();

    let mut group = c.benchmark_group("linear");
    group.throughput(Throughput::Elements((6 * ROWS * WIDTH * HIDDEN) as u64));
    let inputs = || [values([ROWS, WIDTH]), values([WIDTH, HIDDEN]), values([1, HIDDEN])];
    both(&mut group, inputs(), |[x, w, b]| linear(x, w, Some(b.reshape([HIDDEN]))));
    group.finish();

    let mut group = c.benchmark_group("linear_gelu");
    group.throughput(Throughput::Elements((6 * ROWS * WIDTH * HIDDEN) as u64));
    both(&mut group, inputs(), |[x, w, b]| {
        linear_activation(x, w, Some(b.reshape([HIDDEN])), ActivationFunction::Gelu)
    });
    group.finish();

    let mut group = c.benchmark_group("attention");
    // Of causal attention half of the scores count: two products forward, five backward.
    group.throughput(Throughput::Elements((7 * ROWS * LENGTH * WIDTH) as u64));
    both(&mut group, [values([ROWS, 3 * WIDTH])], |[qkv]| {
        let qkv = qkv.reshape([BATCH, LENGTH, 3 * WIDTH]);
        attention_packed(qkv, HEADS, HEADS, Mask::Causal, 0.125)
    });
    group.finish();

    let mut group = c.benchmark_group("linear_cross_entropy");
    group.throughput(Throughput::Elements((6 * ROWS * WIDTH * CLASSES) as u64));
    let targets: Vec<i64> = (0..ROWS).map(|row| (row * 7919 % CLASSES) as i64).collect();
    let targets = Tensor::<1, Int>::from_data(TensorData::new(targets, [ROWS]), &Device::flex());
    both(&mut group, [values([ROWS, WIDTH]), values([CLASSES, WIDTH])], |[x, w]| {
        linear_cross_entropy(x, w, targets.clone(), None, CrossEntropyConfig::default()).0
    });
    group.finish();
}

fn norms(c: &mut Criterion) {
    let mut group = c.benchmark_group("layer_norm");
    group.throughput(Throughput::Bytes((5 * 4 * ROWS * WIDTH) as u64));
    let inputs = [values([ROWS, WIDTH]), values([1, WIDTH]), values([1, WIDTH])];
    both(&mut group, inputs, |[x, gamma, beta]| {
        layer_norm(x, gamma.reshape([WIDTH]), Some(beta.reshape([WIDTH])), 1e-5)
    });
    group.finish();

    let mut group = c.benchmark_group("rms_norm");
    group.throughput(Throughput::Bytes((5 * 4 * ROWS * WIDTH) as u64));
    let inputs = [values([ROWS, WIDTH]), values([1, WIDTH])];
    both(&mut group, inputs, |[x, gamma]| rms_norm(x, gamma.reshape([WIDTH]), 1e-6));
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10);
    targets = products, norms
}
criterion_main!(benches);
