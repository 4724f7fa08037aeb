use half::bf16;
use proptest::prelude::*;

use super::*;
use crate::arch::tests::on_each;
use crate::testing::numbers;

/// A matrix of these many rows and columns.
#[derive(Debug, Clone, Copy)]
enum Lies {
    InRows,
    /// In rows that are longer than they must be.
    Padded,
    InColumns,
    /// Every third number of every row, which is longer than it must be.
    Apart,
}

const WAYS: [Lies; 4] = [Lies::InRows, Lies::Padded, Lies::InColumns, Lies::Apart];

impl Lies {
    fn strides(self, [rows, columns]: [usize; 2]) -> [usize; 2] {
        match self {
            Self::InRows => [columns, 1],
            Self::Padded => [columns + 5, 1],
            Self::InColumns => [1, rows],
            Self::Apart => [3 * columns + 5, 3],
        }
    }

    fn matrix<T>(self, values: &[T], shape: [usize; 2]) -> Matrix<'_, T> {
        Matrix::new(values, shape, self.strides(shape))
    }

    fn values(self, [rows, columns]: [usize; 2], seed: u64) -> Vec<bf16> {
        let [row, column] = self.strides([rows, columns]);
        numbers(rows * row.max(1) + columns * column.max(1), seed, 2.0)
    }
}

fn at<T: Element>(matrix: &Matrix<'_, T>, row: usize, column: usize) -> f64 {
    let [row_stride, column_stride] = matrix.strides();
    f64::from(matrix.values()[row * row_stride + column * column_stride].to_f32())
}

