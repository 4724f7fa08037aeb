//! Sums over ranks that travel as codes.

use super::*;

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

/// With error feedback, all sums together lack only what the ranks still hold back; without it, the error grows.
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
                if !own.sum.is_none() {
                    add(&mut held[rank * count / ranks..], &own.sum);
                }
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

/// The places that random-k draws are those of all ranks and of the sums, and what it sums there is the exact sum.
#[test]
fn random_k_sums_exactly_what_it_draws() {
    for (ranks, count) in [(2, 1000), (3, 1000), (4, 4099)] {
        let codec: Arc<dyn Codec> = Arc::new(RandomK { share: SHARE });
        let mut sum = Ranks::new(&codec, ranks, count);
        // Whole numbers, whose sums are exact in any order.
        let whole = |values: Vec<f32>| values.iter().map(|value| (value * 1e5).round()).collect();
        let given: Vec<Vec<f32>> = buffers(ranks, 3, count).into_iter().map(whole).collect();
        let (found, exact) = (sum.all_reduce(&given, 1), exact_sum(&given));
        let drawn = found.iter().filter(|value| **value != 0.0).count();
        assert!(found.iter().zip(&exact).all(|(found, exact)| *found == 0.0 || found == exact));
        // One of each stretch of every slice, but for numbers that happen to be zero.
        let places = sum.0.iter().enumerate().map(|(rank, own)| own.place(rank).len());
        let all: usize = places.map(|count| codec.bytes(count) / 4).sum();
        assert!(drawn <= all && drawn * 100 > all * 95, "{drawn} of {all}");
        assert!(sum.0.iter().all(|own| own.sum.is_none()));
    }
}

/// A gradient that stays the same arrives whole, late by as many steps as a stretch has places.
#[test]
fn random_k_is_late_by_one_stretch() {
    const STEPS: u64 = 100;
    let (ranks, count) = (4, 2000);
    let codec: Arc<dyn Codec> = Arc::new(RandomK { share: SHARE });
    let mut sum = Ranks::new(&codec, ranks, count);
    let given = vec![vec![1.0; count]; ranks];
    let mut arrived = 0.0;
    let mut after = Vec::new();
    for step in 0..STEPS {
        arrived += sum.all_reduce(&given, step).iter().sum::<f32>() / (ranks * count) as f32;
        after.push(arrived);
    }
    let late: Vec<f32> = (1..).zip(&after).map(|(steps, arrived)| steps as f32 - arrived).collect();
    // Of independent draws with probability p, the last is (1 - p) / p steps ago, in the mean.
    assert!((late[STEPS as usize - 1] - 9.0).abs() < 0.5, "{late:?}");
    assert!((after[0] - SHARE as f32).abs() < 1e-6, "{after:?}");
}

/// What is rounded at random is drawn anew by each rank: the mean over many is nearer than one of them.
#[test]
fn each_rank_rounds_by_draws_of_its_own() {
    let (ranks, count) = (16, 4096);
    let given = vec![numbers(5, count); ranks];
    let codec: Arc<dyn Codec> = Arc::new(Quantizer::int8(Rounding::Stochastic, 256));
    let mean: Vec<f32> =
        Ranks::new(&codec, ranks, count).slices(&given, 1).concat().iter().map(|sum| sum / 16.0).collect();
    let one = distance(&there_and_back(&*codec, &given[0], 1), &given[0]);
    let all = distance(&mean, &given[0]);
    assert!((all / one - 0.25).abs() < 0.03, "{all} of {ranks} ranks, {one} of one");
}

#[test]
fn a_sum_costs_what_its_ranks_hold() {
    for method in Method::ALL {
        for rounding in [Rounding::Nearest, Rounding::Stochastic] {
            let compression = Compression { method, rounding, ratio: SHARE, ..Compression::default() };
            let Some(codec) = compression.codec() else { continue };
            for sends_sums in [false, true] {
                let own = CodedSum::new(codec.clone(), (1, 3), (700, 2100), sends_sums);
                let cost = compression.cost(3, (700, 2100), sends_sums, &[]).unwrap();
                assert_eq!(cost.kept, own.own.bytes() + own.sum.bytes(), "{method}");
                assert_eq!(cost.in_flight, own.code_bytes() as u64, "{method}");
            }
        }
    }
}
