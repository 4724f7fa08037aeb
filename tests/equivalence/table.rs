//! The table: every mesh of up to eight ranks, every ZeRO stage, every schedule, 1 and 4 micro-batches.

use brigade::core::plan::PipelineScheduleKind;
use brigade::core::{Precision, Recompute, Zero};

use crate::mesh::equals_one_process;
use crate::row::{MIXED, Row};

/// The rows of one mesh. Recomputation, uneven targets, clipping and buckets take turns, so that each
/// meets each stage and schedule.
fn rows(pp: usize, dp: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    for stage in 0..4 {
        for (schedule, chunks) in [
            (PipelineScheduleKind::GPipe, 1),
            (PipelineScheduleKind::OneFOneB, 1),
            (PipelineScheduleKind::Interleaved, 2),
            (PipelineScheduleKind::ZbH1, 1),
            (PipelineScheduleKind::ZbH2, 1),
            (PipelineScheduleKind::Zbv, 2),
        ] {
            for (micro_batches, tied) in [(1, false), (1, true), (4, false), (4, true)] {
                let zero = Zero { stage, ..Zero::default() };
                // Interleaving takes micro-batches in groups of pp, and sums want powers of two.
                let micro_batches = match schedule {
                    PipelineScheduleKind::Interleaved if pp == 3 && dp > 1 && stage < 2 => continue,
                    PipelineScheduleKind::Interleaved => micro_batches.max(pp).next_multiple_of(pp),
                    // One micro-batch has all halves one after the other, so a mesh of two stages will do.
                    _ if schedule.splits_backward() && micro_batches == 1 && pp != 2 => continue,
                    _ => micro_batches,
                };
                let turn = rows.len() / 2 + stage as usize + pp;
                rows.push(Row {
                    pp,
                    dp,
                    micro_batches,
                    layers: 6,
                    zero,
                    schedule,
                    chunks,
                    tied,
                    recompute: if turn % 3 == 1 { Recompute::Every(1) } else { Recompute::None },
                    masked: turn % 4 < 2,
                    dropout: if turn % 7 == 3 { 0.1 } else { 0.0 },
                    clipping: turn.is_multiple_of(5).then_some(0.05),
                    bucket_bytes: [0, 10_000, 1 << 20][turn / 3 % 3],
                    ..Row::default()
                });
            }
        }
    }
    rows
}

macro_rules! meshes {
    ($($name:ident: $pp:literal x $dp:literal),* $(,)?) => {
        $(#[test]
        fn $name() {
            for row in rows($pp, $dp) {
                equals_one_process(&row);
            }
        })*
    };
}

meshes! {
    pp1_dp1: 1 x 1,
    pp1_dp2: 1 x 2,
    pp1_dp3: 1 x 3,
    pp1_dp4: 1 x 4,
    pp2_dp1: 2 x 1,
    pp2_dp2: 2 x 2,
    pp2_dp3: 2 x 3,
    pp2_dp4: 2 x 4,
    pp3_dp1: 3 x 1,
    pp3_dp2: 3 x 2,
    pp4_dp1: 4 x 1,
    pp4_dp2: 4 x 2,
}

/// Where operations leave a part of the backward for its second half, and where they are Burn's and leave nothing.
#[test]
fn backwards_in_halves_with_and_without_fused_operations() {
    let kinds = PipelineScheduleKind::ALL.into_iter().filter(|kind| kind.splits_backward());
    for (turn, schedule) in kinds.enumerate() {
        let chunks = if schedule == PipelineScheduleKind::Zbv { 2 } else { 1 };
        for stage in 0..4 {
            for recompute in [Recompute::None, Recompute::Every(1)] {
                for (fused, precision) in
                    [(true, Precision::default()), (false, Precision::default()), (true, MIXED)]
                {
                    let (zero, tied) = (Zero { stage, ..Zero::default() }, (turn + stage as usize) % 2 == 1);
                    let row = Row { pp: 2, dp: 2, micro_batches: 4, layers: 6, tied, ..Row::default() };
                    equals_one_process(&Row { zero, schedule, chunks, recompute, fused, precision, ..row });
                }
            }
        }
    }
}

#[test]
fn the_table_has_every_combination() {
    let rows: Vec<_> =
        (1..=4).flat_map(|pp| (1..=4).map(move |dp| (pp, dp))).filter(|(pp, dp)| pp * dp <= 8).collect();
    assert_eq!(rows.len(), 12, "meshes of up to eight ranks, at most four along an axis");
    let rows: Vec<Row> = rows.into_iter().flat_map(|(pp, dp)| super::table::rows(pp, dp)).collect();
    for stage in 0..4 {
        for schedule in PipelineScheduleKind::ALL {
            let of = |tied: bool, again: bool| {
                let found = |row: &&Row| {
                    row.zero.stage == stage
                        && row.schedule == schedule
                        && row.tied == tied
                        && (row.recompute == Recompute::None) != again
                };
                rows.iter().filter(found).count()
            };
            for (tied, again) in [(false, false), (false, true), (true, false), (true, true)] {
                assert!(of(tied, again) > 0, "{stage} {schedule} tied {tied} again {again}");
            }
        }
    }
}
