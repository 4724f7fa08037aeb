//! Forward and backward of each operation, fused and by Burn's own, at the sizes of `configs/gpt-13m.toml` with 8 sequences.
//!
//! `matmul` is what the machine's matrix product alone reaches: the limit of operations that consist of products. Their throughput
//! is floating-point operations (criterion prints `Gelem/s`, read GFLOP/s), of the others bytes of their inputs and outputs, whose limit is `copy`.

use std::hint::black_box;

use brigade_kernels::{
    ActivationFunction, AdamWConfig, CrossEntropyConfig, DropoutMask, LionConfig, Mask, SgdConfig, activate,
    attention_packed, attention_with_dropout, cast, dropout, embedding, feed_forward, gated, layer_norm,
    linear, linear_activation, linear_cross_entropy, linear_residual, rms_norm, rotary, set_fused,
    with_gradient,
};
use brigade_simd::{Matrix, MatrixMut, Product, matmul};
use burn::optim::{self, Optimizer, momentum::MomentumConfig};
use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData, bf16};
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

/// Runs a function and its backward from a gradient that is there, with and without fusing.
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
                let elements = output.shape().num_elements();
                let gradient = output.clone().inner().reshape([elements]);
                let gradients = with_gradient(output.reshape([elements]), gradient).backward();
                black_box(inputs.map(|input| input.grad(&gradients)))
            });
        });
    }
    set_fused(true);
}

/// [`both`] in fp32 and in bf16. `throughput`: of numbers of this many bytes.
fn in_both_types<const N: usize, const D: usize>(
    c: &mut Criterion,
    name: &str,
    throughput: impl Fn(usize) -> Throughput,
    inputs: [Tensor<2>; N],
    function: impl Fn([Tensor<2>; N]) -> Tensor<D>,
) {
    for (suffix, dtype) in [("", DType::F32), ("_bf16", DType::BF16)] {
        let mut group = c.benchmark_group(format!("{name}{suffix}"));
        group.throughput(throughput(dtype.size()));
        both(&mut group, inputs.clone().map(|input| input.cast(dtype)), &function);
        group.finish();
    }
}

