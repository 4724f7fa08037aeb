//! Bytes of gradients that each codec codes and decodes in a second, beside a copy of memory, and those that PowerSGD factors.
//!
//!     cargo bench -p brigade-compress --bench codecs
//!     cargo bench -p brigade-compress --bench codecs -- int8

use std::hint::black_box;

use brigade_compress::{Compression, Matrix, Method, PowerSgd};
use criterion::{Criterion, Throughput};

/// Numbers of a slice: a quarter of a small model's gradient.
const COUNT: usize = 1 << 18;

fn values() -> Vec<f32> {
    (0..COUNT).map(|i| (i * 7919 % 10_007) as f32 * 1e-5 - 0.05).collect()
}

fn codecs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("codecs");
    group.throughput(Throughput::Bytes((size_of::<f32>() * COUNT) as u64));
    let (values, mut out) = (values(), vec![0.0; COUNT]);
    group.bench_function("copy", |bencher| {
        bencher.iter(|| black_box(&mut out).copy_from_slice(black_box(&values)))
    });
    for method in Method::ALL {
        let Some(codec) = (Compression { method, ..Compression::default() }).codec() else { continue };
        let mut code = vec![0; codec.bytes(COUNT)];
        group.bench_function(format!("{method}, coded"), |bencher| {
            bencher.iter(|| codec.encode(black_box(&values), 7, black_box(&mut code)));
        });
        group.bench_function(format!("{method}, decoded"), |bencher| {
            bencher.iter(|| codec.decode(black_box(&code), 7, black_box(&mut out)));
        });
    }
    let matrices = [Matrix { start: 0, rows: 512, columns: COUNT / 512 }];
    let mut power = PowerSgd::new(4, COUNT, &matrices, 1);
    group.bench_function("powersgd, a whole sum", |bencher| {
        bencher.iter(|| {
            let left = power.left(values.clone());
            let right = power.right(&left);
            let sum = power.sum(&right, 1);
            power.commit(true);
            sum
        });
    });
    group.finish();
}

criterion::criterion_group!(benches, codecs);
criterion::criterion_main!(benches);
