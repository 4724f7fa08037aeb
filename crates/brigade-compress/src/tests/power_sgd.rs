//! PowerSGD, beside PyTorch's and by itself.

use serde_json::Value;

use super::*;

/// One sum of PowerSGD over the ranks.
fn power_all_reduce(ranks: &mut [PowerSgd], buffers: Vec<Vec<f32>>) -> Vec<f32> {
    let count = ranks.len();
    let first: Vec<_> = ranks.iter_mut().zip(buffers).map(|(power, buffer)| power.left(buffer)).collect();
    let first = plain_sum(&first);
    let second: Vec<_> = ranks.iter_mut().map(|power| power.right(&first)).collect();
    let second = plain_sum(&second);
    let mut sums: Vec<_> = ranks.iter_mut().map(|power| power.sum(&second, count)).collect();
    assert!(sums.iter().all(|sum| *sum == sums[0]));
    ranks.iter_mut().for_each(|power| power.commit(true));
    sums.swap_remove(0)
}

/// The sum in fp32, in rank order.
fn plain_sum(buffers: &[Vec<f32>]) -> Vec<f32> {
    (0..buffers[0].len()).map(|i| buffers.iter().map(|of| of[i]).sum()).collect()
}

/// The sums of PowerSGD on two ranks.
fn power_sgd(steps: usize) -> Vec<Vec<f32>> {
    let matrices = [Matrix { start: 0, rows: 12, columns: 10 }, Matrix { start: 125, rows: 8, columns: 16 }];
    let mut ranks = vec![PowerSgd::new(2, 260, &matrices, 1); 2];
    let compression = Compression { method: Method::PowerSgd, rank: 2, ..Compression::default() };
    let cost = compression.cost(2, (130, 260), true, &matrices).unwrap();
    assert_eq!(cost.sends, Sends::Factors([2 * (12 + 8) + 5 + 7, 2 * (10 + 16)]));
    assert_eq!((cost.kept, cost.in_flight), (ranks[0].kept_bytes(), ranks[0].in_flight_bytes()));
    (0..steps).map(|step| power_all_reduce(&mut ranks, buffers(2, 50 + 10 * step as u64, 260))).collect()
}

/// The same factors to begin with, gradients and warm start as `tests/reference/power_sgd.py` gives PyTorch.
#[test]
fn power_sgd_is_that_of_pytorch() {
    let reference: Value =
        serde_json::from_str(include_str!("../../tests/reference/power_sgd.json")).unwrap();
    let list = |value: &Value| -> Vec<f32> {
        value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
    };
    let flat = |value: &Value| -> Vec<f32> { value.as_array().unwrap().iter().flat_map(list).collect() };
    let matrices = [Matrix::of(0, &[6, 8]).unwrap(), Matrix::of(48, &[5, 9]).unwrap()];
    assert_eq!(Matrix::of(93, &[4]), None);
    let factors: Vec<_> = reference["factor"].as_array().unwrap().iter().map(list).collect();
    let mut ranks = vec![PowerSgd::new(2, 97, &matrices, 0); 2];
    for power in &mut ranks {
        power.set_factors(|matrix| &factors[usize::from(matrix.start > 0)]);
    }
    for step in reference["steps"].as_array().unwrap() {
        let sum = power_all_reduce(&mut ranks, step["given"].as_array().unwrap().iter().map(flat).collect());
        for (sum, mean) in sum.iter().zip(flat(&step["mean"])) {
            assert!((sum / 2.0 - mean).abs() <= 1e-5, "{} and {mean}", sum / 2.0);
        }
    }
}

#[test]
fn power_sgd_sends_few_numbers_and_loses_nothing_over_time() {
    let sums = power_sgd(40);
    assert!(sums == power_sgd(40));
    let exact: Vec<Vec<f32>> = (0..40).map(|step| exact_sum(&buffers(2, 50 + 10 * step, 260))).collect();
    for (sum, exact) in sums.iter().zip(&exact) {
        // Outside of matrices it is an ordinary sum.
        let outside = (120..125).chain(253..260);
        assert!(outside.into_iter().all(|i| (sum[i] - exact[i]).abs() <= 1e-6 * exact[i].abs()));
    }
    let total =
        |sums: &[Vec<f32>]| -> Vec<f32> { (0..260).map(|i| sums.iter().map(|sum| sum[i]).sum()).collect() };
    let (ours, exact) = (total(&sums), total(&exact));
    assert!(distance(&ours, &exact) < 0.6 * squares(exact).sqrt());
}

