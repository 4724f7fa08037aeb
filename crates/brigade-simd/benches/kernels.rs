//! Bytes read and written in a second by each kernel, on data that fits the L2 cache and on data that does not, beside a copy of memory and
//! plain loops.
//!
//!     cargo bench -p brigade-simd --bench kernels
//!     cargo bench -p brigade-simd --bench kernels -- adamw

use std::hint::black_box;

use brigade_simd::activation::ActivationFunction;
use brigade_simd::cross_entropy::{Smoothing, cross_entropy, cross_entropy_backward};
use brigade_simd::optimizer::{AdamW, Lion, Sgd, Step};
use brigade_simd::{Element, add_rows, column_sums, math, norm};
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, measurement::WallTime};
use half::bf16;

/// Elements of a row.
const WIDTH: usize = 512;

/// Rows: of 64 KiB in `f32`, and of 16 MiB.
const ROWS: [usize; 2] = [32, 8192];

type Group<'a> = BenchmarkGroup<'a, WallTime>;

/// Measures `run` under a name that ends in the number of rows; `arrays` of this many elements of `T` are read or written.
fn measure<T>(group: &mut Group, name: &str, rows: usize, arrays: usize, mut run: impl FnMut()) {
    group.throughput(Throughput::Bytes((rows * WIDTH * arrays * size_of::<T>()) as u64));
    group.bench_function(BenchmarkId::new(name, rows * WIDTH), |bencher| bencher.iter(&mut run));
}

fn values<T: Element>(count: usize) -> Vec<T> {
    (0..count).map(|i| T::from_f32((i * 37 % 101) as f32 * 0.08 - 4.0)).collect()
}

fn elementary(group: &mut Group, rows: usize) {
    let x: Vec<f32> = values(rows * WIDTH);
    let mut out = vec![0.0; x.len()];
    measure::<f32>(group, "copy", rows, 2, || black_box(&mut out).copy_from_slice(black_box(&x)));
    measure::<f32>(group, "exp by a loop", rows, 2, || {
        black_box(&mut out).iter_mut().zip(black_box(&x)).for_each(|(out, x)| *out = x.exp());
    });
    type Function = fn(&[f32], &mut [f32]);
    let functions: [(&str, Function); 5] = [
        ("exp", math::exp),
        ("ln", math::ln),
        ("erf", math::erf),
        ("tanh", math::tanh),
        ("sigmoid", math::sigmoid),
    ];
    for (name, function) in functions {
        measure::<f32>(group, name, rows, 2, || function(black_box(&x), black_box(&mut out)));
    }
}

fn activations<T: Element>(group: &mut Group, rows: usize) {
    let (mut x, up) = (values::<T>(rows * WIDTH), values::<T>(rows * WIDTH));
    let bias = vec![T::ZERO; WIDTH];
    let (mut out, mut other) = (x.clone(), x.clone());
    let mut sums = vec![0.0; WIDTH];
    for activation in [
        ActivationFunction::Gelu,
        ActivationFunction::GeluTanh,
        ActivationFunction::Silu,
        ActivationFunction::Relu,
    ] {
        measure::<T>(group, &format!("{activation:?} with a bias"), rows, 3, || {
            activation.forward(black_box(&mut x), Some(&bias), black_box(&mut out));
        });
        measure::<T>(group, &format!("{activation:?} backward with sums"), rows, 3, || {
            activation.backward(black_box(&x), black_box(&up), black_box(&mut out), Some(&mut sums));
        });
    }
    measure::<T>(group, "SwiGLU", rows, 3, || {
        ActivationFunction::Silu.gated(black_box(&x), black_box(&up), black_box(&mut out));
    });
    measure::<T>(group, "SwiGLU backward", rows, 5, || {
        ActivationFunction::Silu.gated_backward(
            black_box(&x),
            &up,
            &up,
            black_box(&mut out),
            black_box(&mut other),
        );
    });
    measure::<T>(group, "add rows", rows, 2, || add_rows(black_box(&x), &bias, black_box(&mut out)));
    measure::<T>(group, "column sums", rows, 1, || column_sums(black_box(&x), black_box(&mut sums)));
}

