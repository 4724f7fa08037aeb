//! Gradients that travel as codes: the same bits on all ranks, in every run, for every stage of ZeRO that sums the same, with any number
//! of pipeline stages, and as a plain implementation in one process makes them.

use std::ops::Range;
use std::sync::Arc;

use brigade::core::compress::{Codec, Compression, Method, Rounding};
use brigade::core::{
    Bytes, CHUNK, Clock, Compressed, DataParallel, Error, NonFinite, PairwiseSum, ReduceEvery, ReducedUnit,
    Reduction, Result, Strategy, Zero, keyed_seed,
};
use brigade_random::keyed;
use burn::tensor::Tensor;

use crate::footprint::is_as_planned;
use crate::mesh::{on_mesh, same_bits};
use crate::resume::{Saved, every_row_goes_on_from_every_row, snapshot, train};
use crate::row::{Outcome, Row};

/// Of every method, with numbers that fit a small model.
fn methods() -> Vec<Compression> {
    let of = |method| Compression { method, ratio: 0.1, rank: 2, block_size: 64, ..Compression::default() };
    let methods = Method::ALL.into_iter().filter(|method| *method != Method::None).map(of);
    let drawn = [Method::Int8, Method::Int4]
        .map(|method| Compression { rounding: Rounding::Stochastic, ..of(method) });
    methods.chain(drawn).collect()
}

pub fn compressed(compression: Compression, row: Row) -> Row {
    let strategy = Arc::new(Compressed { every: row.strategy.period(), compression });
    Row { strategy, compression, ..row }
}

fn zero(stage: u8) -> Zero {
    Zero { stage, ..Zero::default() }
}

/// ZeRO that sums gradients once a step.
fn once(stage: u8) -> Zero {
    Zero { reduce_every: ReduceEvery::Step, ..zero(stage) }
}

fn run(row: &Row) -> Vec<Outcome> {
    let outcomes = on_mesh(&row.mesh(), |groups| row.run(groups));
    for outcome in &outcomes {
        same_bits(&outcome.weights, &outcomes[0].weights, &format!("ranks of {row:?}"));
    }
    outcomes
}

fn equal(a: &Outcome, b: &Outcome, what: &str) {
    assert_eq!(a.reports.len(), b.reports.len());
    for (a, b) in a.reports.iter().zip(&b.reports) {
        assert_eq!(a.loss.to_bits(), b.loss.to_bits(), "loss of {what}");
        assert_eq!(a.grad_norm.to_bits(), b.grad_norm.to_bits(), "norm of {what}");
    }
    same_bits(&a.gradients, &b.gradients, &format!("gradients of {what}"));
    same_bits(&a.weights, &b.weights, &format!("weights of {what}"));
}

#[test]
fn every_run_of_a_mesh_has_the_same_bits_and_pipelines_change_none() {
    let base =
        Row { micro_batches: 2, tied: true, masked: true, clipping: Some(0.3), steps: 3, ..Row::default() };
    let exact = run(&Row { dp: 2, ..base.clone() });
    for compression in methods() {
        for (dp, zero) in [(2, zero(0)), (4, zero(0)), (2, once(3)), (4, once(1))] {
            let row = compressed(compression, Row { dp, zero, ..base.clone() });
            let outcomes = run(&row);
            equal(&outcomes[0], &run(&row)[0], &format!("{row:?} twice"));
            let pipelined = Row { pp: 2, bucket_bytes: 1 << 20, ..row.clone() };
            equal(&outcomes[0], &run(&pipelined)[0], &format!("{pipelined:?}"));
            let (first, last) = (&exact[0].reports[0], outcomes[0].reports.last().unwrap());
            assert!(last.loss < first.loss * 1.2, "it trains: {} after {} of {row:?}", last.loss, first.loss);
            if dp == 2 {
                let differs =
                    |(a, b): (&brigade::core::NamedTensor, &brigade::core::NamedTensor)| a.data != b.data;
                assert!(outcomes[0].weights.iter().zip(&exact[0].weights).any(differs), "{row:?}");
            }
        }
    }
}