/// A class or row of a table for each row.
fn numbers() -> Tensor<1, Int> {
    let numbers: Vec<i64> = (0..ROWS).map(|row| (row * 7919 % CLASSES) as i64).collect();
    Tensor::from_data(TensorData::new(numbers, [ROWS]), &Device::flex())
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
    let [a, b] = [ROWS * WIDTH, WIDTH * HIDDEN].map(|elements| vec![bf16::from_f32(0.5); elements]);
    let mut out = vec![bf16::from_f32(0.0); ROWS * HIDDEN];
    group.bench_function("2048x384x1536_bf16", |bencher| {
        bencher.iter(|| {
            let (a, b) = (Matrix::rows_of(&a, [ROWS, WIDTH]), Matrix::rows_of(&b, [WIDTH, HIDDEN]));
            matmul(a, b, MatrixMut::rows_of(&mut out, [ROWS, HIDDEN]), Product::Write, 1.0);
        });
    });
    group.finish();

    let products = |_: usize| Throughput::Elements((6 * ROWS * WIDTH * HIDDEN) as u64);
    let inputs = || [values([ROWS, WIDTH]), values([WIDTH, HIDDEN]), values([1, HIDDEN])];
    in_both_types(c, "linear", products, inputs(), |[x, w, b]| linear(x, w, Some(b.reshape([HIDDEN]))));
    in_both_types(c, "linear_gelu", products, inputs(), |[x, w, b]| {
        linear_activation(x, w, Some(b.reshape([HIDDEN])), ActivationFunction::Gelu)
    });

    let mut group = c.benchmark_group("linear_residual");
    group.throughput(Throughput::Elements((6 * ROWS * WIDTH * HIDDEN) as u64));
    let [x, w, b] = inputs();
    both(&mut group, [x, w, b, values([ROWS, HIDDEN])], |[x, w, b, residual]| {
        linear_residual(x, w, Some(b.reshape([HIDDEN])), residual)
    });
    group.finish();

    let mut group = c.benchmark_group("feed_forward");
    group.throughput(Throughput::Elements((12 * ROWS * WIDTH * HIDDEN) as u64));
    let [x, up, up_bias] = inputs();
    both(&mut group, [x, up, up_bias, values([HIDDEN, WIDTH]), values([1, WIDTH])], |[x, up, a, down, b]| {
        let (up, down) = ((up, Some(a.reshape([HIDDEN]))), (down, Some(b.reshape([WIDTH]))));
        feed_forward(x.clone(), up, ActivationFunction::Gelu, down, Some(x))
    });
    group.finish();

    // Of causal attention half of the scores count: two products forward, five backward. With other masks it is the same number, though fewer are computed.
    let products = |_: usize| Throughput::Elements((7 * ROWS * LENGTH * WIDTH) as u64);
    let documents: &[usize] = &[100, 60, 96];
    for (name, mask) in [
        ("attention", Mask::Causal),
        ("attention_window", Mask::Window(64)),
        ("attention_documents", Mask::causal_documents(&[documents; BATCH], LENGTH)),
    ] {
        in_both_types(c, name, products, [values([ROWS, 3 * WIDTH])], |[qkv]| {
            let qkv = qkv.reshape([BATCH, LENGTH, 3 * WIDTH]);
            attention_packed(qkv, HEADS, HEADS, mask.clone(), 0.125)
        });
    }

    let mut group = c.benchmark_group("attention_with_dropout");
    group.throughput(Throughput::Elements((7 * ROWS * LENGTH * WIDTH) as u64));
    both(&mut group, [values([ROWS, WIDTH]), values([ROWS, WIDTH]), values([ROWS, WIDTH])], |qkv| {
        let [q, k, v] = qkv.map(|x| x.reshape([BATCH, LENGTH, HEADS, WIDTH / HEADS]).swap_dims(1, 2));
        attention_with_dropout(q, k, v, Mask::Causal, 0.125, DropoutMask { probability: 0.1, seed: 7 })
    });
    group.finish();

    let mut group = c.benchmark_group("dropout");
    group.throughput(Throughput::Bytes((5 * 4 * ROWS * WIDTH) as u64));
    both(&mut group, [values([ROWS, WIDTH]), values([ROWS, WIDTH])], |[x, residual]| {
        dropout(x, Some(residual), 0.1)
    });
    group.finish();

    let mut group = c.benchmark_group("linear_cross_entropy");
    group.throughput(Throughput::Elements((6 * ROWS * WIDTH * CLASSES) as u64));
    let targets = numbers();
    both(&mut group, [values([ROWS, WIDTH]), values([CLASSES, WIDTH])], |[x, w]| {
        linear_cross_entropy(x, w, targets.clone(), None, CrossEntropyConfig::default()).0
    });
    group.finish();
}

fn norms(c: &mut Criterion) {
    let bytes = |size: usize| Throughput::Bytes((5 * size * ROWS * WIDTH) as u64);
    let inputs = [values([ROWS, WIDTH]), values([1, WIDTH]), values([1, WIDTH])];
    in_both_types(c, "layer_norm", bytes, inputs, |[x, gamma, beta]| {
        layer_norm(x, gamma.reshape([WIDTH]), Some(beta.reshape([WIDTH])), 1e-5)
    });
    let inputs = [values([ROWS, WIDTH]), values([1, WIDTH])];
    in_both_types(c, "rms_norm", bytes, inputs, |[x, gamma]| rms_norm(x, gamma.reshape([WIDTH]), 1e-6));
}

