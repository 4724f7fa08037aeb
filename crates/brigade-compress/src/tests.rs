use std::sync::Arc;

use brigade_random::keyed;
use serde_json::Value;

use super::*;

const SHARE: f64 = 0.1;

fn codecs() -> Vec<(&'static str, Arc<dyn Codec>)> {
    let of = |method: Method, rounding: Rounding| {
        Compression { method, rounding, ratio: SHARE, ..Compression::default() }.codec().unwrap()
    };
    vec![
        ("bf16", of(Method::Bf16, Rounding::Nearest)),
        ("f16", of(Method::Fp16, Rounding::Nearest)),
        ("int8", of(Method::Int8, Rounding::Nearest)),
        ("int8 stochastic", of(Method::Int8, Rounding::Stochastic)),
        ("int4", of(Method::Int4, Rounding::Nearest)),
        ("int4 stochastic", of(Method::Int4, Rounding::Stochastic)),
        ("top-k", of(Method::TopK, Rounding::Nearest)),
        ("random-k", of(Method::RandomK, Rounding::Nearest)),
        ("1-bit", of(Method::OneBit, Rounding::Nearest)),
    ]
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
        [(Quantizer::int8(Rounding::Nearest, 256), 127.0), (Quantizer::int4(Rounding::Nearest, 256), 7.0)]
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
    let bits = there_and_back(&OneBit { block: 1024 }, &[3.0, -1.0, 0.5, -0.5], 0);
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
    for (codec, step) in [
        (Quantizer::int8(Rounding::Stochastic, 256), 127.0),
        (Quantizer::int4(Rounding::Stochastic, 256), 7.0),
    ] {
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

#[test]
fn blocks_have_the_size_that_is_set() {
    for (block, bytes) in [(8, 12 * 64), (64, 68 * 8), (256, 2 * 260), (0, 2 * 260), (65_536, 516)] {
        let compression = Compression { method: Method::Int8, block_size: block, ..Compression::default() };
        compression.check().unwrap();
        let codec = compression.codec().unwrap();
        assert_eq!(codec.bytes(512), bytes, "{block}");
        let values = numbers(4, 512);
        let decoded = there_and_back(&*codec, &values, 0);
        let block = if block == 0 { 256 } else { block };
        for (values, decoded) in values.chunks(block).zip(decoded.chunks(block)) {
            let scale = values.iter().fold(0.0f32, |a, b| a.max(b.abs())) / 127.0;
            assert!(values.iter().zip(decoded).all(|(a, b)| (a - b).abs() <= scale * 0.5001));
        }
    }
    for (wrong, said) in [
        (Compression { block_size: 12, ..Compression::default() }, "the nearest is 16"),
        (Compression { block_size: 1 << 20, ..Compression::default() }, "the nearest is 65536"),
        (Compression { block_size: 1, ..Compression::default() }, "the nearest is 8"),
        (Compression { ratio: 0.0, ..Compression::default() }, "above 0 and at most 1"),
        (Compression { ratio: f64::NAN, ..Compression::default() }, "above 0 and at most 1"),
        (Compression { rank: 0, ..Compression::default() }, "from 1 to 1024"),
    ] {
        let told = wrong.check().unwrap_err().to_string();
        assert!(told.contains(said), "{told}");
    }
}

#[test]
fn methods_have_the_names_of_settings() {
    for method in Method::ALL {
        assert_eq!(method.name().parse(), Ok(method));
        assert_eq!(serde_json::to_value(method).unwrap(), method.name());
    }
    assert!("int7".parse::<Method>().unwrap_err().contains("bf16, fp16, int8"));
}

/// The ranks' parts in a sum, and what it makes of their buffers: the same on all of them.
struct Ranks(Vec<CodedSum>);

impl Ranks {
    fn new(codec: &Arc<dyn Codec>, ranks: usize, count: usize) -> Self {
        let slice = count.div_ceil(ranks);
        Self(
            (0..ranks)
                .map(|rank| CodedSum::new(codec.clone(), (rank, ranks), (slice, count), true))
                .collect(),
        )
    }

    /// The `rank`-th part of everybody's codes.
    fn exchanged(codes: &[Vec<u8>], rank: usize) -> Vec<u8> {
        let each = codes[0].len() / codes.len();
        codes.iter().flat_map(|codes| codes[rank * each..(rank + 1) * each].to_vec()).collect()
    }

    fn slices(&mut self, buffers: &[Vec<f32>], key: u64) -> Vec<Vec<f32>> {
        let codes: Vec<_> =
            self.0.iter_mut().zip(buffers).map(|(own, buffer)| own.encode(buffer, key)).collect();
        assert!(codes.iter().zip(&self.0).all(|(codes, own)| codes.len() == own.code_bytes()));
        self.0.iter().enumerate().map(|(rank, own)| own.sum(&Self::exchanged(&codes, rank), key)).collect()
    }

    fn all_reduce(&mut self, buffers: &[Vec<f32>], key: u64) -> Vec<f32> {
        let slices = self.slices(buffers, key);
        let codes = self.0.iter_mut().zip(slices).flat_map(|(own, slice)| own.encode_sum(slice, key));
        let codes: Vec<u8> = codes.collect();
        let mut sums: Vec<_> = self.0.iter().map(|own| own.decode_sums(&codes, key)).collect();
        assert!(sums.iter().all(|sum| *sum == sums[0]));
        self.0.iter_mut().for_each(|own| own.commit(true));
        sums.swap_remove(0)
    }
}

fn buffers(ranks: usize, seed: u64, count: usize) -> Vec<Vec<f32>> {
    (0..ranks).map(|rank| numbers(seed + rank as u64, count)).collect()
}

fn exact_sum(buffers: &[Vec<f32>]) -> Vec<f32> {
    let sum = |i: usize| buffers.iter().map(|of| f64::from(of[i])).sum::<f64>() as f32;
    (0..buffers[0].len()).map(sum).collect()
}

#[test]
fn sums_are_the_same_in_every_run_and_cost_what_is_said() {
    for ranks in [1, 2, 3, 4] {
        for count in [0, 1, 1000, 4099] {
            for (name, codec) in codecs() {
                let run = || {
                    let mut sum = Ranks::new(&codec, ranks, count);
                    let sums = (0..3).map(|step| sum.all_reduce(&buffers(ranks, 100 * step, count), step));
                    (sums.collect::<Vec<_>>(), sum)
                };
                let (first, sum) = run();
                assert!(run().0 == first, "{name}");
                for own in &sum.0 {
                    assert_eq!(own.code_bytes(), ranks * codec.bytes(count.div_ceil(ranks)), "{name}");
                }
            }
        }
    }
}

/// With error feedback, what all sums together miss is what the ranks have left out; without, it grows.
#[test]
fn error_feedback_loses_nothing() {
    const STEPS: u64 = 120;
    let (ranks, count) = (4, 2000);
    let given = buffers(ranks, 7, count);
    let expected: Vec<f32> = exact_sum(&given).iter().map(|value| value * STEPS as f32).collect();
    for (name, codec) in codecs().into_iter().filter(|(_, codec)| codec.needs_error_feedback()) {
        let missed = |error_feedback: bool| -> (f64, f64) {
            let mut sum = Ranks::new(&codec, ranks, count);
            let mut total = vec![0.0f32; count];
            for step in 0..STEPS {
                if !error_feedback {
                    sum.0.iter_mut().for_each(|own| (own.own, own.sum) = Default::default());
                }
                let found = sum.all_reduce(&given, step);
                total.iter_mut().zip(found).for_each(|(total, value)| *total += value);
            }
            let mut held = total.clone();
            for (rank, own) in sum.0.iter().enumerate().filter(|_| error_feedback) {
                let add = |held: &mut [f32], errors: &ErrorFeedback| {
                    let kept = errors.kept().unwrap();
                    held.iter_mut().zip(&**kept).for_each(|(held, error)| *held += error);
                };
                add(&mut held, &own.own);
                add(&mut held[rank * count / ranks..], &own.sum);
            }
            (distance(&total, &expected), distance(&held, &expected) / squares(expected.clone()).sqrt())
        };
        let ((with, rest), (without, _)) = (missed(true), missed(false));
        assert!(rest < 1e-4, "{name}: {rest}");
        assert!(with < 0.5 * without, "{name}: {with} with, {without} without");
    }
}

/// What another method left out is added to one update, and not lost in a step that is skipped.
#[test]
fn errors_of_another_method_are_added_once() {
    let codec: Arc<dyn Codec> = Arc::new(F16Codec);
    let mut sum = Ranks::new(&codec, 2, 8);
    assert!(sum.0[1].own.is_none());
    sum.0[1].own = ErrorFeedback::from(vec![1.0; 8]);
    let zeros = vec![vec![0.0; 8]; 2];
    assert_eq!(sum.slices(&zeros, 1).concat(), vec![1.0; 8]);
    sum.0.iter_mut().for_each(|own| own.commit(false));
    assert_eq!(sum.all_reduce(&zeros, 2), vec![1.0; 8]);
    assert_eq!(sum.all_reduce(&zeros, 3), vec![0.0; 8]);
    assert!(sum.0[1].own.is_none());
}

#[test]
fn a_step_that_is_skipped_leaves_nothing_out() {
    for (name, codec) in codecs() {
        let [mut skipping, mut plain] = [(); 2].map(|()| Ranks::new(&codec, 3, 700));
        let first = [&mut skipping, &mut plain].map(|sum| sum.all_reduce(&buffers(3, 1, 700), 1));
        assert_eq!(first[0], first[1], "{name}");
        let mut bad = buffers(3, 2, 700);
        bad[1].fill(f32::NAN);
        let found = skipping.slices(&bad, 2).concat();
        assert!(found.iter().any(|value| value.is_nan()), "{name}");
        skipping.0.iter_mut().for_each(|own| own.commit(false));
        let next = [&mut skipping, &mut plain].map(|sum| sum.all_reduce(&buffers(3, 3, 700), 3));
        assert_eq!(next[0], next[1], "{name}");
    }
}

#[test]
fn a_slice_of_a_coded_sum_is_the_pairwise_sum_of_what_was_sent() {
    let given = buffers(4, 0, 1000);
    let slices = Ranks::new(&codecs()[0].1, 4, 1000).slices(&given, 1);
    let sent: Vec<Vec<f32>> = given.iter().map(|values| there_and_back(&Bf16Codec, values, 0)).collect();
    let sum = |i: usize| (sent[0][i] + sent[1][i]) + (sent[2][i] + sent[3][i]);
    assert_eq!(slices.concat(), (0..1000).map(sum).collect::<Vec<_>>());
}

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
    let reference: Value = serde_json::from_str(include_str!("../tests/reference/power_sgd.json")).unwrap();
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
