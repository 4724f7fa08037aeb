//! What one core's matrix product alone reaches: `cargo bench -p brigade-simd --bench product` prints a JSON line for that of the feed-forward layer of `configs/gpt-13m.toml` with 8 sequences, in fp32.
//! `-- all` prints a line for each of the model's products in fp32 and bf16: forward, for the input's gradient (the weight transposed) and for the weight's (the input transposed).

use std::hint::black_box;
use std::time::Instant;

use brigade_simd::{Factor, Matrix, MatrixMut, Product, matmul};
use half::bf16;

const RUNS: usize = 101;

/// Columns for rows, or not.
#[derive(Clone, Copy)]
enum Lies {
    Plain,
    Transposed,
}

use Lies::{Plain, Transposed};

/// Sizes of a product, and how its factors lie.
const PRODUCTS: [([usize; 3], Lies, Lies); 8] = [
    ([2048, 384, 1536], Plain, Plain),
    ([2048, 1536, 384], Plain, Transposed),
    ([384, 2048, 1536], Transposed, Plain),
    ([2048, 384, 1152], Plain, Plain),
    ([2048, 384, 384], Plain, Plain),
    // Some rows of the head.
    ([512, 384, 4096], Plain, Transposed),
    ([4096, 512, 384], Transposed, Plain),
    // A tile of attention's scores.
    ([64, 64, 64], Plain, Transposed),
];

impl Lies {
    fn matrix<T>(self, values: &[T], [rows, columns]: [usize; 2]) -> Matrix<'_, T> {
        match self {
            Plain => Matrix::rows_of(values, [rows, columns]),
            Transposed => Matrix::rows_of(values, [columns, rows]).transposed(),
        }
    }

    fn mark(self) -> &'static str {
        match self {
            Plain => "",
            Transposed => "ᵀ",
        }
    }
}

fn measure<T: Factor>(dtype: &str, ([m, k, n], left, right): ([usize; 3], Lies, Lies)) {
    let values =
        |count| (0..count).map(|i| T::from_f32((i * 37 % 101) as f32 * 0.01 - 0.5)).collect::<Vec<_>>();
    let (a, b, mut out) = (values(m * k), values(k * n), vec![T::ZERO; m * n]);
    let mut seconds: Vec<f64> = (0..RUNS)
        .map(|_| {
            let (a, b) = (left.matrix(&a, [m, k]), right.matrix(&b, [k, n]));
            let begin = Instant::now();
            matmul(a, b, MatrixMut::rows_of(&mut out, [m, n]), Product::Write, 1.0);
            begin.elapsed().as_secs_f64()
        })
        .collect();
    black_box(&out);
    seconds.sort_by(f64::total_cmp);
    let gflops = (2 * m * k * n) as f64 / seconds[RUNS / 2] / 1e9;
    let (left, right) = (left.mark(), right.mark());
    println!(
        "{{\"product\": \"{m}x{k}{left}x{n}{right}\", \"dtype\": \"{dtype}\", \"gflops\": {gflops:.1}}}"
    );
}

fn main() {
    if !std::env::args().any(|argument| argument == "all") {
        return measure::<f32>("f32", PRODUCTS[0]);
    }
    PRODUCTS.into_iter().for_each(|product| measure::<f32>("f32", product));
    PRODUCTS.into_iter().for_each(|product| measure::<bf16>("bf16", product));
}
