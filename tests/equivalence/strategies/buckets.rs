//! Gradients that travel together.

use brigade::core::compress::{Compression, Method};
use brigade::core::{CollectiveKind, Fragments, OuterDtype, ReduceEvery, Zero};

use super::compressed::compressed;
use super::local_updates::streaming;
use crate::mesh::{equals_one_process, on_mesh, same_bits};
use crate::row::Row;

const LARGE: usize = 1 << 20;

/// Calls of a kind that a rank makes in a step.
fn calls(row: &Row, kind: CollectiveKind) -> u64 {
    let outcomes = on_mesh(&row.mesh(), |groups| row.run(groups));
    outcomes[0].reports[1].traffic.get(&kind).map_or(0, |(calls, _)| *calls)
}

#[test]
fn all_units_of_a_step_travel_together() {
    let units = 5;
    let once = |stage| Zero { stage, reduce_every: ReduceEvery::Step, ..Zero::default() };
    let base = Row { dp: 2, micro_batches: 2, ..Row::default() };
    for (zero, kind) in [
        (once(0), CollectiveKind::AllReduce),
        (once(1), CollectiveKind::ReduceScatter),
        (once(1), CollectiveKind::AllGather),
        (once(3), CollectiveKind::ReduceScatter),
    ] {
        let row = Row { zero, ..base.clone() };
        let bucketed = |bucket_bytes| Row { bucket_bytes, ..row.clone() };
        let counted = [&row, &bucketed(LARGE), &bucketed(1)].map(|row| calls(row, kind));
        assert_eq!(counted, [units, 1, units], "{kind:?} of {row:?}");
    }
    for method in [Method::Int8, Method::TopK] {
        let row = compressed(Compression { method, ..Compression::default() }, base.clone());
        let bucketed = Row { bucket_bytes: LARGE, ..row.clone() };
        for kind in [CollectiveKind::AllToAll, CollectiveKind::AllGather] {
            assert_eq!((calls(&row, kind), calls(&bucketed, kind)), (units, 1), "{kind:?} of {row:?}");
        }
    }
}

/// Outer steps of all units at once, and of one fragment after the other while training continues.
#[test]
fn outer_steps_in_buckets_have_the_same_bits() {
    let parts = Fragments { count: 3, overlap: 1, mixing: 0.5 };
    for (fragments, dtype) in [
        (None, OuterDtype::F32),
        (None, OuterDtype::Int8),
        (Some(parts), OuterDtype::F32),
        (Some(parts), OuterDtype::Int8),
    ] {
        let strategy = streaming(6, dtype, fragments);
        let row = Row { workers: 2, micro_batches: 1, strategy, steps: 12, ..Row::default() };
        let bucketed = Row { bucket_bytes: LARGE, ..row.clone() };
        let [plain, bucketed] = [&row, &bucketed].map(|row| on_mesh(&row.mesh(), |groups| row.run(groups)));
        same_bits(&bucketed[0].weights, &plain[0].weights, &format!("{row:?}"));
    }
}

#[test]
fn buckets_of_any_size_change_no_bit() {
    for stage in 0..4 {
        for replicate in [1, 2] {
            for bucket_bytes in [1, 3000, 20_000, LARGE] {
                for reduce_every in [ReduceEvery::MicroBatch, ReduceEvery::Step] {
                    let zero = Zero { stage, reduce_every, ..Zero::default() };
                    let row = Row { dp: 2, micro_batches: 2, tied: true, ..Row::default() };
                    equals_one_process(&Row { replicate, zero, bucket_bytes, ..row });
                }
            }
        }
    }
}