/// ZeRO codes what each rank sends, whatever else it shards; factors are summed whole, so that also plain data parallelism is the same.
#[test]
fn stages_of_zero_that_sum_the_same_have_the_same_bits() {
    for compression in methods() {
        for dp in [2, 4] {
            let base = Row { dp, micro_batches: 2, steps: 3, ..Row::default() };
            let reference = run(&compressed(compression, Row { zero: zero(1), ..base.clone() }));
            let factors = compression.method == Method::PowerSgd;
            for zero in [once(2), once(3)].into_iter().chain(factors.then(|| zero(0))) {
                let row = compressed(compression, Row { zero, ..base.clone() });
                equal(&run(&row)[0], &reference[0], &format!("{row:?}"));
            }
            if factors {
                continue;
            }
            // One micro-batch is a step.
            let [whole, parts, gathered] = [1, 2, 3].map(|stage| {
                compressed(compression, Row { zero: zero(stage), micro_batches: 1, ..base.clone() })
            });
            let reference = run(&whole);
            equal(&run(&parts)[0], &reference[0], &format!("{parts:?}"));
            equal(&run(&gathered)[0], &reference[0], &format!("{gathered:?}"));
        }
    }
}

#[test]
fn a_mesh_equals_a_plain_implementation_in_one_process() {
    // Those whose codes are the same for the same numbers and the key of the sum.
    let is_plain = |compression: &Compression| {
        compression.method != Method::PowerSgd && compression.rounding == Rounding::Nearest
    };
    for compression in methods().into_iter().filter(is_plain) {
        for (dp, zero) in
            [(2, zero(0)), (4, zero(0)), (3, zero(0)), (2, zero(1)), (4, once(2)), (2, zero(2)), (4, zero(3))]
        {
            let row = Row { dp, zero, micro_batches: 2, steps: 4, masked: true, ..Row::default() };
            let coded = compressed(compression, row.clone());
            let plain = Plain { codec: compression.codec().unwrap(), ranks: dp, zero };
            let reference = Row { strategy: Arc::new(plain), ..row.reference() };
            equal(&run(&coded)[0], &run(&reference)[0], &format!("{coded:?}"));
        }
    }
}

#[test]
fn replicas_of_shards_send_codes_between_them() {
    for compression in methods().into_iter().filter(|compression| compression.method != Method::PowerSgd) {
        let base = Row { replicate: 2, dp: 2, micro_batches: 2, steps: 3, ..Row::default() };
        let reference = run(&compressed(compression, Row { zero: zero(1), ..base.clone() }));
        // Inside a shard, sums are exact, so that it makes no difference when they are made.
        for (pp, zero, bucket_bytes) in [(1, zero(2), 0), (2, once(3), 2000), (1, zero(3), 1 << 20)] {
            let row = compressed(compression, Row { pp, zero, bucket_bytes, ..base.clone() });
            equal(&run(&row)[0], &reference[0], &format!("{row:?}"));
        }
    }
}

#[test]
fn a_warm_up_is_plain_training() {
    for method in [Method::Int8, Method::PowerSgd] {
        let compression = Compression { method, warmup_steps: 2, ..Compression::default() };
        let row = Row { dp: 2, micro_batches: 2, ..Row::default() };
        equal(&run(&compressed(compression, row.clone()))[0], &run(&row)[0], "two steps of warm-up");
        let longer = Row { steps: 3, ..row };
        let [coded, plain] =
            [compressed(compression, longer.clone()), longer].map(|row| run(&row).swap_remove(0));
        assert_eq!(
            coded.reports[2].loss.to_bits(),
            plain.reports[2].loss.to_bits(),
            "the loss before the update"
        );
        assert_ne!(coded.reports[2].grad_norm.to_bits(), plain.reports[2].grad_norm.to_bits());
    }
}

#[test]
fn several_steps_up_to_an_update() {
    let strategy: Arc<dyn Strategy> = Arc::new(Compressed { every: 2, compression: methods()[2] });
    for zero in [zero(0), zero(2), once(3)] {
        let row =
            Row { dp: 2, micro_batches: 1, zero, strategy: strategy.clone(), steps: 6, ..Row::default() };
        equal(&run(&row)[0], &run(&Row { pp: 2, ..row.clone() })[0], &format!("{row:?}"));
    }
}

/// The same mesh, or another one that sums the same, goes on with the same bits.
#[test]
fn what_was_left_out_is_taken_back() {
    for compression in methods() {
        let base = |dp: usize, zero: Zero| {
            compressed(compression, Row { dp, zero, micro_batches: 2, ..Row::default() })
        };
        let of_zero =
            [Row { pp: 2, ..base(2, zero(1)) }, base(2, once(2)), Row { pp: 2, ..base(2, once(3)) }];
        every_row_goes_on_from_every_row(&of_zero);
        let factors = compression.method == Method::PowerSgd;
        let plain = [base(3, zero(0)), Row { pp: 2, ..base(3, zero(0)) }];
        every_row_goes_on_from_every_row(&plain[..if factors { 2 } else { 1 }]);
        if !factors {
            let each = [base(2, zero(2)), Row { pp: 2, ..base(2, zero(3)) }];
            every_row_goes_on_from_every_row(&each);
            every_row_goes_on_from_every_row(&[Row { replicate: 2, ..base(2, zero(1)) }]);
        }
    }
}

