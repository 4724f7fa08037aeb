//! Workers that make updates of their own and meet in outer steps: local SGD and DiLoCo, beside one process that runs the workers one
//! after another and takes the outer steps itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use brigade::core::compress::{Codec, Quantizer, Rounding};
use brigade::core::{
    Error, Fragments, Groups, LocalUpdates, NamedTensor, NonFinite, OuterDtype, OuterOptimizer, StepReport,
    Strategy, Synchronous, Zero,
};
use brigade::kernels::SgdConfig;
use brigade::models::Logits;

use crate::mesh::{on_mesh, same_bits};
use crate::resume::{Saved, every_row_goes_on_from_every_row, snapshot};
use crate::row::{Gpt, MIXED, RATE, Row};

const WORKERS: usize = 2;
/// Of a worker in a step.
const MICRO_BATCHES: usize = 4;
const OUTER_RATE: f32 = 0.7;
const MOMENTUM: f32 = 0.9;

pub fn averaging(inner_steps: u64) -> Arc<dyn Strategy> {
    Arc::new(LocalUpdates { inner_steps, outer: None, fragments: None })
}

pub fn diloco(inner_steps: u64, dtype: OuterDtype) -> Arc<dyn Strategy> {
    streaming(inner_steps, dtype, None)
}

/// With outer steps of one fragment after the other, if there are any.
pub fn streaming(inner_steps: u64, dtype: OuterDtype, fragments: Option<Fragments>) -> Arc<dyn Strategy> {
    let sgd = SgdConfig { momentum: Some(MOMENTUM), dampening: 0.0, nesterov: true, weight_decay: None };
    let learning_rate = f64::from(OUTER_RATE);
    let outer = OuterOptimizer { optimizer: sgd.build().into(), learning_rate, dtype };
    Arc::new(LocalUpdates { inner_steps, outer: Some(outer), fragments })
}

/// Workers with every mesh inside.
pub fn rows(base: &Row) -> Vec<Row> {
    let meshes = [(1, 1, 0), (1, 2, 0), (1, 2, 1), (2, 1, 0), (2, 2, 3), (1, 4, 2)];
    let row = |(pp, dp, stage)| Row {
        workers: WORKERS,
        pp,
        dp,
        micro_batches: MICRO_BATCHES / dp,
        zero: Zero { stage, ..Zero::default() },
        ..base.clone()
    };
    meshes.into_iter().map(row).collect()
}

type Values = BTreeMap<String, Vec<f32>>;

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
fn one_after_another_in_fragments(
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

/// What workers do when they meet.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Averages,
    Steps,
    /// Outer gradients travel as 8-bit integers.
    Coded,
}

