//! A third axis: replicas of the ranks that shard (hybrid sharding).

use std::sync::Arc;

use brigade::core::plan::PipelineScheduleKind;
use brigade::core::{CollectiveKind, Recompute, ReduceEvery, Synchronous, Zero};

use crate::mesh::{equals_one_process, on_mesh};
use crate::resume::every_row_goes_on_from_every_row;
use crate::row::{MIXED, Row};

/// Rows with every stage of ZeRO on a mesh of three axes.
fn rows(pp: usize, replicate: usize, dp: usize) -> Vec<Row> {
    let row = |stage| {
        let zero = Zero { stage, ..Zero::default() };
        Row { pp, replicate, dp, micro_batches: 2, zero, ..Row::default() }
    };
    (0..=3).map(row).collect()
}

#[test]
fn replicas_of_shards_equal_one_process() {
    for (pp, replicate, dp) in [(1, 1, 2), (1, 2, 1), (1, 2, 2), (2, 2, 2), (1, 4, 2), (1, 2, 4)] {
        rows(pp, replicate, dp).iter().for_each(|row| drop(equals_one_process(row)));
    }
}

#[test]
fn replicas_with_everything_else() {
    for row in rows(1, 2, 2).into_iter().chain(rows(2, 2, 2)) {
        let summed_once = Zero { reduce_every: ReduceEvery::Step, ..row.zero };
        equals_one_process(&Row { zero: summed_once, clipping: Some(0.05), masked: true, ..row.clone() });
        equals_one_process(&Row { tied: true, recompute: Recompute::Every(1), ..row.clone() });
        equals_one_process(&Row { precision: MIXED, offload: true, ..row.clone() });
        if row.pp == 2 {
            let schedule = PipelineScheduleKind::Interleaved;
            equals_one_process(&Row { schedule, chunks: 2, layers: 4, ..row.clone() });
        }
        equals_one_process(&Row { strategy: Arc::new(Synchronous { every: 2 }), steps: 4, ..row });
    }
}

#[test]
fn every_mesh_of_three_axes_goes_on_from_every_other() {
    let meshes = [(1, 1, 1, 0), (1, 2, 2, 3), (2, 2, 1, 0), (1, 2, 2, 1), (1, 1, 4, 2), (2, 1, 2, 3)];
    let row = |(pp, replicate, dp, stage)| Row {
        pp,
        replicate,
        dp,
        micro_batches: 4 / (replicate * dp),
        zero: Zero { stage, ..Zero::default() },
        ..Row::default()
    };
    every_row_goes_on_from_every_row(&meshes.map(row));
}

/// What a rank sends to its replicas and to those that it shares shards with.
#[test]
fn replicas_are_told_of_a_shard_once_a_step() {
    let zero = Zero { stage: 3, ..Zero::default() };
    let row = Row { replicate: 2, dp: 2, micro_batches: 4, zero, ..Row::default() };
    let units = 5;
    for report in on_mesh(&row.mesh(), |groups| row.run(groups).reports.pop().unwrap()) {
        let calls = |kind| report.traffic.get(&kind).map_or(0, |(calls, _)| *calls);
        assert_eq!(
            calls(CollectiveKind::ReduceScatter),
            4 * units,
            "each micro-batch's gradients, over the shards"
        );
        assert_eq!(calls(CollectiveKind::AllReduce), units, "the sums, over the replicas");
    }
}