#[test]
fn power_sgd_finds_matrices_of_its_rank_and_wakes_up_after_zeros() {
    let matrix = [Matrix { start: 0, rows: 30, columns: 20 }];
    let (left, right) = (numbers(1, 60), numbers(2, 40));
    let product: Vec<f32> =
        (0..600).map(|i| left[i / 20] * right[i % 20] + left[30 + i / 20] * right[20 + i % 20]).collect();
    let mut power = vec![PowerSgd::new(2, 600, &matrix, 3)];
    assert!(power_all_reduce(&mut power, vec![vec![0.0; 600]]).iter().all(|value| *value == 0.0));
    let found = power_all_reduce(&mut power, vec![product.clone()]);
    assert!(distance(&found, &product) < 1e-4 * squares(product.clone()).sqrt());
    let errors = power[0].own.kept().unwrap().to_vec();
    assert!(squares(errors).sqrt() < 1e-4 * squares(product).sqrt());
}

#[test]
fn power_sgd_that_factors_nothing_keeps_nothing() {
    let matrices = [Matrix::of(0, &[6, 8]).unwrap(), Matrix::of(48, &[5, 9]).unwrap()];
    assert!(PowerSgd::factors_any(3, &matrices) && !PowerSgd::factors_any(4, &matrices));
    assert!(!PowerSgd::factors_any(1, &[]));
    let mut ranks = vec![PowerSgd::new(4, 97, &matrices, 1); 2];
    let compression = Compression { method: Method::PowerSgd, rank: 4, ..Compression::default() };
    let cost = compression.cost(2, (49, 97), true, &matrices).unwrap();
    assert_eq!(cost.sends, Sends::Factors([97, 0]));
    assert_eq!((cost.kept, cost.in_flight), (ranks[0].kept_bytes(), ranks[0].in_flight_bytes()));
    assert!(cost.kept == 0 && ranks[0].own.is_none());
    let given = buffers(2, 1, 97);
    assert_eq!(power_all_reduce(&mut ranks, given.clone()), plain_sum(&given));
    // What an earlier method left out is added once, and kept as long as a step is skipped.
    ranks.iter_mut().for_each(|power| power.own = ErrorFeedback::from(vec![1.0; 97]));
    ranks.iter_mut().for_each(|power| {
        power.left(given[0].clone());
        power.commit(false);
    });
    let more: Vec<Vec<f32>> =
        given.iter().map(|values| values.iter().map(|value| value + 1.0).collect()).collect();
    assert_eq!(power_all_reduce(&mut ranks, given.clone()), plain_sum(&more));
    assert!(ranks[0].own.is_none());
    assert_eq!(power_all_reduce(&mut ranks, given.clone()), plain_sum(&given));
}

#[test]
fn a_skipped_step_leaves_the_factors() {
    let matrices = [Matrix { start: 0, rows: 12, columns: 10 }];
    let [mut skipping, mut plain] = [(); 2].map(|()| vec![PowerSgd::new(2, 120, &matrices, 1); 2]);
    for ranks in [&mut skipping, &mut plain] {
        power_all_reduce(ranks, buffers(2, 1, 120));
    }
    let first: Vec<_> = skipping.iter_mut().map(|power| power.left(vec![f32::NAN; 120])).collect();
    assert!(first[0].iter().any(|value| value.is_nan()));
    assert!(skipping[0].is_busy());
    skipping.iter_mut().for_each(|power| power.commit(false));
    let next = [skipping, plain].map(|mut ranks| power_all_reduce(&mut ranks, buffers(2, 3, 120)));
    assert_eq!(next[0], next[1]);
}
