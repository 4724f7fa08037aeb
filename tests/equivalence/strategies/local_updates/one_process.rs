//! One process that runs the workers one after another and takes the outer steps itself, in plain numbers.

use std::collections::BTreeMap;
use std::sync::Arc;

use brigade::core::compress::{Codec, Quantizer, Rounding};
use brigade::core::{Fragments, Groups, NamedTensor, Synchronous};

use super::{MICRO_BATCHES, MOMENTUM, OUTER_RATE, WORKERS};
use crate::resume::{Saved, snapshot};
use crate::row::{Gpt, RATE, Row};

pub(super) type Values = BTreeMap<String, Vec<f32>>;

fn zip(a: &Values, b: &Values, with: impl Fn(f32, f32) -> f32) -> Values {
    let of = |(unit, a): (&String, &Vec<f32>)| {
        (unit.clone(), a.iter().zip(&b[unit]).map(|(a, b)| with(*a, *b)).collect())
    };
    a.iter().map(of).collect()
}

/// What numbers become as 8-bit integers with a scale for each block.
fn coded(values: &Values) -> Values {
    let block = |block: &[f32]| {
        let most = block.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        let codec = Quantizer::int8(Rounding::Nearest, block.len().next_multiple_of(2));
        let (mut code, mut back) = (vec![0; codec.bytes(block.len())], vec![0.0; block.len()]);
        codec.encode(block, 0, &mut code);
        codec.decode(&code, 0, &mut back);
        let step = most / 127.0;
        assert!(block.iter().zip(&back).all(|(value, back)| (value - back).abs() <= 0.501 * step));
        back
    };
    values.iter().map(|(unit, values)| (unit.clone(), values.chunks(256).flat_map(block).collect())).collect()
}

/// The outer steps, in plain numbers.
struct Outer {
    is_coded: bool,
    values: Values,
    velocity: Option<Values>,
    averages: bool,
}

impl Outer {
    fn step(&mut self, workers: &[Values]) -> Values {
        assert_eq!(workers.len(), 2);
        if self.averages {
            return zip(&workers[0], &workers[1], |a, b| (a + b) / 2.0);
        }
        let changes: Vec<Values> =
            workers.iter().map(|values| zip(&self.values, values, |before, after| before - after)).collect();
        let gradient = match self.is_coded {
            false => zip(&changes[0], &changes[1], |a, b| (a + b) / 2.0),
            true => {
                let sum = coded(&zip(&coded(&changes[0]), &coded(&changes[1]), |a, b| a + b));
                zip(&sum, &sum, |sum, _| sum / 2.0)
            }
        };
        let velocity = match &self.velocity {
            None => gradient.clone(),
            Some(old) => zip(&gradient, old, |gradient, old| gradient + old * MOMENTUM),
        };
        let step = zip(&velocity, &gradient, |velocity, gradient| velocity * MOMENTUM + gradient);
        self.values = zip(&self.values, &step, |value, step| value - step * OUTER_RATE);
        self.velocity = Some(velocity);
        self.values.clone()
    }
}

/// What a worker of `row` is by itself, and an engine for each.
fn workers_alone(row: &Row) -> (Row, Vec<Gpt>) {
    let one = Row {
        workers: 1,
        micro_batches: MICRO_BATCHES,
        strategy: Arc::new(Synchronous::default()),
        ..row.reference()
    };
    let engines = (0..WORKERS).map(|_| one.engine(Groups::single_rank()).unwrap()).collect();
    (one, engines)
}

/// An inner step of each worker, on its part of the global batch.
fn step_each(one: &Row, engines: &mut [Gpt], step: u64) {
    for (worker, engine) in engines.iter_mut().enumerate() {
        let own = worker * MICRO_BATCHES..(worker + 1) * MICRO_BATCHES;
        engine.step(own.map(|number| one.batch(step, number)).collect(), RATE).unwrap();
    }
}

fn state(engine: &Gpt) -> Saved {
    Saved::of(vec![snapshot(engine)])
}