/// Each kind of kernel that this processor has.
fn on_each_kernel<O: Element>(
    run: impl Fn(&str, fn(Matrix<'_, bf16>, Matrix<'_, bf16>, MatrixMut<'_, O>, Product, f32)),
) {
    on_each(|kind| run(&format!("{kind:?}"), matmul::<bf16, O>));
    run("widened", |a, b, out, product, scale| {
        blocks::multiply(widening::Widening::detect(), a, b, out, product, scale);
    });
    // Also where it is not quick.
    #[cfg(target_arch = "x86_64")]
    if avx512_bf16::Avx512Bf16::detect().is_some() {
        run("in pairs", |a, b, out, product, scale| {
            blocks::multiply(avx512_bf16::Avx512Bf16::detect().unwrap(), a, b, out, product, scale);
        });
    }
}

/// Compares with sums in `f64`.
fn check<O: Element>([m, k, n]: [usize; 3], [a_lies, b_lies]: [Lies; 2], product: Product, scale: f32) {
    let (a, b) = (a_lies.values([m, k], 1), b_lies.values([k, n], 2));
    let (a, b) = (a_lies.matrix(&a, [m, k]), b_lies.matrix(&b, [k, n]));
    let stride = n + 3;
    let before: Vec<O> = numbers(m * stride, 3, 1.0);
    on_each_kernel(|name, matmul| {
        let mut out = before.clone();
        matmul(a, b, MatrixMut::new(&mut out, [m, n], stride), product, scale);
        for (index, (found, before)) in out.iter().zip(&before).enumerate() {
            let (row, column) = (index / stride, index % stride);
            let (found, before) = (f64::from(found.to_f32()), f64::from(before.to_f32()));
            if column >= n {
                assert!(found == before, "{name}: what lies between rows is not the product's");
                continue;
            }
            let terms = || (0..k).map(|inner| at(&a, row, inner) * at(&b, inner, column) * f64::from(scale));
            let start = if product == Product::Add { before } else { 0.0 };
            let truth = start + terms().sum::<f64>();
            let magnitude = start.abs() + terms().map(f64::abs).sum::<f64>();
            let rounding = if size_of::<O>() == 2 { truth.abs() * 2f64.powi(-8) } else { 0.0 };
            let allowed = magnitude * (4.0 + (k as f64).sqrt()) * 2f64.powi(-24) + rounding;
            assert!(
                (found - truth).abs() <= allowed,
                "{name}: {m} × {k} × {n} ({a_lies:?}, {b_lies:?}, {product:?}): {found} at {row}, {column} instead of {truth}"
            );
        }
    });
}

#[test]
fn products_are_near_the_truth() {
    for shape in [[1, 1, 1], [5, 7, 3], [6, 32, 64], [7, 33, 65], [70, 129, 31], [13, 64, 130], [64, 64, 64]]
    {
        for a in WAYS {
            for b in WAYS {
                check::<f32>(shape, [a, b], Product::Write, 1.0);
                check::<bf16>(shape, [a, b], Product::Add, -0.5);
            }
        }
    }
}

#[test]
fn long_sums_are_made_in_pieces() {
    for k in [2047, 2048, 2049, 4099] {
        check::<f32>([8, k, 17], [Lies::InRows, Lies::InRows], Product::Add, 1.0);
        check::<bf16>([8, k, 17], [Lies::InColumns, Lies::InColumns], Product::Write, 2.0);
    }
}

#[test]
fn wide_matrices_are_packed_in_pieces() {
    for left in [Lies::InColumns, Lies::InRows] {
        check::<f32>([7, 1400, 1600], [left, Lies::InRows], Product::Write, 1.0);
        check::<f32>([100, 1400, 3], [left, Lies::Padded], Product::Write, 1.0);
        check::<f32>([760, 1400, 2], [left, Lies::InColumns], Product::Write, 1.0);
    }
}

#[test]
fn of_nothing() {
    on_each_kernel::<f32>(|name, matmul| {
        for product in [Product::Write, Product::Add] {
            let mut out = [7.0; 6];
            let (a, b) = (Matrix::new(&[], [2, 0], [4, 1]), Matrix::new(&[], [0, 3], [3, 1]));
            matmul(a, b, MatrixMut::rows_of(&mut out, [2, 3]), product, 1.0);
            let expected = if product == Product::Add { [7.0; 6] } else { [0.0; 6] };
            assert_eq!(out, expected, "{name}: a sum of nothing");
        }
        let one = [bf16::ONE];
        matmul(
            Matrix::new(&[], [0, 1], [1, 1]),
            Matrix::rows_of(&one, [1, 1]),
            MatrixMut::rows_of(&mut [], [0, 1]),
            Product::Write,
            1.0,
        );
        matmul(
            Matrix::rows_of(&one, [1, 1]),
            Matrix::new(&[], [1, 0], [0, 1]),
            MatrixMut::rows_of(&mut [], [1, 0]),
            Product::Write,
            1.0,
        );
    });
}

#[test]
fn a_row_has_its_bits_however_many_there_are() {
    for [k, n] in [[384, 70], [35, 1], [2051, 9]] {
        for (a_lies, b_lies) in [(Lies::InRows, Lies::InColumns), (Lies::InColumns, Lies::InRows)] {
            let m = 40;
            let (a, b) = (a_lies.values([m, k], 5), b_lies.values([k, n], 6));
            let (a, b) = (a_lies.matrix(&a, [m, k]), b_lies.matrix(&b, [k, n]));
            on_each_kernel::<f32>(|name, matmul| {
                let mut all = vec![0.0; m * n];
                matmul(a, b, MatrixMut::rows_of(&mut all, [m, n]), Product::Write, 1.0);
                for from in [0, 1, 5, 39] {
                    for count in (1..8).chain([13, m]).filter(|count| from + count <= m) {
                        let mut some = vec![0.0; count * n];
                        let out = MatrixMut::rows_of(&mut some, [count, n]);
                        matmul(a.part([from, 0], [count, k]), b, out, Product::Write, 1.0);
                        assert!(some == all[from * n..][..count * n], "{name}: {count} rows from {from} on");
                    }
                }
                for from in 0..n {
                    let mut some = vec![0.0; m];
                    let out = MatrixMut::rows_of(&mut some, [m, 1]);
                    matmul(a, b.part([0, from], [k, 1]), out, Product::Write, 1.0);
                    assert!(some.iter().eq(all.iter().skip(from).step_by(n)), "{name}: column {from}");
                }
            });
        }
    }
}

#[test]
fn what_is_no_number_stays_in_its_row_and_column() {
    let [m, k, n] = [9, 35, 67];
    for (special, shows) in [(f32::NAN, f32::is_nan as fn(f32) -> bool), (f32::INFINITY, |x| !x.is_finite())]
    {
        for place in [0, k - 1] {
            let (mut a, mut b): (Vec<bf16>, Vec<bf16>) = (numbers(m * k, 1, 1.0), numbers(k * n, 2, 1.0));
            a[4 * k + place] = bf16::from_f32(special);
            b[place * n + 66] = bf16::from_f32(special);
            on_each_kernel::<bf16>(|name, matmul| {
                let mut out = vec![bf16::ZERO; m * n];
                let (a, b) = (Matrix::rows_of(&a, [m, k]), Matrix::rows_of(&b, [k, n]));
                matmul(a, b, MatrixMut::rows_of(&mut out, [m, n]), Product::Write, 1.0);
                for (index, found) in out.iter().enumerate() {
                    let (row, column) = (index / n, index % n);
                    let expected = row == 4 || column == 66;
                    assert_eq!(shows(found.to_f32()), expected, "{name}: {found} at {row}, {column}");
                }
            });
        }
    }
}

#[test]
fn overflow_is_infinite() {
    let (a, b) = ([bf16::MAX; 4], [bf16::from_f32(2.0); 4]);
    on_each_kernel::<f32>(|name, matmul| {
        let mut out = [0.0];
        let out_matrix = MatrixMut::rows_of(&mut out, [1, 1]);
        matmul(Matrix::rows_of(&a, [1, 4]), Matrix::rows_of(&b, [4, 1]), out_matrix, Product::Write, 1.0);
        assert_eq!(out, [f32::INFINITY], "{name}");
    });
}

#[test]
#[should_panic(expected = "2 × 3 by 2 × 2 into [2, 2]")]
fn shapes_must_fit() {
    let (a, b) = ([bf16::ONE; 6], [bf16::ONE; 4]);
    let out = &mut [0f32; 4];
    let (a, b) = (Matrix::rows_of(&a, [2, 3]), Matrix::rows_of(&b, [2, 2]));
    matmul(a, b, MatrixMut::rows_of(out, [2, 2]), Product::Write, 1.0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_shape(shape in [0usize..40, 0usize..90, 0usize..150], ways in [0usize..4, 0usize..4], add: bool) {
        let product = if add { Product::Add } else { Product::Write };
        check::<f32>(shape, ways.map(|way| WAYS[way]), product, 0.75);
        check::<bf16>(shape, ways.map(|way| WAYS[way]), product, 0.75);
    }
}
