use std::sync::Arc;

use brigade_random::keyed;
use serde_json::Value;

use super::*;
use crate::process_group::ProcessGroup;
use crate::{OpType, Result, Timeouts, in_memory};

const SHARE: f64 = 0.1;

fn codecs() -> Vec<(&'static str, Box<dyn Codec>)> {
    vec![
        ("bf16", Box::new(Bf16Codec)),
        ("f16", Box::new(F16Codec)),
        ("int8", Box::new(Quantizer::int8(Rounding::Nearest))),
        ("int8 stochastic", Box::new(Quantizer::int8(Rounding::Stochastic))),
        ("int4", Box::new(Quantizer::int4(Rounding::Nearest))),
        ("int4 stochastic", Box::new(Quantizer::int4(Rounding::Stochastic))),
        ("top-k", Box::new(TopK { share: SHARE })),
        ("random-k", Box::new(RandomK { share: SHARE })),
        ("1-bit", Box::new(OneBit)),
    ]
}

impl Codec for Box<dyn Codec> {
    fn bytes(&self, count: usize) -> usize {
        (**self).bytes(count)
    }
    fn encode(&self, values: &[f32], key: u64, code: &mut [u8]) {
        (**self).encode(values, key, code);
    }
    fn decode(&self, code: &[u8], key: u64, values: &mut [f32]) {
        (**self).decode(code, key, values);
    }
    fn is_biased(&self) -> bool {
        (**self).is_biased()
    }
}

/// Numbers of very different sizes, as gradients are.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let number = |i: usize| {
        let drawn = keyed(seed, i as u64);
        ((drawn % 20_001) as f32 - 10_000.0) / [1e3, 1e5, 1e4, 1e6][(drawn >> 32) as usize % 4]
    };
    (0..count).map(number).collect()
}

fn there_and_back(codec: &dyn Codec, values: &[f32], key: u64) -> Vec<f32> {
    let mut code = vec![0xaa; codec.bytes(values.len())];
    codec.encode(values, key, &mut code);
    let mut decoded = vec![f32::NAN; values.len()];
    codec.decode(&code, key, &mut decoded);
    decoded
}

fn squares(values: impl IntoIterator<Item = f32>) -> f64 {
    values.into_iter().map(|value| f64::from(value).powi(2)).sum()
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    squares(a.iter().zip(b).map(|(a, b)| a - b)).sqrt()
}

#[test]
fn codes_are_as_short_as_they_say() {
    let bytes =
        |count: usize| -> Vec<usize> { codecs().iter().map(|(_, codec)| codec.bytes(count)).collect() };
    assert_eq!(
        bytes(1 << 20),
        [2 << 20, 2 << 20, 1_064_960, 1_064_960, 540_672, 540_672, 838_864, 419_432, 135_168]
    );
    assert_eq!(bytes(1025), [2050, 2050, 1045, 1045, 533, 533, 824, 412, 137]);
    assert_eq!(bytes(0), [0; 9]);
}

#[test]
fn every_length_goes_there_and_back_closer_than_nothing() {
    for (name, codec) in codecs() {
        for count in [0, 1, 2, 7, 8, 9, 255, 256, 257, 511, 1023, 1024, 1025, 5000] {
            let values = numbers(count as u64, count);
            let decoded = there_and_back(&*codec, &values, 5);
            assert_eq!(decoded, there_and_back(&*codec, &values, 5), "{name}");
            // The contraction that error feedback needs, with equality only for nothing; stochastic int4 adds noise instead.
            if name != "int4 stochastic" && count > 0 {
                assert!(distance(&decoded, &values).powi(2) < squares(values), "{name} of {count}");
            }
        }
        assert!(there_and_back(&*codec, &[0.0; 300], 1).iter().all(|value| *value == 0.0), "{name}");
        assert!(
            there_and_back(&*codec, &[f32::MIN_POSITIVE / 8.0; 300], 1).iter().all(|value| value.is_finite())
        );
    }
}

#[test]
fn codes_are_as_close_as_their_steps() {
    let values = numbers(3, 4096);
    for (codec, step) in
        [(Quantizer::int8(Rounding::Nearest), 127.0), (Quantizer::int4(Rounding::Nearest), 7.0)]
    {
        for (values, decoded) in values.chunks(256).zip(there_and_back(&codec, &values, 0).chunks(256)) {
            let scale = values.iter().fold(0.0f32, |a, b| a.max(b.abs())) / step;
            let is_close = |(a, b): (&f32, &f32)| (a - b).abs() <= scale * 0.5001;
            assert!(values.iter().zip(decoded).all(is_close));
        }
    }
    let kept = there_and_back(&TopK { share: SHARE }, &values, 0);
    let least = kept.iter().filter(|value| **value != 0.0).fold(f32::MAX, |a, b| a.min(b.abs()));
    assert_eq!(kept.iter().filter(|value| **value != 0.0).count(), 410);
    assert!(values.iter().zip(&kept).all(|(value, kept)| kept == value || value.abs() <= least));
    let bits = there_and_back(&OneBit, &[3.0, -1.0, 0.5, -0.5], 0);
    assert_eq!(bits, [1.25, -1.25, 1.25, -1.25]);
}