/// The units of a fragment, which are called as their blocks or, if they are tied, a parameter of them.
fn fragment(engine: &Gpt, values: &Values, number: usize, count: usize) -> Vec<String> {
    let block = |name: &str| {
        let starts = |unit: &&String| name == *unit || name.starts_with(&format!("{unit}."));
        values.keys().filter(starts).min_by_key(|unit| unit.len()).unwrap().clone()
    };
    let mut blocks: Vec<String> = engine.shapes().iter().map(|(name, _)| block(name)).collect();
    blocks.dedup();
    let own: Vec<String> = blocks.into_iter().skip(number).step_by(count).collect();
    values.keys().filter(|unit| own.contains(&block(unit))).cloned().collect()
}

fn only(values: &Values, units: &[String]) -> Values {
    units.iter().map(|unit| (unit.clone(), values[unit].clone())).collect()
}

/// The weights that workers have in common after `row`'s steps in one process, in which one engine after the other is a worker, and outer steps
/// of one fragment after the other.
pub(super) fn one_after_another_in_fragments(
    row: &Row,
    is_coded: bool,
    fragments: Fragments,
    inner_steps: u64,
) -> Values {
    let (one, mut engines) = workers_alone(row);
    let initial = state(&engines[0]).parameters();
    let mixing = fragments.mixing as f32;
    let mut outers: Vec<(Vec<String>, Outer)> = (0..fragments.count)
        .map(|number| {
            let units = fragment(&engines[0], &initial, number, fragments.count);
            let values = only(&initial, &units);
            (units, Outer { is_coded, values, velocity: None, averages: false })
        })
        .collect();
    let each = inner_steps / fragments.count as u64;
    let mut given: Vec<Values> = Vec::new();
    for step in 0..row.steps {
        step_each(&one, &mut engines, step);
        let now: Vec<Values> = engines.iter().map(|engine| state(engine).parameters()).collect();
        let place = (step % inner_steps) + 1;
        for (number, (units, outer)) in outers.iter_mut().enumerate() {
            let end = each * (number as u64 + 1);
            if place == end - fragments.overlap {
                given = now.iter().map(|values| only(values, units)).collect();
            }
            if place != end {
                continue;
            }
            let common = outer.step(&given);
            for (engine, now) in engines.iter_mut().zip(&now) {
                let own = only(now, units);
                let mixed = match mixing {
                    0.0 => common.clone(),
                    mixing => zip(&own, &common, |own, common| own * mixing + common * (1.0 - mixing)),
                };
                let next = [now.clone(), mixed].into_iter().flatten().collect();
                let saved = state(engine);
                engine.restore(step + 1, &mut &saved.with_parameters(&next)).unwrap();
            }
        }
    }
    outers.into_iter().flat_map(|(_, outer)| outer.values).collect()
}

/// What workers do when they synchronise.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Averages,
    Steps,
    /// Outer gradients travel as 8-bit integers.
    Coded,
}

/// The weights after `row`'s steps in one process, in which one engine after the other is a worker.
pub(super) fn one_after_another(row: &Row, inner_steps: u64, kind: Kind) -> Vec<NamedTensor> {
    let (one, mut engines) = workers_alone(row);
    let (averages, is_coded) = (kind == Kind::Averages, kind == Kind::Coded);
    let values = state(&engines[0]).parameters();
    let mut outer = Outer { is_coded, values, velocity: None, averages };
    for step in 0..row.steps {
        step_each(&one, &mut engines, step);
        if (step + 1).is_multiple_of(inner_steps) {
            let states: Vec<Saved> = engines.iter().map(state).collect();
            let workers: Vec<Values> = states.iter().map(Saved::parameters).collect();
            let next = outer.step(&workers);
            for (engine, state) in engines.iter_mut().zip(states) {
                engine.restore(step + 1, &mut &state.with_parameters(&next)).unwrap();
            }
        }
    }
    engines[0].tensors(0).unwrap()
}
