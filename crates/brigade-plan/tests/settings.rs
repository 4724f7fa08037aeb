//! Names of schedules, and what is said of settings that no schedule has.

use brigade_plan::{Pipeline, PipelineScheduleKind, ScheduleError};
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error, StrDeserializer};

fn refused(kind: PipelineScheduleKind, stages: usize, chunks: usize, micro_batches: usize) -> String {
    Pipeline::new(kind, stages, chunks, micro_batches).expect_err("it is refused").to_string()
}

#[test]
fn names_are_read_as_others_write_them() {
    for (kind, spellings) in [
        (PipelineScheduleKind::GPipe, ["gpipe", "GPipe", "GPIPE"]),
        (PipelineScheduleKind::OneFOneB, ["1f1b", "1F1B", "1f1B"]),
        (PipelineScheduleKind::Interleaved, ["interleaved-1f1b", "Interleaved1F1B", "INTERLEAVED_1F1B"]),
        (PipelineScheduleKind::ZbH1, ["zb-h1", "ZB-H1", "ZBH1"]),
        (PipelineScheduleKind::ZbH2, ["zb-h2", "ZB-H2", "zb_h2"]),
        (PipelineScheduleKind::Zbv, ["zbv", "ZB-V", "ZBVZeroBubble"]),
    ] {
        for spelling in spellings {
            assert_eq!(spelling.parse(), Ok(kind), "{spelling}");
            let from: StrDeserializer<'_, Error> = spelling.into_deserializer();
            assert_eq!(PipelineScheduleKind::deserialize(from), Ok(kind), "{spelling}");
        }
        assert_eq!(kind.to_string(), spellings[0]);
        assert_eq!(<&str>::from(kind), spellings[0]);
    }
    assert_eq!(PipelineScheduleKind::default(), PipelineScheduleKind::OneFOneB);
}

#[test]
fn an_unknown_name_is_told_the_known_ones() {
    insta::assert_snapshot!("DualPipeV".parse::<PipelineScheduleKind>().unwrap_err(), @r#"pipeline.schedule (--schedule) is "DualPipeV", which is not a known schedule; allowed are gpipe, 1f1b, interleaved-1f1b, zb-h1, zb-h2 and zbv"#);
}

#[test]
fn wrong_settings_are_told_the_nearest_right_ones() {
    insta::assert_snapshot!(refused(PipelineScheduleKind::OneFOneB, 0, 1, 4), @"mesh.pp (--pp) is 0; at least 1 is needed");
    insta::assert_snapshot!(refused(PipelineScheduleKind::GPipe, 4, 0, 4), @"pipeline.chunks (--chunks) is 0; at least 1 is needed");
    insta::assert_snapshot!(refused(PipelineScheduleKind::GPipe, 4, 1, 0), @"the number of micro-batches (train.global_batch_size / (mesh.dp x train.micro_batch_size)) is 0; at least 1 is needed");
    insta::assert_snapshot!(refused(PipelineScheduleKind::OneFOneB, 4, 2, 4), @"pipeline.chunks (--chunks) is 2, but pipeline.schedule (--schedule) 1f1b runs one chunk a rank: set --chunks 1, or --schedule interleaved-1f1b");
    insta::assert_snapshot!(refused(PipelineScheduleKind::ZbH2, 4, 2, 4), @"pipeline.chunks (--chunks) is 2, but pipeline.schedule (--schedule) zb-h2 runs one chunk a rank: set --chunks 1, or --schedule interleaved-1f1b");
    insta::assert_snapshot!(refused(PipelineScheduleKind::Zbv, 4, 1, 4), @"pipeline.schedule (--schedule) zbv has two chunks a rank, and pipeline.chunks (--chunks) is 1: set --chunks 2, or --schedule zb-h1 --chunks 1");
    insta::assert_snapshot!(refused(PipelineScheduleKind::Interleaved, 4, 1, 4), @"pipeline.schedule (--schedule) interleaved-1f1b needs pipeline.chunks (--chunks) of at least 2, and it is 1: set --chunks 2, or --schedule 1f1b, which is the same over one chunk");
    insta::assert_snapshot!(refused(PipelineScheduleKind::Interleaved, 4, 2, 6), @"pipeline.schedule (--schedule) interleaved-1f1b takes micro-batches in groups of mesh.pp (--pp) = 4, and there are 6 (train.global_batch_size / (mesh.dp x train.micro_batch_size)): make it 4 or 8, or set --schedule 1f1b --chunks 1");
    insta::assert_snapshot!(refused(PipelineScheduleKind::Interleaved, 4, 2, 3), @"pipeline.schedule (--schedule) interleaved-1f1b takes micro-batches in groups of mesh.pp (--pp) = 4, and there are 3 (train.global_batch_size / (mesh.dp x train.micro_batch_size)): make it 4, or set --schedule 1f1b --chunks 1");
    insta::assert_snapshot!(refused(PipelineScheduleKind::GPipe, 4, 1, usize::MAX), @"mesh.pp (--pp) 4 x pipeline.chunks (--chunks) 1 x 18446744073709551615 micro-batches (train.global_batch_size / (mesh.dp x train.micro_batch_size)) is too large a schedule: at most 1024 stages, 1024 chunks and 4194304 tasks in all are possible");
}

#[test]
fn a_backward_costs_something() {
    let pipeline = Pipeline::new(PipelineScheduleKind::OneFOneB, 2, 1, 2).unwrap();
    for ratio in [0.0, -1.0, 1e308, f64::INFINITY] {
        let refused = Err(ScheduleError::BackwardRatio { given: ratio });
        assert_eq!(pipeline.bubble_fraction(ratio), refused);
    }
    insta::assert_snapshot!(pipeline.svg(f64::NAN).unwrap_err(), @"the backward's time (--backward-ratio) is NaN forwards; it must be from 0.001 to 1000, as in 2");
}