/// The sums over all ranks of what was left out, by unit.
fn left_out(saved: &Saved) -> Vec<(String, Vec<f64>)> {
    let mut sums: Vec<(String, Vec<f64>)> = Vec::new();
    for (unit, slot, values) in saved.arrays().filter(|(_, slot, _)| slot.starts_with("reduction.error.")) {
        let values = values.iter().map(|value| f64::from(*value));
        match sums.iter_mut().find(|(of, _)| of == unit) {
            Some((_, sum)) => sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value),
            None => sums.push((unit.to_owned(), values.collect())),
        }
        assert!(!slot.is_empty());
    }
    sums
}

/// Another number of ranks divides what was left out; nothing of it is lost.
#[test]
fn another_mesh_takes_all_that_was_left_out() {
    let meshes = [
        (1, 2, zero(0)),
        (1, 4, zero(0)),
        (1, 4, once(3)),
        (2, 2, zero(1)),
        (1, 3, zero(0)),
        (1, 1, zero(0)),
    ];
    for method in [Method::TopK, Method::PowerSgd, Method::OneBit] {
        let compression = Compression { method, ratio: 0.1, rank: 1, ..Compression::default() };
        let row = |(pp, dp, zero)| {
            let micro_batches = if dp == 3 { 1 } else { 4 / dp };
            compressed(compression, Row { pp, dp, zero, micro_batches, ..Row::default() })
        };
        for from in meshes.into_iter().filter(|(_, dp, _)| *dp > 1).map(row) {
            let (_, saved) = train(&from, None, 0..2);
            let before = left_out(&saved);
            assert!(before.iter().any(|(_, sum)| sum.iter().any(|value| *value != 0.0)));
            for to in meshes.into_iter().map(row) {
                let what = format!("from {from:?} to {to:?}");
                let held = on_mesh(&to.mesh(), |groups| {
                    let mut engine = to.engine(groups.clone()).unwrap();
                    engine.restore(2, &mut &saved).unwrap();
                    let held = snapshot(&engine);
                    to.step(&mut engine, 2, &groups).unwrap();
                    held
                });
                let after = left_out(&Saved::of(held));
                assert_eq!(before.len(), after.len(), "{what}");
                for ((unit, before), (_, after)) in before.iter().zip(&after) {
                    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-6 * a.abs().max(0.1);
                    assert!(before.iter().zip(after).all(near), "{unit} {what}");
                }
            }
        }
    }
}

/// Codes of any method take up what codes of another left out; plain training says that it does not.
#[test]
fn another_method_goes_on() {
    let row = |method| {
        let compression = Compression { method, ratio: 0.1, ..Compression::default() };
        compressed(compression, Row { dp: 2, micro_batches: 2, ..Row::default() })
    };
    let (_, saved) = train(&row(Method::TopK), None, 0..2);
    for method in [Method::Bf16, Method::PowerSgd, Method::OneBit, Method::Int8] {
        let held = on_mesh(&row(method).mesh(), |groups| {
            let mut engine = row(method).engine(groups.clone()).unwrap();
            engine.restore(2, &mut &saved).unwrap();
            let held = snapshot(&engine);
            row(method).step(&mut engine, 2, &groups).unwrap();
            let after = snapshot(&engine);
            (held, after)
        });
        let (held, after): (Vec<_>, Vec<_>) = held.into_iter().unzip();
        assert!(!left_out(&Saved::of(held)).is_empty(), "{method}");
        assert_eq!(left_out(&Saved::of(after)).is_empty(), method == Method::Bf16, "{method}");
    }
    let told = on_mesh(&row(Method::TopK).mesh(), |groups| {
        let mut engine = Row { dp: 2, ..Row::default() }.engine(groups).unwrap();
        engine.restore(2, &mut &saved).unwrap_err().to_string()
    });
    assert!(told[0].contains("comm.compress") && told[0].contains("--compress bf16"), "{}", told[0]);
}