fn norms<T: Element>(group: &mut Group, rows: usize) {
    let (x, gradient, gamma) = (values::<T>(rows * WIDTH), values::<T>(rows * WIDTH), vec![1.0; WIDTH]);
    let mut y = x.clone();
    let (mut means, mut factors) = (vec![0.0; rows], vec![0.0; rows]);
    let (mut d_gamma, mut d_beta) = (vec![0.0; WIDTH], vec![0.0; WIDTH]);
    measure::<T>(group, "layer norm", rows, 2, || {
        norm::layer_norm(black_box(&x), &gamma, Some(&gamma), 1e-5, &mut y, &mut means, &mut factors);
    });
    measure::<T>(group, "layer norm backward", rows, 3, || {
        let (m, f) = (&means, &factors);
        norm::layer_norm_backward(black_box(&gradient), &x, m, f, &gamma, &mut y, &mut d_gamma, &mut d_beta);
    });
    measure::<T>(group, "RMS norm", rows, 2, || {
        norm::rms_norm(black_box(&x), &gamma, 1e-5, &mut y, &mut factors);
    });
    measure::<T>(group, "RMS norm backward", rows, 3, || {
        norm::rms_norm_backward(black_box(&gradient), &x, &factors, &gamma, &mut y, &mut d_gamma);
    });
}

fn losses<T: Element>(group: &mut Group, rows: usize) {
    let mut logits = values::<T>(rows * WIDTH);
    let targets: Vec<i64> = (0..rows).map(|row| (row % WIDTH) as i64).collect();
    let (mut losses, mut hits, mut logarithms) = (vec![0.0; rows], vec![0.0; rows], vec![5.0; rows]);
    let scales = vec![1.0; rows];
    measure::<T>(group, "cross entropy", rows, 1, || {
        let smoothing = Smoothing::default();
        cross_entropy(black_box(&logits), &targets, smoothing, &mut losses, &mut hits, &mut logarithms);
    });
    measure::<T>(group, "cross entropy backward", rows, 2, || {
        let smoothing = Smoothing::default();
        cross_entropy_backward(black_box(&mut logits), &targets, smoothing, &logarithms, &scales);
    });
}

fn optimizers(group: &mut Group, rows: usize) {
    let (mut x, gradient) = (values::<f32>(rows * WIDTH), values::<f32>(rows * WIDTH));
    let (mut first, mut second) = (vec![0.0; x.len()], vec![0.0; x.len()]);
    let step = Step { learning_rate: 1e-4, number: 10, scale: 0.5 };
    let adamw = AdamW { beta_1: 0.9, beta_2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };
    measure::<f32>(group, "adamw", rows, 7, || {
        adamw.step(step, black_box(&mut x), &gradient, [&mut first, &mut second]);
    });
    measure::<f32>(group, "adamw by a loop", rows, 7, || {
        let moments = first.iter_mut().zip(&mut second);
        for ((x, g), (m, v)) in black_box(&mut x).iter_mut().zip(&gradient).zip(moments) {
            let g = g * 0.5;
            *m = *m * 0.9 + g * 0.1;
            *v = *v * 0.95 + g * g * 0.05;
            *x = *x * 0.9999 - *m / 0.6 / ((*v / 0.4).sqrt() + 1e-8) * 1e-4;
        }
    });
    let lion = Lion { beta_1: 0.9, beta_2: 0.99, weight_decay: 0.1 };
    measure::<f32>(group, "lion", rows, 5, || lion.step(step, black_box(&mut x), &gradient, &mut first));
    let sgd = Sgd { momentum: 0.9, dampening: 0.0, nesterov: false, weight_decay: None };
    measure::<f32>(group, "sgd", rows, 5, || sgd.step(step, black_box(&mut x), &gradient, &mut first));
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    for rows in ROWS {
        let mut group = criterion.benchmark_group("f32");
        elementary(&mut group, rows);
        activations::<f32>(&mut group, rows);
        norms::<f32>(&mut group, rows);
        losses::<f32>(&mut group, rows);
        optimizers(&mut group, rows);
        group.finish();
        let mut group = criterion.benchmark_group("bf16");
        activations::<bf16>(&mut group, rows);
        norms::<bf16>(&mut group, rows);
        losses::<bf16>(&mut group, rows);
        group.finish();
    }
    criterion.final_summary();
}
