//! Workers in worlds of their own: beside workers of one world, and one that continues with another's state.

use std::sync::Arc;

use brigade::checkpoints::{UnitMetadata, WriteItem};
use brigade::core::{
    BoxError, Collectives, Groups, NamedTensor, OuterDtype, SingleRankGroup, StateReader, StepReport,
    WORKERS, Zero,
};

use crate::mesh::{on_mesh, same_bits};
use crate::resume::train;
use crate::row::{Gpt, MIXED, RATE, Row};
use crate::strategies::local_updates::{averaging, diloco, rows, run};

const INNER_STEPS: u64 = 2;

/// Makes a step of the worker that `own` is, from its part of the batch of `all` workers.
fn step(
    (row, groups): (&Row, &Groups),
    engine: &mut Gpt,
    step: u64,
    workers: &Arc<dyn Collectives>,
) -> Option<StepReport> {
    engine.inner_step(row.batches(step, groups), RATE).unwrap();
    (step + 1).is_multiple_of(INNER_STEPS).then(|| {
        // Sums that come to nothing, as when a worker is lost, change nothing.
        drop(engine.outer_sums(workers).unwrap());
        let sums = engine.outer_sums(workers).unwrap();
        engine.outer_step(sums).unwrap()
    })
}

fn weights(engine: &Gpt, groups: &Groups) -> Vec<NamedTensor> {
    let tensors = (0..groups.world().size()).map(|root| engine.tensors(root).unwrap()).collect::<Vec<_>>();
    tensors.into_iter().nth(groups.world().rank()).unwrap()
}

#[test]
fn workers_in_worlds_of_their_own_take_the_steps_of_workers_in_one() {
    let base = Row {
        strategy: diloco(INNER_STEPS, OuterDtype::F32),
        steps: 4,
        dropout: 0.1,
        masked: true,
        clipping: Some(0.3),
        ..Row::default()
    };
    let averaged = Row { strategy: averaging(INNER_STEPS), tied: true, ..base.clone() };
    let mixed = Row { strategy: diloco(INNER_STEPS, OuterDtype::Bf16), precision: MIXED, ..averaged.clone() };
    for row in [rows(&base), rows(&averaged), rows(&mixed)].concat() {
        let together = run(&row);
        let apart = on_mesh(&row.mesh(), |groups| {
            let (workers, inside) = (groups.over(&[WORKERS]), groups.without(WORKERS));
            let own = Row { worker: Some(workers.rank()), ..row.clone() };
            let mut engine = own.engine(inside.clone()).unwrap();
            let reports: Vec<StepReport> =
                (0..row.steps).filter_map(|s| step((&row, &groups), &mut engine, s, &workers)).collect();
            (reports, weights(&engine, &inside))
        });
        for (rank, (together, apart)) in together.iter().zip(&apart).enumerate() {
            let what = format!("rank {rank} of {row:?}");
            same_bits(&apart.1, &together.1, &what);
            for (a, b) in apart.0.iter().zip(&together.0) {
                assert_eq!((a.step, a.targets, a.skipped), (b.step, b.targets, b.skipped), "{what}");
                assert_eq!(a.loss.to_bits(), b.loss.to_bits(), "loss on {what}");
                assert_eq!(a.metrics, b.metrics, "{what}");
                let outer = a.outer.unwrap();
                assert_eq!(outer.workers, 2, "{what}");
                let sent: u64 = a.traffic.values().map(|(_, bytes)| bytes).sum();
                let is_alone = row.pp * row.dp == 1;
                assert!(outer.sent > 0 && sent >= outer.sent, "{sent} bytes, and {outer:?} on {what}");
                assert_eq!(sent == outer.sent, is_alone, "inside of a worker, on {what}");
            }
        }
    }
}

/// Each takes its inner state from what the workers of one world saved.
#[test]
fn workers_in_worlds_of_their_own_continue_what_workers_in_one_began() {
    let base =
        Row { strategy: diloco(INNER_STEPS, OuterDtype::F32), steps: 4, dropout: 0.1, ..Row::default() };
    for row in rows(&base) {
        let (_, saved) = train(&row, None, 0..2);
        let (together, _) = train(&row, Some(&saved), 2..4);
        let apart = on_mesh(&row.mesh(), |groups| {
            let (workers, inside) = (groups.over(&[WORKERS]), groups.without(WORKERS));
            let own = Row { worker: Some(workers.rank()), ..row.clone() };
            let mut engine = own.engine(inside.clone()).unwrap();
            engine.restore(2, &mut &saved).unwrap();
            (2..4).for_each(|s| drop(step((&row, &groups), &mut engine, s, &workers)));
            engine.tensors(0).unwrap()
        });
        same_bits(&apart[0], &together, &format!("{row:?}"));
    }
}

/// What a rank has, as another one reads it.
struct Held(Vec<UnitMetadata>, Vec<WriteItem>);

impl StateReader for Held {
    fn units(&self) -> &[UnitMetadata] {
        &self.0
    }

    fn read(&mut self, unit: &str, slot: &str, start: usize, values: &mut [f32]) -> Result<(), BoxError> {
        let found = |item: &&WriteItem| item.unit == unit && item.slot == slot;
        let item = self.1.iter().find(found).ok_or("no such slot")?;
        let first = start.checked_sub(item.start).ok_or("before it")?;
        values.copy_from_slice(item.values.get(first..first + values.len()).ok_or("after it")?);
        Ok(())
    }
}

#[test]
fn one_that_takes_over_anothers_state_continues_with_its_bits() {
    let base = Row {
        strategy: diloco(INNER_STEPS, OuterDtype::F32),
        micro_batches: 2,
        tied: true,
        ..Row::default()
    };
    let meshes = [(1, 1, 0), (1, 2, 0), (1, 2, 1), (2, 1, 0), (2, 2, 3), (1, 4, 2), (2, 2, 1)];
    let alone: Arc<dyn Collectives> = Arc::new(SingleRankGroup);
    for (pp, dp, stage) in meshes {
        for (precision, offload) in [(base.precision, false), (MIXED, true)] {
            let zero = Zero { stage, ..Zero::default() };
            let row = Row { pp, dp, zero, precision, offload, worker: Some(0), ..base.clone() };
            let go_on = |engine: &mut Gpt, groups: &Groups| {
                (4..8).for_each(|s| drop(step((&row, groups), engine, s, &alone)));
                weights(engine, groups)
            };
            let ahead = on_mesh(&row.mesh(), |groups| {
                let mut engine = row.engine(groups.clone()).unwrap();
                (0..4).for_each(|s| drop(step((&row, &groups), &mut engine, s, &alone)));
                let held = engine.replica().unwrap();
                (held, go_on(&mut engine, &groups))
            });
            let behind = on_mesh(&row.mesh(), |groups| {
                let mut engine = row.engine(groups.clone()).unwrap();
                // What it had before does not matter, even if it had not met the others since.
                (70..73).for_each(|s| engine.inner_step(row.batches(s, &groups), RATE).unwrap());
                let (units, items) = ahead[groups.world().rank()].0.clone();
                engine.restore_replica(4, &mut Held(units, items)).unwrap();
                go_on(&mut engine, &groups)
            });
            for (rank, (ahead, behind)) in ahead.iter().zip(&behind).enumerate() {
                same_bits(behind, &ahead.1, &format!("rank {rank} of {row:?}"));
            }
        }
    }
}