#[test]
fn what_is_not_finite_ends_the_step_and_a_skipped_step_leaves_nothing_out() {
    for compression in methods() {
        for zero in [zero(0), once(2)] {
            let row = compressed(
                compression,
                Row { dp: 2, micro_batches: 2, masked: true, zero, ..Row::default() },
            );
            on_mesh(&row.mesh(), |groups| {
                let poisoned = |step| {
                    let mut batches = row.batches(step, &groups);
                    if groups.world().rank() == 1 {
                        let target = &mut batches[1].target;
                        target.mask = target.mask.take().map(|mask| mask * f32::INFINITY);
                    }
                    batches
                };
                let mut stopping = row.engine(groups.clone()).unwrap();
                row.step(&mut stopping, 0, &groups);
                let told = stopping.step(poisoned(1), 1e-2).unwrap_err();
                assert!(matches!(told, Error::NonFinite { .. }), "{told}");
                assert!(told.to_string().contains("is not finite"), "{told}");

                let skips = Row { on_nonfinite: NonFinite::Skip, ..row.clone() };
                let [mut skipping, mut plain] = [0; 2].map(|_| skips.engine(groups.clone()).unwrap());
                skips.step(&mut skipping, 0, &groups);
                skips.step(&mut plain, 0, &groups);
                let before = snapshot(&skipping);
                assert!(skipping.step(poisoned(1), 1e-2).unwrap().skipped);
                assert!(snapshot(&skipping) == before, "{compression:?}");
            });
        }
    }
}

/// Numbers of fp16 have a scale, without which these would be infinite, or zero.
#[test]
fn gradients_of_any_size_travel_in_16_bits() {
    for factor in [1e9f64, 1e-9] {
        let norm = |row: &Row| {
            let norms = on_mesh(&row.mesh(), |groups| {
                let mut batches = row.batches(0, &groups);
                let target = &mut batches[0].target;
                target.mask = target.mask.take().map(|mask| mask * factor);
                row.engine(groups.clone()).unwrap().step(batches, 1e-2).unwrap().grad_norm
            });
            norms[0]
        };
        let row = Row { dp: 2, micro_batches: 1, masked: true, ..Row::default() };
        let exact = norm(&row);
        for method in [Method::Fp16, Method::Bf16] {
            let compression = Compression { method, ..Compression::default() };
            let coded = norm(&compressed(compression, row.clone()));
            assert!((coded / exact - 1.0).abs() < 0.01, "{method}: {coded:e}, not {exact:e}");
        }
    }
}

#[test]
fn bytes_are_as_planned() {
    for compression in methods() {
        let factors = compression.method == Method::PowerSgd;
        for (pp, dp, micro_batches, zero) in [
            (1, 2, 1, zero(0)),
            (1, 2, 4, zero(0)),
            (2, 2, 4, zero(0)),
            (1, 4, 3, once(1)),
            (2, 2, 2, once(3)),
            (1, 2, 4, once(2)),
            (1, 2, 4, zero(2)),
            (2, 4, 2, zero(3)),
            (1, 1, 2, zero(0)),
        ] {
            let each = zero.reduces_each_micro_batch();
            for tied in [false, true].into_iter().filter(|_| !(factors && each)) {
                is_as_planned(&compressed(
                    compression,
                    Row { pp, dp, micro_batches, zero, tied, ..Row::default() },
                ));
            }
        }
        for zero in [zero(1), zero(3)].into_iter().filter(|_| !factors) {
            let row = Row { replicate: 2, dp: 2, micro_batches: 2, zero, ..Row::default() };
            is_as_planned(&compressed(compression, row));
        }
    }
}

/// Coded sums without ranks: one process adds each rank's micro-batches up, codes them, and adds what the codes stand for.
#[derive(Debug, Clone)]
struct Plain {
    codec: Arc<dyn Codec>,
    ranks: usize,
    zero: Zero,
}

impl Strategy for Plain {
    fn synchronizes(&self, _: u64) -> bool {
        true
    }
    fn period(&self) -> usize {
        1
    }
    fn reduction(&self, units: Vec<ReducedUnit>, data: DataParallel) -> Box<dyn Reduction> {
        let units = units.iter().map(|unit| PlainUnit {
            elements: unit.elements,
            seed: keyed_seed(data.seed, &unit.name),
            given: Vec::new(),
            left_out: vec![vec![0.0; unit.elements]; self.ranks],
            of_sums: vec![0.0; unit.elements],
            kept: None,
        });
        Box::new(PlainReduction { plain: self.clone(), units: units.collect(), step: 0 })
    }
}

struct PlainReduction {
    plain: Plain,
    units: Vec<PlainUnit>,
    step: u64,
}

