//! Strategies: steps without an update, and a reduction of one's own whose state is saved.

use std::ops::Range;
use std::sync::Arc;

use brigade::core::{
    Bytes, Clock, DataParallel, Error, FlatState, Groups, NonFinite, ReduceEvery, ReducedUnit, Reduction,
    ReductionState, Result, SavedState, Strategy, Synchronous, Zero,
};
use burn::tensor::{FloatDType, Tensor};

use crate::mesh::{equals_one_process, on_mesh, same_bits};
use crate::resume::every_row_goes_on_from_every_row;
use crate::row::{MIXED, Row};

/// Meshes with every stage of ZeRO, and the micro-batches of a step divided among their ranks.
fn rows(base: &Row) -> Vec<Row> {
    let meshes = [(1, 1, 0), (1, 2, 0), (1, 4, 1), (1, 2, 2), (2, 2, 3), (3, 1, 0), (1, 4, 3)];
    let row = |(pp, dp, stage)| Row {
        pp,
        dp,
        micro_batches: 4 / dp,
        zero: Zero { stage, ..Zero::default() },
        ..base.clone()
    };
    meshes.into_iter().map(row).collect()
}

fn every(steps: usize) -> Arc<dyn Strategy> {
    Arc::new(Synchronous { every: steps })
}

#[test]
fn steps_without_an_update_equal_one_process() {
    for steps in [2, 4] {
        let base =
            Row { strategy: every(steps), steps: 8, masked: true, clipping: Some(0.3), ..Row::default() };
        for row in rows(&base) {
            equals_one_process(&row);
            equals_one_process(&Row {
                zero: Zero { reduce_every: ReduceEvery::Step, ..row.zero },
                tied: true,
                precision: MIXED,
                ..row
            });
        }
    }
}

#[test]
fn several_steps_make_the_update_of_one_with_all_their_micro_batches() {
    let plain = Row { micro_batches: 8, masked: true, ..Row::default() };
    let added_up = Row { micro_batches: 2, strategy: every(4), steps: 4 * plain.steps, ..plain.clone() };
    let [whole, parts] = [&plain, &added_up].map(|row| row.run(Groups::single_rank()));
    assert_eq!(whole.reports.len(), parts.reports.len());
    for (whole, parts) in whole.reports.iter().zip(&parts.reports) {
        assert_eq!((whole.targets, parts.step), (parts.targets, 4 * whole.step));
        assert!((whole.loss - parts.loss).abs() < 1e-5 && (whole.grad_norm - parts.grad_norm).abs() < 1e-5);
    }
    for (whole, parts) in whole.weights.iter().zip(&parts.weights) {
        let [whole, parts] = [whole, parts].map(|tensor| tensor.data.as_slice::<f32>().unwrap());
        assert!(whole.iter().zip(parts).all(|(a, b)| (a - b).abs() < 1e-4));
    }
}

#[test]
fn nothing_is_sent_before_an_update() {
    for (stage, reduce_every) in
        [(0, ReduceEvery::MicroBatch), (1, ReduceEvery::MicroBatch), (2, ReduceEvery::Step)]
    {
        let zero = Zero { stage, reduce_every, ..Zero::default() };
        let row = Row { dp: 2, zero, strategy: every(3), ..Row::default() };
        on_mesh(&row.mesh(), |groups| {
            let mut engine = row.engine(groups.clone()).unwrap();
            let before = groups.traffic();
            for step in 0..2 {
                assert!(row.step(&mut engine, step, &groups).is_none());
                assert_eq!(groups.traffic(), before);
            }
            assert!(row.step(&mut engine, 2, &groups).is_some());
            assert_ne!(groups.traffic(), before);
        });
    }
}

#[test]
fn a_step_of_the_other_kind_is_an_error() {
    let row = Row { strategy: every(2), ..Row::default() };
    let groups = Groups::single_rank();
    let mut engine = row.engine(groups.clone()).unwrap();
    let told = engine.step(row.batches(0, &groups), 1e-2).unwrap_err().to_string();
    assert!(told.contains("step 1 makes no update") && told.contains("Engine::accumulate"), "{told}");
    engine.accumulate(row.batches(0, &groups)).unwrap();
    let told = engine.accumulate(row.batches(1, &groups)).unwrap_err().to_string();
    assert!(told.contains("step 2 makes an update"), "{told}");
    let mut fewer = row.batches(1, &groups);
    fewer.pop();
    let told = engine.step(fewer, 1e-2).unwrap_err().to_string();
    assert!(told.contains("had 4"), "{told}");
}

