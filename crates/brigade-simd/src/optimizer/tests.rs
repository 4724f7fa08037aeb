//! Against loops that round each operation, as Burn's tensors do.

use half::bf16;
use proptest::prelude::*;

use super::*;
use crate::arch::tests::on_each;
use crate::testing::numbers;

const ADAMW: AdamW = AdamW { beta_1: 0.9, beta_2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };
const LION: Lion = Lion { beta_1: 0.9, beta_2: 0.99, weight_decay: 0.1 };
const SGD: Sgd = Sgd { momentum: 0.9, dampening: 0.1, nesterov: false, weight_decay: Some(0.01) };

/// The bits, so that zeros' signs count.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Three steps on each kind of SIMD, on the whole and on pieces, beside `plain` on each element: of the step, the
/// value, the scaled gradient and the states.
fn check<T: Element>(
    length: usize,
    seed: u64,
    run: impl Fn(Step, &mut [f32], &[T], [&mut [f32]; 2]),
    plain: impl Fn(Step, &mut f32, f32, [&mut f32; 2]),
) {
    let start = numbers::<f32>(length, seed, 2.0);
    on_each(|kind| {
        let (mut values, mut first, mut second) = (start.clone(), vec![0.0; length], vec![0.0; length]);
        let (mut pieces, mut first_pieces, mut second_pieces) =
            (values.clone(), first.clone(), second.clone());
        let (mut expected, mut states) = (values.clone(), vec![[0.0; 2]; length]);
        for number in 1..4 {
            let step = Step {
                learning_rate: 0.01 / f64::from(number),
                number,
                scale: [1.0, 0.3][number as usize % 2],
            };
            let gradient = numbers::<T>(length, seed + number as u64, 1.0);
            run(step, &mut values, &gradient, [&mut first, &mut second]);
            let cut = length / 3;
            for part in [0..cut, cut..length] {
                let states = [&mut first_pieces[part.clone()], &mut second_pieces[part.clone()]];
                run(step, &mut pieces[part.clone()], &gradient[part], states);
            }
            for ((value, gradient), [a, b]) in expected.iter_mut().zip(&gradient).zip(&mut states) {
                plain(step, value, gradient.to_f32() * step.scale, [a, b]);
            }
            assert_eq!(bits(&values), bits(&expected), "{kind:?}, step {number}");
            assert_eq!(bits(&values), bits(&pieces), "{kind:?}, step {number}");
            let (a, b): (Vec<f32>, Vec<f32>) = states.iter().map(|[a, b]| (*a, *b)).unzip();
            assert_eq!([bits(&first), bits(&second)], [bits(&a), bits(&b)], "{kind:?}, step {number}");
        }
    });
}

fn check_adamw<T: Element>(length: usize, seed: u64) {
    check::<T>(
        length,
        seed,
        |step, values, gradient, moments| ADAMW.step(step, values, gradient, moments),
        |step, value, g, [m, v]| {
            *m = *m * 0.9 + g * (1.0 - 0.9);
            *v = *v * 0.95 + g * g * (1.0 - 0.95);
            let corrected = *m / (1.0 - 0.9f32.powi(step.number));
            let corrected_square = *v / (1.0 - 0.95f32.powi(step.number));
            let change = corrected / (corrected_square.sqrt() + 1e-8);
            *value = *value * (1.0 - step.learning_rate * f64::from(0.1f32)) as f32
                - change * step.learning_rate as f32;
        },
    );
}

fn check_sgd<T: Element>(length: usize, seed: u64, nesterov: bool) {
    check::<T>(
        length,
        seed,
        |step, values, gradient, [velocity, _]| {
            Sgd { nesterov, ..SGD }.step(step, values, gradient, velocity);
        },
        |step, value, g, [velocity, _]| {
            let g = *value * 0.01 + g;
            *velocity = if step.number == 1 { g } else { g * 0.9 + *velocity * 0.9 };
            let change = if nesterov { *velocity * 0.9 + g } else { *velocity };
            *value -= change * step.learning_rate as f32;
        },
    );
}

fn check_lion<T: Element>(length: usize, seed: u64) {
    check::<T>(
        length,
        seed,
        |step, values, gradient, [momentum, _]| LION.step(step, values, gradient, momentum),
        |step, value, g, [momentum, _]| {
            let direction = *momentum * 0.9 + g * (1.0 - 0.9);
            let kept = if step.number == 1 { None } else { Some(*momentum * 0.99) };
            *momentum = kept.map_or(g * (1.0 - 0.99), |kept| kept + g * (1.0 - 0.99));
            let sign = if direction == 0.0 { 0.0 } else { direction.signum() };
            *value = *value * (1.0 - step.learning_rate * f64::from(0.1f32)) as f32
                - sign * step.learning_rate as f32;
        },
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn steps_have_the_bits_of_single_operations(length in 0usize..200, seed in 0u64..1000) {
        check_adamw::<f32>(length, seed);
        check_adamw::<bf16>(length, seed);
        check_sgd::<f32>(length, seed, false);
        check_sgd::<bf16>(length, seed, true);
        check_lion::<f32>(length, seed);
        check_lion::<bf16>(length, seed);
    }
}

#[test]
fn what_is_not_a_number_stays_where_it_is() {
    let step = Step { learning_rate: 0.1, number: 1, scale: 1.0 };
    let gradient = [1.0, f32::NAN, f32::INFINITY, -1.0];
    let (mut values, mut first, mut second) = ([1.0; 4], [0.0; 4], [0.0; 4]);
    ADAMW.step(step, &mut values, &gradient, [&mut first, &mut second]);
    assert!(values[0].is_finite() && values[1].is_nan() && values[2].is_nan() && values[3].is_finite());
}

#[test]
#[should_panic(expected = "`moment_2` must have 3 elements, but has 2")]
fn lengths_must_fit() {
    let step = Step { learning_rate: 0.1, number: 1, scale: 1.0 };
    ADAMW.step(step, &mut [0.0; 3], &[0f32; 3], [&mut [0.0; 3], &mut [0.0; 2]]);
}