struct PlainUnit {
    elements: usize,
    seed: u64,
    given: Vec<Vec<f32>>,
    /// By rank, and of the sums.
    left_out: Vec<Vec<f32>>,
    of_sums: Vec<f32>,
    /// As of the last update.
    kept: Option<(Vec<Vec<f32>>, Vec<f32>)>,
}

impl Plain {
    /// What the codes of some numbers, with what was left out before, stand for.
    fn coded(&self, values: &[f32], left_out: &mut [f32], key: u64) -> Vec<f32> {
        let feeds_back = self.codec.needs_error_feedback();
        let with: Vec<f32> = match feeds_back {
            true => values.iter().zip(&*left_out).map(|(value, left)| value + left).collect(),
            false => values.to_vec(),
        };
        let (mut code, mut decoded) = (vec![0; self.codec.bytes(with.len())], vec![0.0; with.len()]);
        self.codec.encode(&with, key, &mut code);
        self.codec.decode(&code, key, &mut decoded);
        if feeds_back {
            left_out
                .iter_mut()
                .zip(with.iter().zip(&decoded))
                .for_each(|(left, (with, decoded))| *left = with - decoded);
        }
        decoded
    }

    /// The sum of one gradient of each rank, with a key of its own; each slice has one, the same for all ranks.
    fn sum(&self, gradients: &[Vec<f32>], unit: &mut PlainUnit, key: u64) -> Vec<f32> {
        let slice = match self.zero.stage {
            0 => unit.elements.div_ceil(self.ranks),
            _ => unit.elements.next_multiple_of(CHUNK * self.ranks) / self.ranks,
        };
        let mut whole = Vec::new();
        for (number, start) in (0..unit.elements).step_by(slice).enumerate() {
            let place: Range<usize> = start..(start + slice).min(unit.elements);
            let key = keyed(key, number as u64);
            let coded = gradients.iter().zip(&mut unit.left_out);
            let coded =
                coded.map(|(values, left)| self.coded(&values[place.clone()], &mut left[place.clone()], key));
            let sum = pairwise(coded.collect());
            whole.extend(match self.zero.stage {
                0 => self.coded(&sum, &mut unit.of_sums[place], key),
                _ => sum,
            });
        }
        whole
    }
}

fn pairwise(terms: Vec<Vec<f32>>) -> Vec<f32> {
    let mut sum = PairwiseSum::new();
    terms.into_iter().for_each(|term| sum.push(term, add));
    sum.finish(add).unwrap()
}

fn add(a: Vec<f32>, b: Vec<f32>) -> Vec<f32> {
    a.into_iter().zip(b).map(|(a, b)| a + b).collect()
}

impl Reduction for PlainReduction {
    fn begin(&mut self, step: u64) {
        self.step = step;
    }
    fn add(&mut self, unit: usize, gradient: Tensor<1>, _: &mut Clock) -> Result<()> {
        self.units[unit].given.push(gradient.try_into_vec_as::<f32>().unwrap());
        Ok(())
    }
    fn complete(&mut self, _: usize) {}
    fn finish(&mut self, _: &mut Clock) -> Result<Vec<Option<Tensor<1>>>> {
        let (plain, step) = (self.plain.clone(), self.step);
        let sums = self.units.iter_mut().map(|unit| {
            unit.kept = Some((unit.left_out.clone(), unit.of_sums.clone()));
            let given = std::mem::take(&mut unit.given);
            let each = given.len() / plain.ranks;
            let key = keyed(unit.seed, step);
            let sum = match plain.zero.reduces_each_micro_batch() {
                true => {
                    let sums = given.chunks(plain.ranks).enumerate();
                    pairwise(
                        sums.map(|(sum, given)| plain.sum(given, unit, keyed(key, sum as u64))).collect(),
                    )
                }
                false => {
                    let of_ranks = given.chunks(each).map(|given| pairwise(given.to_vec()));
                    plain.sum(&of_ranks.collect::<Vec<_>>(), unit, keyed(key, 0))
                }
            };
            Some(Tensor::from_floats(sum.as_slice(), &brigade_cpu::device()))
        });
        Ok(sums.collect())
    }
    fn commit(&mut self, updates: bool) {
        for unit in self.units.iter_mut().filter(|_| !updates) {
            if let Some((left_out, of_sums)) = unit.kept.take() {
                (unit.left_out, unit.of_sums) = (left_out, of_sums);
            }
        }
    }
    fn reset(&mut self) {
        self.units.iter_mut().for_each(|unit| unit.given.clear());
    }
    fn bytes(&self) -> Bytes {
        Bytes::default()
    }
}