/// The weights after `row`'s steps in one process, in which one engine after the other is a worker.
fn one_after_another(row: &Row, inner_steps: u64, kind: Kind) -> Vec<NamedTensor> {
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

/// Runs a row on its mesh; gives each rank's reports and weights.
pub fn run(row: &Row) -> Vec<(Vec<StepReport>, Vec<NamedTensor>)> {
    on_mesh(&row.mesh(), |groups| {
        let (rank, ranks) = (groups.world().rank(), groups.world().size());
        let mut engine = row.engine(groups.clone()).unwrap();
        let reports = (0..row.steps).filter_map(|step| row.step(&mut engine, step, &groups)).collect();
        let mut weights = Vec::new();
        for root in 0..ranks {
            let tensors = engine.tensors(root).unwrap();
            if root == rank {
                weights = tensors;
            }
        }
        (reports, weights)
    })
}

/// Runs each row, and compares weights with the reference, and reports with each other.
fn equal(rows: &[Row], reference: Option<&[NamedTensor]>) {
    let first = run(&rows[0]).swap_remove(0);
    let reference = reference.unwrap_or(&first.1);
    for row in rows {
        for (rank, (reports, weights)) in run(row).into_iter().enumerate() {
            let what = format!("rank {rank} of {row:?}");
            same_bits(&weights, reference, &what);
            assert_eq!(reports.len(), first.0.len(), "{what}");
            for (a, b) in reports.iter().zip(&first.0) {
                assert_eq!((a.step, a.targets, a.skipped), (b.step, b.targets, b.skipped), "{what}");
                assert_eq!(a.loss.to_bits(), b.loss.to_bits(), "loss on {what}");
                assert_eq!(a.grad_norm.to_bits(), b.grad_norm.to_bits(), "norm on {what}");
                assert_eq!(a.metrics, b.metrics, "{what}");
            }
        }
    }
}

#[test]
fn averaging_equals_one_process_that_runs_one_worker_after_another() {
    for (inner_steps, optimizer) in [(1, "sgd"), (3, "adamw")] {
        let base =
            Row { strategy: averaging(inner_steps), steps: 6, optimizer, masked: true, ..Row::default() };
        let reference = one_after_another(&base, inner_steps, Kind::Averages);
        equal(&rows(&base), Some(&reference));
    }
}

#[test]
fn an_outer_optimizer_equals_one_process_that_runs_one_worker_after_another() {
    let base = Row { strategy: diloco(2, OuterDtype::F32), steps: 6, clipping: Some(0.3), ..Row::default() };
    let reference = one_after_another(&base, 2, Kind::Steps);
    equal(&rows(&base), Some(&reference));
    let tied = Row { tied: true, ..base };
    let reference = one_after_another(&tied, 2, Kind::Steps);
    equal(&rows(&tied), Some(&reference));
}

#[test]
fn outer_gradients_in_int8_equal_one_process_that_codes_them_itself() {
    let base = Row { strategy: diloco(2, OuterDtype::Int8), steps: 6, masked: true, ..Row::default() };
    let reference = one_after_another(&base, 2, Kind::Coded);
    equal(&rows(&base), Some(&reference));
    let tied = Row { tied: true, offload: true, ..base };
    let reference = one_after_another(&tied, 2, Kind::Coded);
    equal(&rows(&tied), Some(&reference));
}

/// The weights are those that the workers have in common.
#[test]
fn fragments_equal_one_process_that_runs_one_worker_after_another() {
    let fragments = |count, overlap, mixing| Fragments { count, overlap, mixing };
    for (inner_steps, fragments, dtype, tied) in [
        (3, fragments(3, 0, 0.5), OuterDtype::F32, false),
        (4, fragments(2, 1, 0.5), OuterDtype::F32, true),
        (4, fragments(1, 3, 0.0), OuterDtype::Int8, false),
        (6, fragments(2, 2, 0.25), OuterDtype::Int8, true),
    ] {
        let strategy = streaming(inner_steps, dtype, Some(fragments));
        let base = Row { strategy, steps: 2 * inner_steps, masked: true, tied, ..Row::default() };
        let is_coded = dtype == OuterDtype::Int8;
        let reference = one_after_another_in_fragments(&base, is_coded, fragments, inner_steps);
        let rows = rows(&base);
        let found = Saved::of(on_mesh(&rows[0].mesh(), |groups| {
            let mut engine = rows[0].engine(groups.clone()).unwrap();
            (0..base.steps).for_each(|step| drop(rows[0].step(&mut engine, step, &groups)));
            snapshot(&engine)
        }));
        assert!(found.parameters() == reference, "{base:?}");
        equal(&rows, None);
    }
}

/// One fragment whose outer step is not delayed is the whole model.
#[test]
fn one_fragment_without_overlap_is_the_whole_model() {
    let base = Row { strategy: diloco(2, OuterDtype::Bf16), steps: 6, masked: true, ..Row::default() };
    let whole = run(&rows(&base)[0]).swap_remove(0).1;
    let fragments = Fragments { count: 1, overlap: 0, mixing: 0.0 };
    let streamed = Row { strategy: streaming(2, OuterDtype::Bf16, Some(fragments)), ..base };
    equal(&rows(&streamed), Some(&whole));
}

#[test]
fn no_mesh_inside_of_workers_changes_a_bit_of_fragments() {
    let fragments = Some(Fragments { count: 2, overlap: 1, mixing: 0.5 });
    let strategy = streaming(4, OuterDtype::Bf16, fragments);
    let base = Row { strategy, steps: 8, dropout: 0.1, masked: true, ..Row::default() };
    equal(&rows(&base), None);
    let mixed = Row { precision: MIXED, offload: true, tied: true, ..base };
    equal(&rows(&mixed), None);
}

/// After training, the blocks have the model's values.
#[test]
fn blocks_end_with_what_workers_have_in_common() {
    let strategy = streaming(4, OuterDtype::F32, Some(Fragments { count: 2, overlap: 1, mixing: 0.5 }));
    let row = Row { strategy, steps: 4, workers: 2, micro_batches: MICRO_BATCHES, ..Row::default() };
    let ranks = on_mesh(&row.mesh(), |groups| {
        let mut engine = row.engine(groups.clone()).unwrap();
        (0..row.steps).for_each(|step| drop(row.step(&mut engine, step, &groups)));
        let input = || row.batch(99, 0).input;
        let predicted = |logits: Logits| logits.whole().into_data();
        let own = predicted(engine.chain().predict(input()).unwrap());
        let (model, refused) = (predicted(engine.predict(input()).unwrap()), engine.replica().err().unwrap());
        assert!(refused.to_string().contains("workers hold different values"), "{refused}");
        engine.keep_model_values().unwrap();
        let kept = predicted(engine.chain().predict(input()).unwrap());
        let again = predicted(engine.predict(input()).unwrap());
        (own, model, kept, again)
    });
    for (own, model, kept, again) in &ranks {
        assert!(own != model && kept == model && again == model, "the model's values");
        assert!(*model == ranks[0].1, "on every worker");
    }
}

/// A rank whose validation fails says so at once, and has its own values when it computes again.
#[test]
fn a_validation_that_fails_is_told_at_once() {
    let strategy = streaming(2, OuterDtype::F32, Some(Fragments { count: 2, overlap: 0, mixing: 0.5 }));
    let base = Row { strategy, steps: 4, tied: true, ..Row::default() };
    let trained = |fails: bool| {
        let row = rows(&base).swap_remove(0);
        Saved::of(on_mesh(&row.mesh(), |groups| {
            let mut engine = row.engine(groups.clone()).unwrap();
            for step in 0..row.steps {
                if row.step(&mut engine, step, &groups).is_some() && fails {
                    let error = engine.evaluate(1, |_| Err("no such file".into())).unwrap_err();
                    assert!(error.to_string().contains("no such file"), "{error}");
                }
            }
            snapshot(&engine)
        }))
    };
    trained(true).same(&trained(false), "after validations that failed");
}

/// Validation is of the values that the workers have in common, and changes nothing of their own.
#[test]
fn validation_of_fragments_is_of_what_workers_have_in_common() {
    let strategy = streaming(2, OuterDtype::F32, Some(Fragments { count: 2, overlap: 0, mixing: 0.5 }));
    let base = Row { strategy, steps: 4, tied: true, ..Row::default() };
    let mut found = None;
    for row in rows(&base) {
        let validates = |validates: bool| {
            on_mesh(&row.mesh(), |groups| {
                let mut engine = row.engine(groups.clone()).unwrap();
                let mut losses = Vec::new();
                for step in 0..row.steps {
                    if row.step(&mut engine, step, &groups).is_some() && validates {
                        losses.push(engine.evaluate(1, |_| Ok(row.batch(99, 0))).unwrap().loss.to_bits());
                    }
                }
                (losses, snapshot(&engine))
            })
        };
        let (losses, saved): (Vec<_>, Vec<_>) = validates(true).into_iter().unzip();
        Saved::of(saved)
            .same(&Saved::of(validates(false).into_iter().map(|(_, saved)| saved).collect()), "validation");
        let first = found.get_or_insert_with(|| losses[0].clone());
        assert!(losses.iter().all(|losses| losses == first), "{row:?}");
    }
}

#[test]
fn no_mesh_inside_of_workers_changes_a_bit() {
    let base =
        Row { strategy: diloco(2, OuterDtype::Bf16), steps: 4, dropout: 0.1, masked: true, ..Row::default() };
    equal(&rows(&base), None);
    let mixed = Row { precision: MIXED, offload: true, tied: true, ..base };
    equal(&rows(&mixed), None);
    let replicas: Vec<Row> = [(1, 2, 2), (4, 1, 0)]
        .map(|(dp, replicate, stage)| {
            let zero = Zero { stage, ..Zero::default() };
            Row {
                workers: 2,
                dp,
                replicate,
                zero,
                micro_batches: MICRO_BATCHES / dp / replicate,
                ..mixed.clone()
            }
        })
        .into();
    equal(&[&rows(&mixed)[..1], &replicas].concat(), None);
}

/// Means over workers after each step of plain SGD are those of one batch, where all workers have as many targets.
#[test]
fn averaging_after_each_step_of_sgd_is_synchronous_training_up_to_rounding() {
    let base = Row { optimizer: "sgd", steps: 4, ..Row::default() };
    let plain = Row { micro_batches: WORKERS * MICRO_BATCHES, ..base.clone() }.run(Groups::single_rank());
    let (_, averaged) = run(&Row { strategy: averaging(1), ..rows(&base)[1].clone() }).swap_remove(0);
    for (plain, averaged) in plain.weights.iter().zip(&averaged) {
        let [plain, averaged] = [plain, averaged].map(|tensor| tensor.data.as_slice::<f32>().unwrap());
        assert!(plain.iter().zip(averaged).all(|(a, b)| (a - b).abs() < 1e-5), "up to rounding");
    }
}

#[test]
fn every_mesh_inside_of_workers_goes_on_from_every_other() {
    for (strategy, tied) in [
        (averaging(2), true),
        (diloco(1, OuterDtype::F32), false),
        (diloco(2, OuterDtype::Bf16), true),
        (diloco(2, OuterDtype::Int8), false),
        (streaming(2, OuterDtype::F32, Some(Fragments { count: 2, overlap: 0, mixing: 0.5 })), true),
        (streaming(2, OuterDtype::Int8, Some(Fragments { count: 1, overlap: 1, mixing: 0.5 })), false),
    ] {
        let rows = rows(&Row { strategy, tied, masked: true, ..Row::default() });
        every_row_goes_on_from_every_row(&[&rows[..1], &rows[2..5]].concat());
    }
}

/// A state of so many workers.
fn saved_by(workers: usize, strategy: &Arc<dyn Strategy>) -> Saved {
    let row = Row { workers, micro_batches: 1, strategy: strategy.clone(), ..Row::default() };
    Saved::of(on_mesh(&row.mesh(), |groups| {
        let mut engine = row.engine(groups.clone()).unwrap();
        (0..2).for_each(|step| drop(row.step(&mut engine, step, &groups)));
        snapshot(&engine)
    }))
}

#[test]
fn another_number_of_workers_goes_on_from_the_states_of_those_that_there_were() {
    let plain: Arc<dyn Strategy> = Arc::new(Synchronous::default());
    for (from, to, strategy) in
        [(4, 2, averaging(2)), (2, 4, diloco(2, OuterDtype::F32)), (1, 2, diloco(2, OuterDtype::F32))]
    {
        let saved = saved_by(from, if from == 1 { &plain } else { &strategy });
        let row = Row { workers: to, micro_batches: 1, strategy, ..Row::default() };
        let taken = on_mesh(&row.mesh(), |groups| {
            let mut engine = row.engine(groups.clone()).unwrap();
            engine.restore(2, &mut &saved).unwrap();
            let taken = snapshot(&engine);
            (2..4).for_each(|step| drop(row.step(&mut engine, step, &groups)));
            taken
        });
        let taken = Saved::of(taken);
        assert_eq!(taken.parameters(), saved.parameters());
        for worker in 0..to {
            let [own, before] =
                [(&taken, worker), (&saved, worker % from)].map(|(saved, worker)| saved.of_worker(worker));
            assert!(!own.is_empty() && own == before, "worker {worker} of {to} from {from}");
        }
    }
}

#[test]
fn nothing_is_saved_or_collected_between_outer_steps() {
    let row = Row { workers: 2, strategy: averaging(2), micro_batches: 1, ..Row::default() };
    let errors = on_mesh(&row.mesh(), |groups| {
        let mut engine = row.engine(groups.clone()).unwrap();
        let wrong = engine.step(row.batches(0, &groups), RATE).unwrap_err().to_string();
        assert!(wrong.contains("call `Engine::inner_step`"), "{wrong}");
        assert!(row.step(&mut engine, 0, &groups).is_none());
        let wrong = engine.inner_step(row.batches(1, &groups), RATE).unwrap_err().to_string();
        assert!(wrong.contains("call `Engine::step`"), "{wrong}");
        let told = [
            engine.snapshot().err().unwrap(),
            engine.tensors(0).unwrap_err(),
            engine.evaluate(1, |_| Ok(row.batch(9, 0))).unwrap_err(),
        ];
        let saved = Saved::of(vec![snapshot(&Row::default().engine(Groups::single_rank()).unwrap())]);
        let refused = engine.restore(3, &mut &saved).unwrap_err().to_string();
        assert!(refused.contains("cannot resume from step 3: it must be a multiple of 2"), "{refused}");
        told.map(|error| error.to_string())
    });
    for error in errors.iter().flatten() {
        assert!(
            error.contains("after step 1 each worker has values of its own; they meet after every 2 steps"),
            "{error}"
        );
    }
}

/// A worker that skips a step goes on alone; the others do not wait for it, and all learn of it when they meet.
#[test]
fn a_worker_skips_a_step_by_itself() {
    let row = Row {
        workers: 2,
        dp: 2,
        micro_batches: 1,
        strategy: averaging(2),
        masked: true,
        on_nonfinite: NonFinite::Skip,
        ..Row::default()
    };
    let reports = on_mesh(&row.mesh(), |groups| {
        let mut engine = row.engine(groups.clone()).unwrap();
        let mut batches = row.batches(0, &groups);
        if groups.world().rank() == 3 {
            let target = &mut batches[0].target;
            target.mask = target.mask.take().map(|mask| mask * f32::INFINITY);
        }
        engine.inner_step(batches, RATE).unwrap();
        row.step(&mut engine, 1, &groups).unwrap()
    });
    for report in &reports {
        assert_eq!((report.skipped, report.outer.unwrap().skipped), (false, 1));
        assert!(report.loss.is_finite() && report.grad_norm.is_finite());
        assert_eq!(report.loss.to_bits(), reports[0].loss.to_bits());
    }
}

/// The outer optimizer's momentum does not move the model after a round in which nobody made an update.
#[test]
fn a_round_in_which_all_skip_changes_nothing() {
    let fragments = |count, overlap| Some(Fragments { count, overlap, mixing: 0.5 });
    let (inner_steps, on_nonfinite) = (4, NonFinite::Skip);
    for (fragments, pp, dp) in
        [(None, 1, 1), (fragments(2, 0), 1, 2), (fragments(2, 1), 2, 1), (fragments(1, 3), 2, 2)]
    {
        let strategy = streaming(inner_steps, OuterDtype::F32, fragments);
        let row = Row {
            workers: 2,
            pp,
            dp,
            micro_batches: 1,
            strategy,
            masked: true,
            on_nonfinite,
            ..Row::default()
        };
        let weights = on_mesh(&row.mesh(), |groups| {
            let mut engine = row.engine(groups.clone()).unwrap();
            let mut after_rounds = Vec::new();
            for step in 0..3 * inner_steps {
                let mut batches = row.batches(step, &groups);
                if step / inner_steps == 1 {
                    let target = &mut batches[0].target;
                    target.mask = target.mask.take().map(|mask| mask * f32::INFINITY);
                }
                if (step + 1).is_multiple_of(inner_steps) {
                    let report = engine.step(batches, RATE).unwrap();
                    assert_eq!(report.skipped, step / inner_steps == 1, "step {step} of {row:?}");
                    after_rounds.push(engine.tensors(0).unwrap());
                } else {
                    engine.inner_step(batches, RATE).unwrap();
                }
            }
            after_rounds
        });
        let [first, second, third] = &weights[0][..] else { panic!("three rounds") };
        same_bits(second, first, &format!("{row:?}"));
        assert!(third.iter().zip(second).any(|(a, b)| a.data != b.data), "{row:?}");
    }
}

/// The first failure is the worker's, with the rank of all ranks.
#[test]
fn a_loss_that_is_not_finite_names_the_rank_of_all() {
    let row =
        Row { workers: 2, pp: 2, micro_batches: 1, strategy: averaging(2), masked: true, ..Row::default() };
    let errors = on_mesh(&row.mesh(), |groups| {
        let mut engine = row.engine(groups.clone()).unwrap();
        let mut batches = row.batches(0, &groups);
        if groups.world().rank() == 3 {
            let target = &mut batches[0].target;
            target.mask = target.mask.take().map(|mask| mask * f32::INFINITY);
        }
        engine.inner_step(batches, RATE).map_err(|error| error.to_string())
    });
    assert_eq!(errors[0], Ok(()));
    assert!(errors[3].as_ref().unwrap_err().contains("rank 3, micro-batch 0, in the loss"), "{errors:?}");
}

#[test]
fn workers_need_a_strategy_with_outer_steps() {
    let row = Row { workers: 2, micro_batches: 1, ..Row::default() };
    let errors = on_mesh(&row.mesh(), |groups| row.engine(groups).err().unwrap());
    assert!(
        errors.iter().all(|error| matches!(error, Error::Model(why) if why.contains("has no outer steps")))
    );
}