fn passes(c: &mut Criterion) {
    let mut group = c.benchmark_group("copy");
    for (name, elements) in [("2048x1536", ROWS * HIDDEN), ("16MiB", 4 << 20)] {
        let (from, mut to) = (vec![0.5_f32; elements], vec![0.0_f32; elements]);
        group.throughput(Throughput::Bytes((2 * 4 * elements) as u64));
        group.bench_function(name, |bencher| {
            bencher.iter(|| black_box(&mut to[..]).copy_from_slice(black_box(&from[..])));
        });
    }
    group.finish();

    for (name, activation) in [
        ("gelu", ActivationFunction::Gelu),
        ("gelu_tanh", ActivationFunction::GeluTanh),
        ("silu", ActivationFunction::Silu),
    ] {
        let mut group = c.benchmark_group(name);
        group.throughput(Throughput::Bytes((5 * 4 * ROWS * HIDDEN) as u64));
        both(&mut group, [values([ROWS, HIDDEN])], |[x]| activate(x, activation));
        group.finish();
    }

    for (name, activation) in [("swiglu", ActivationFunction::Silu), ("geglu", ActivationFunction::Gelu)] {
        let mut group = c.benchmark_group(name);
        group.throughput(Throughput::Bytes((8 * 4 * ROWS * HIDDEN) as u64));
        both(&mut group, [values([ROWS, HIDDEN]), values([ROWS, HIDDEN])], |[gate, up]| {
            gated(gate, up, activation)
        });
        group.finish();
    }

    let mut group = c.benchmark_group("cast");
    group.throughput(Throughput::Bytes((2 * (4 + 2) * ROWS * HIDDEN) as u64));
    both(&mut group, [values([ROWS, HIDDEN])], |[x]| cast(x, FloatDType::BF16));
    group.finish();

    let mut group = c.benchmark_group("rotary");
    group.throughput(Throughput::Bytes((4 * 4 * ROWS * WIDTH) as u64));
    let angles = || values([LENGTH, WIDTH / HEADS / 2]);
    both(&mut group, [values([ROWS, WIDTH])], |[x]| {
        let heads = x.reshape([BATCH, LENGTH, HEADS, WIDTH / HEADS]);
        rotary(heads, angles(), angles())
    });
    group.finish();

    let mut group = c.benchmark_group("embedding");
    // The rows that are looked up and their gradients, and the gradient of the table.
    group.throughput(Throughput::Bytes((4 * WIDTH * (4 * ROWS + CLASSES)) as u64));
    let indices = numbers().reshape([BATCH, LENGTH]);
    both(&mut group, [values([CLASSES, WIDTH])], |[table]| embedding(table, indices.clone()));
    group.finish();
}

/// A step of a flat shard, ours and by Burn's operations.
fn optimizers(c: &mut Criterion) {
    const ELEMENTS: usize = 4 << 20;
    fn step(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, optimizer: &impl Optimizer) {
        let (mut shard, mut state, gradient) = (values([ELEMENTS]), None, values([ELEMENTS]));
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let stepped = optimizer.step(1e-3, shard.clone(), gradient.clone(), state.take());
                (shard, state) = black_box(stepped);
            });
        });
    }
    let mut group = c.benchmark_group("adamw");
    group.throughput(Throughput::Bytes((7 * 4 * ELEMENTS) as u64));
    step(
        &mut group,
        "fused",
        &AdamWConfig {
            beta_1: 0.9,
            beta_2: 0.95,
            epsilon: 1e-8,
            weight_decay: 0.1,
            cautious_weight_decay: false,
            amsgrad: false,
        }
        .build(),
    );
    step(&mut group, "burn", &optim::AdamWConfig::new().build());
    group.finish();

    let mut group = c.benchmark_group("lion");
    group.throughput(Throughput::Bytes((5 * 4 * ELEMENTS) as u64));
    step(&mut group, "fused", &LionConfig { beta_1: 0.9, beta_2: 0.99, weight_decay: 0.1 }.build());
    step(&mut group, "burn", &optim::LionConfig::new().build());
    group.finish();

    let mut group = c.benchmark_group("sgd");
    group.throughput(Throughput::Bytes((5 * 4 * ELEMENTS) as u64));
    let momentum = MomentumConfig::new().with_momentum(0.9);
    step(
        &mut group,
        "fused",
        &SgdConfig { momentum: Some(0.9), dampening: 0.0, nesterov: false, weight_decay: None }.build(),
    );
    step(&mut group, "burn", &optim::SgdConfig::new().with_momentum(Some(momentum)).build());
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10);
    targets = products, norms, passes, optimizers
}
criterion_main!(benches);