#[test]
fn a_run_with_steps_without_an_update_goes_on_on_any_mesh() {
    let rows: Vec<Row> = rows(&Row { strategy: every(2), ..Row::default() }).into_iter().step_by(2).collect();
    every_row_goes_on_from_every_row(&rows);
}

/// Rounds reduced gradients to bf16, and adds what is lost to those of the next update (error feedback: Seide et al., "1-bit
/// stochastic gradient descent", 2014).
#[derive(Debug)]
struct Rounding;

impl Strategy for Rounding {
    fn synchronizes(&self, _: u64) -> bool {
        true
    }
    fn period(&self) -> usize {
        1
    }
    fn reduction(&self, units: Vec<ReducedUnit>, data: DataParallel) -> Box<dyn Reduction> {
        let lost: Vec<_> = units.iter().map(|_| None).collect();
        let own = units.iter().map(|unit| unit.own.clone()).collect();
        let inner = Synchronous::default().reduction(units, data);
        Box::new(RoundingReduction { inner, own, next: lost.clone(), lost })
    }
}

struct RoundingReduction {
    inner: Box<dyn Reduction>,
    own: Vec<Range<usize>>,
    lost: Vec<Option<Tensor<1>>>,
    /// What is lost if the gradients make an update.
    next: Vec<Option<Tensor<1>>>,
}

impl Reduction for RoundingReduction {
    fn add(&mut self, unit: usize, gradient: Tensor<1>, clock: &mut Clock) -> Result<()> {
        self.inner.add(unit, gradient, clock)
    }
    fn complete(&mut self, unit: usize) {
        self.inner.complete(unit);
    }
    fn finish(&mut self, clock: &mut Clock) -> Result<Vec<Option<Tensor<1>>>> {
        let mut rounded = self.inner.finish(clock)?;
        for ((gradient, lost), next) in rounded.iter_mut().zip(&self.lost).zip(&mut self.next) {
            let Some(exact) = gradient.take() else { continue };
            let exact = lost.iter().fold(exact, |exact, lost| exact + lost.clone());
            let result = exact.clone().cast(FloatDType::BF16).cast(FloatDType::F32);
            *next = Some(exact - result.clone());
            *gradient = Some(result);
        }
        Ok(rounded)
    }
    fn commit(&mut self, updates: bool) {
        if updates {
            self.lost = self.next.clone();
        }
    }
    fn reset(&mut self) {
        self.inner.reset();
    }
    fn bytes(&self) -> Bytes {
        self.inner.bytes()
    }
    fn state(&self, unit: usize, share: Range<usize>) -> ReductionState {
        let start = self.own[unit].start;
        let Some(lost) = self.lost[unit].clone() else { return ReductionState::default() };
        let piece = (!share.is_empty()).then(|| {
            let lost = lost.slice(share.start - start..share.end - start);
            (share.start, Box::new(Lost(lost)) as Box<dyn FlatState>)
        });
        ReductionState { arrays: vec!["lost".to_owned()], pieces: piece.into_iter().collect() }
    }
    fn restore(&mut self, unit: usize, saved: &SavedState) -> Result<()> {
        let lost = saved.slots.get("lost").ok_or_else(|| Error::State("nothing was lost".into()))?;
        let mut lost = lost.clone();
        lost.resize(self.own[unit].len(), 0.0);
        self.lost[unit] = Some(Tensor::from_floats(lost.as_slice(), &brigade_cpu::device()));
        Ok(())
    }
}

struct Lost(Tensor<1>);

impl FlatState for Lost {
    fn bytes(&self) -> u64 {
        4 * self.0.dims()[0] as u64
    }
    fn read(self: Box<Self>) -> Result<SavedState> {
        let lost = self.0.try_into_vec_as::<f32>().unwrap();
        Ok(SavedState { slots: [("lost".to_owned(), lost)].into(), scalars: [].into() })
    }
}

#[test]
fn a_strategy_of_ones_own_keeps_its_state_on_any_mesh() {
    let base = Row { strategy: Arc::new(Rounding), ..Row::default() };
    let rows = rows(&base);
    rows.iter().for_each(|row| drop(equals_one_process(row)));
    every_row_goes_on_from_every_row(&rows[..5]);
    let [rounded, exact] = [&base, &Row::default()].map(|row| row.run(Groups::single_rank()).weights);
    assert!(rounded.iter().zip(&exact).any(|(a, b)| a.data != b.data), "it does something");
    same_bits(&rounded, &base.run(Groups::single_rank()).weights, "twice");
}

