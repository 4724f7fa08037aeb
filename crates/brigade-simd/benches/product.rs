//! What one core's matrix product alone reaches, as a JSON line: `cargo bench -p brigade-simd --bench product`.

use std::hint::black_box;
use std::time::Instant;

use brigade_simd::{Matrix, MatrixMut, Product, matmul};

// The feed-forward layer of `configs/gpt-13m.toml`, with 8 sequences.
const M: usize = 2048;
const K: usize = 384;
const N: usize = 1536;
const RUNS: usize = 101;

fn main() {
    let (a, b, mut out) = (vec![0.5; M * K], vec![0.25; K * N], vec![0.0; M * N]);
    let mut seconds: Vec<f64> = (0..RUNS)
        .map(|_| {
            let begin = Instant::now();
            let out = MatrixMut::rows_of(&mut out, [M, N]);
            matmul(Matrix::rows_of(&a, [M, K]), Matrix::rows_of(&b, [K, N]), out, Product::Write, 1.0);
            begin.elapsed().as_secs_f64()
        })
        .collect();
    black_box(&out);
    seconds.sort_by(f64::total_cmp);
    let gflops = (2 * M * K * N) as f64 / seconds[RUNS / 2] / 1e9;
    println!("{{\"product\": \"{M}x{K}x{N}\", \"gflops\": {gflops:.1}}}");
}
