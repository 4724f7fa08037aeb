//! Coded sums as a plain implementation in one process makes them.

use std::ops::Range;
use std::sync::Arc;

use brigade::core::compress::{Codec, Compression, Method, Rounding};
use brigade::core::{
    Bytes, CHUNK, Clock, DataParallel, PairwiseSum, ReducedUnit, Reduction, Result, Strategy, Zero,
    keyed_seed,
};
use brigade_random::keyed;
use burn::tensor::Tensor;

use super::{compressed, equal, methods, once, run, zero};
use crate::row::Row;

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