#[test]
fn state_of_another_strategy_is_refused() {
    let base = Row { strategy: Arc::new(Rounding), ..Row::default() };
    let mut engine = base.engine(Groups::single_rank()).unwrap();
    engine.step(base.batches(0, &Groups::single_rank()), 1e-2).unwrap();
    let saved = crate::resume::Saved::of(vec![crate::resume::snapshot(&engine)]);
    let mut plain = Row::default().engine(Groups::single_rank()).unwrap();
    let told = plain.restore(1, &mut &saved).unwrap_err().to_string();
    assert!(told.contains("the checkpoint has `lost`, which only the compression"), "{told}");
}

#[test]
fn a_skipped_step_changes_no_state_of_a_strategy() {
    let row =
        Row { strategy: Arc::new(Rounding), on_nonfinite: NonFinite::Skip, masked: true, ..Row::default() };
    let groups = Groups::single_rank();
    let [mut skipping, mut plain] = [0; 2].map(|_| row.engine(groups.clone()).unwrap());
    skipping.step(row.batches(0, &groups), 1e-2).unwrap();
    plain.step(row.batches(0, &groups), 1e-2).unwrap();
    let mut bad = row.batches(1, &groups);
    bad[1].target.mask = bad[1].target.mask.take().map(|mask| mask * f32::INFINITY);
    assert!(skipping.step(bad, 1e-2).unwrap().skipped);
    for step in 2..4 {
        let [a, b] =
            [&mut skipping, &mut plain].map(|engine| engine.step(row.batches(step, &groups), 1e-2).unwrap());
        assert_eq!(a.loss.to_bits(), b.loss.to_bits());
    }
    same_bits(&skipping.tensors(0).unwrap(), &plain.tensors(0).unwrap(), "weights");
}

#[test]
fn gradients_between_updates_are_those_of_their_batches() {
    let [plain, added_up] =
        [every(1), every(2)].map(|strategy| Row { strategy, masked: true, ..Row::default() });
    let groups = Groups::single_rank();
    let batches = plain.batches(3, &groups);
    let mut engines = [&plain, &added_up].map(|row| row.engine(groups.clone()).unwrap());
    engines[1].accumulate(batches.clone()).unwrap();
    let [(loss, exact), (same, divided)] =
        engines.each_mut().map(|engine| engine.gradients(&batches, 0).unwrap());
    assert!((loss - same).abs() < 1e-6);
    assert_eq!(exact.len(), divided.len());
    for (exact, divided) in exact.iter().zip(&divided) {
        let [exact, divided] = [exact, divided].map(|tensor| tensor.data.as_slice::<f32>().unwrap());
        assert!(exact.iter().zip(divided).all(|(a, b)| (a - b).abs() <= 1e-5 * (1.0 + a.abs())));
    }
}

#[test]
fn no_state_is_saved_or_taken_back_between_updates() {
    let row = Row { strategy: every(2), ..Row::default() };
    let groups = Groups::single_rank();
    let mut engine = row.engine(groups.clone()).unwrap();
    let saved = crate::resume::Saved::of(vec![crate::resume::snapshot(&engine)]);
    engine.accumulate(row.batches(0, &groups)).unwrap();
    let told = engine.snapshot().err().unwrap().to_string();
    assert!(told.contains("step 1 made no update"), "{told}");
    let told = engine.restore(3, &mut &saved).unwrap_err().to_string();
    assert!(told.contains("a multiple of 2"), "{told}");
}

#[test]
fn after_a_step_that_failed_the_next_update_begins_anew() {
    let row = Row { strategy: every(3), ..Row::default() };
    let groups = Groups::single_rank();
    let [mut failed, mut plain] = [0; 2].map(|_| row.engine(groups.clone()).unwrap());
    failed.accumulate(row.batches(0, &groups)).unwrap();
    assert!(failed.accumulate(Vec::new()).is_err());
    for step in 0..3 {
        let [a, b] = [&mut failed, &mut plain].map(|engine| row.step(engine, step, &groups));
        assert_eq!(a.is_some(), b.is_some());
    }
    same_bits(&failed.tensors(0).unwrap(), &plain.tensors(0).unwrap(), "weights");
}