/// Over many keys, stochastic rounding gives the numbers, and each place of a stretch is drawn as often.
#[test]
fn draws_are_unbiased() {
    const DRAWS: u64 = 4000;
    let values = numbers(8, 200);
    let mean = |codec: &dyn Codec| -> Vec<f32> {
        let mut sums = vec![0.0f64; values.len()];
        for key in 0..DRAWS {
            let decoded = there_and_back(codec, &values, keyed(17, key));
            sums.iter_mut().zip(decoded).for_each(|(sum, value)| *sum += f64::from(value));
        }
        sums.iter().map(|sum| (sum / DRAWS as f64) as f32).collect()
    };
    let largest = values.iter().fold(0.0f32, |a, b| a.max(b.abs()));
    for (codec, step) in
        [(Quantizer::int8(Rounding::Stochastic), 127.0), (Quantizer::int4(Rounding::Stochastic), 7.0)]
    {
        // Five standard deviations of a mean of steps.
        let allowed = 5.0 * 0.5 * largest / step / (DRAWS as f32).sqrt();
        for (mean, value) in mean(&codec).iter().zip(&values) {
            assert!((mean - value).abs() <= allowed, "{mean} {value} {allowed}");
        }
    }
    for (mean, value) in mean(&RandomK { share: SHARE }).iter().zip(&values) {
        assert!(
            (mean - value / 10.0).abs() <= 5.0 * value.abs() * 0.3 / (DRAWS as f32).sqrt(),
            "{mean} {value}"
        );
    }
}

#[test]
fn numbers_that_are_not_finite_are_seen() {
    for (name, codec) in codecs() {
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = numbers(1, 600);
            // A stretch of random-k that is wrong throughout.
            values[100..120].fill(wrong);
            let decoded = there_and_back(&*codec, &values, 9);
            assert!(decoded.iter().any(|value| !value.is_finite()), "{name} of {wrong}");
        }
    }
}

/// Runs `work` on each rank of a world in memory.
fn on_ranks<T: Send>(ranks: usize, work: impl Fn(Arc<dyn ProcessGroup>) -> Result<T> + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let ranks: Vec<_> = in_memory(ranks, Timeouts::default())
            .into_iter()
            .map(|group| scope.spawn(move || work(Arc::new(group)).unwrap()))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn exact_sum(ranks: usize, seed: u64, count: usize) -> Vec<f32> {
    let all: Vec<Vec<f32>> = (0..ranks).map(|rank| numbers(seed + rank as u64, count)).collect();
    (0..count).map(|i| all.iter().map(|of| f64::from(of[i])).sum::<f64>() as f32).collect()
}

#[test]
fn sums_are_the_same_on_all_ranks_and_in_every_run_and_send_what_they_say() {
    for ranks in [1, 2, 3, 4] {
        for count in [0, 1, 1000, 4099] {
            for number in 0..codecs().len() {
                let run = || {
                    on_ranks(ranks, |group| {
                        let (name, codec) = codecs().swap_remove(number);
                        let mut sum = CodedSum::new(codec, ranks, count, true);
                        let mut last = Vec::new();
                        for step in 0..3 {
                            last = numbers(100 * step + group.rank() as u64, count);
                            sum.all_reduce(&*group, &mut last, step)?;
                        }
                        let stats = group.stats();
                        let sent = stats.of(OpType::AllToAll).bytes + stats.of(OpType::AllGather).bytes;
                        assert_eq!(sent, 3 * sum.payload(), "{name}");
                        Ok(last)
                    })
                };
                let first = run();
                assert!(first.iter().all(|sum| *sum == first[0]));
                assert!(run() == first);
            }
        }
    }
}

/// With error feedback, what all sums together miss is what the residuals hold; without, it grows.
#[test]
fn error_feedback_loses_nothing() {
    const STEPS: u64 = 120;
    let (ranks, count) = (4, 2000);
    for number in 0..codecs().len() {
        let missed = |error_feedback: bool| -> (f64, f64) {
            let of_ranks = on_ranks(ranks, |group| {
                let (_, codec) = codecs().swap_remove(number);
                let mut sum = CodedSum::new(codec, ranks, count, error_feedback);
                let mut total = vec![0.0f32; count];
                for step in 0..STEPS {
                    let mut buffer = numbers(7 + group.rank() as u64, count);
                    sum.all_reduce(&*group, &mut buffer, step)?;
                    total.iter_mut().zip(buffer).for_each(|(total, value)| *total += value);
                }
                let [own, shared] = sum.residuals().map(|residual| residual.to_vec());
                Ok((total, own, shared))
            });
            let expected: Vec<f32> =
                exact_sum(ranks, 7, count).iter().map(|value| value * STEPS as f32).collect();
            let mut held = of_ranks[0].0.clone();
            for (rank, (_, own, shared)) in of_ranks.iter().enumerate().filter(|_| error_feedback) {
                held.iter_mut().zip(own).for_each(|(held, own)| *held += own);
                held[rank * count / ranks..]
                    .iter_mut()
                    .zip(shared)
                    .for_each(|(held, shared)| *held += shared);
            }
            (distance(&of_ranks[0].0, &expected), distance(&held, &expected) / squares(expected).sqrt())
        };
        let (name, codec) = codecs().swap_remove(number);
        let (with, rest) = missed(true);
        assert!(rest < 1e-4, "{name}: {rest}");
        if codec.is_biased() {
            let (without, _) = missed(false);
            assert!(with < 0.5 * without, "{name}: {with} with, {without} without");
        }
    }
}

#[test]
fn a_slice_of_a_coded_sum_is_the_pairwise_sum_of_what_was_sent() {
    let (ranks, count) = (4, 1000);
    let slices = on_ranks(ranks, |group| {
        let mut sum = CodedSum::new(Bf16Codec, ranks, count, false);
        sum.reduce_scatter(&*group, &numbers(group.rank() as u64, count), 1)
    });
    let sent: Vec<Vec<f32>> =
        (0..ranks).map(|rank| there_and_back(&Bf16Codec, &numbers(rank as u64, count), 0)).collect();
    let expected: Vec<f32> =
        (0..count).map(|i| (sent[0][i] + sent[1][i]) + (sent[2][i] + sent[3][i])).collect();
    assert_eq!(slices.concat(), expected);
}

/// The sums of PowerSGD on two ranks.
fn power_sgd(steps: usize) -> Vec<Vec<f32>> {
    let matrices = [Matrix { start: 0, rows: 12, columns: 10 }, Matrix { start: 125, rows: 8, columns: 16 }];
    let sums = on_ranks(2, |group| {
        let mut power = PowerSgd::new(2, 260, &matrices, 1);
        assert_eq!(power.reduced(), 2 * (12 + 10) + 2 * (8 + 16) + 5 + 7);
        let mut sums = Vec::new();
        for step in 0..steps {
            let mut buffer = numbers(50 + 10 * step as u64 + group.rank() as u64, 260);
            power.all_reduce(&*group, &mut buffer)?;
            sums.push(buffer);
        }
        assert_eq!(group.stats().of(OpType::AllReduce).calls, 2 * steps as u64);
        Ok(sums)
    });
    assert!(sums[0] == sums[1]);
    sums[0].clone()
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
    let matrices = [Matrix { start: 0, rows: 6, columns: 8 }, Matrix { start: 48, rows: 5, columns: 9 }];
    on_ranks(2, |group| {
        let mut power = PowerSgd::new(2, 97, &matrices, 0);
        for (factor, given) in power.factors().zip(reference["factor"].as_array().unwrap()) {
            factor.copy_from_slice(&list(given));
        }
        for step in reference["steps"].as_array().unwrap() {
            let mut buffer = flat(&step["given"][group.rank()]);
            power.all_reduce(&*group, &mut buffer)?;
            for (sum, mean) in buffer.iter().zip(flat(&step["mean"])) {
                assert!((sum / 2.0 - mean).abs() <= 1e-5, "{} and {mean}", sum / 2.0);
            }
        }
        Ok(())
    });
}

#[test]
fn power_sgd_sends_few_numbers_and_loses_nothing_over_time() {
    let sums = power_sgd(40);
    assert!(sums == power_sgd(40));
    let exact: Vec<Vec<f32>> = (0..40).map(|step| exact_sum(2, 50 + 10 * step, 260)).collect();
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
    on_ranks(1, |group| {
        let mut power = PowerSgd::new(2, 600, &matrix, 3);
        let mut nothing = vec![0.0; 600];
        power.all_reduce(&*group, &mut nothing)?;
        assert!(nothing.iter().all(|value| *value == 0.0));
        let mut found = product.clone();
        power.all_reduce(&*group, &mut found)?;
        assert!(distance(&found, &product) < 1e-4 * squares(product.clone()).sqrt());
        assert!(squares(power.errors().to_vec()).sqrt() < 1e-4 * squares(product.clone()).sqrt());
        Ok(())
    });
}
