//! What must hold of every schedule, over every shape up to 16 stages, 4 chunks and 64 micro-batches.

use brigade_plan::{Action, Pipeline, PipelineScheduleKind, formula};
use proptest::prelude::*;

const STAGES: usize = 16;
const CHUNKS: usize = 4;
const MICRO_BATCHES: usize = 64;

/// Every training schedule up to the bounds.
fn schedules() -> impl Iterator<Item = (PipelineScheduleKind, Pipeline)> {
    let shapes = (1..=STAGES).flat_map(|stages| (1..=MICRO_BATCHES).map(move |batches| (stages, batches)));
    shapes.flat_map(|(stages, batches)| {
        let plain = [(PipelineScheduleKind::GPipe, 1), (PipelineScheduleKind::OneFOneB, 1)];
        let most = if batches.is_multiple_of(stages) { CHUNKS } else { 1 };
        let interleaved = (2..=most).map(|chunks| (PipelineScheduleKind::Interleaved, chunks));
        let pipeline = move |(kind, chunks)| {
            (kind, Pipeline::new(kind, stages, chunks, batches).expect("it is allowed"))
        };
        plain.into_iter().chain(interleaved).map(pipeline)
    })
}

fn shape(pipeline: &Pipeline) -> String {
    let Pipeline { stages, chunks, micro_batches, .. } = pipeline;
    format!("{:?}, {stages} stages, {chunks} chunks, {micro_batches} micro-batches", pipeline.kind())
}

fn formula_bubble(pipeline: &Pipeline) -> f64 {
    formula::bubble_fraction(pipeline.stages, pipeline.chunks, pipeline.micro_batches)
}

/// The largest number of receives that a rank has posted and not used.
fn most_posted(pipeline: &Pipeline, rank: usize) -> usize {
    let last = pipeline.virtual_stages() - 1;
    let (mut posted, mut most) = (0, 0);
    for action in pipeline.actions(rank) {
        match action {
            Action::Receive { .. } => posted += 1,
            Action::Forward(task) => {
                posted -= usize::from(pipeline.stages > 1 && pipeline.virtual_stage(rank, task.chunk) > 0)
            }
            Action::Backward(task) => {
                posted -= usize::from(pipeline.stages > 1 && pipeline.virtual_stage(rank, task.chunk) < last)
            }
            _ => {}
        }
        most = most.max(posted);
    }
    assert_eq!(posted, 0, "{}: receives are left", shape(pipeline));
    most
}

/// Completeness, dependencies, matching messages, the order of backwards, reductions, and no deadlock
/// where sends block: see [`Pipeline::check`], whose own tests show that it finds what is wrong.
#[test]
fn every_schedule_passes_the_checks() {
    let mut count = 0;
    for (_, pipeline) in schedules() {
        pipeline.check().unwrap_or_else(|error| panic!("{}: {error}", shape(&pipeline)));
        count += 1;
    }
    assert!(count > 2_000);
}

#[test]
fn few_receives_are_posted_ahead() {
    for (_, pipeline) in schedules() {
        for rank in 0..pipeline.stages {
            let most = most_posted(&pipeline, rank);
            assert!(most <= Pipeline::MOST_POSTED, "{}, rank {rank}: {most}", shape(&pipeline));
        }
    }
}

#[test]
fn the_bubble_is_the_formulas() {
    for (_, pipeline) in schedules() {
        let (measured, formula) = (pipeline.bubble_fraction(2.0).unwrap(), formula_bubble(&pipeline));
        assert!((measured - formula).abs() < 1e-9, "{}: {measured}, by formula {formula}", shape(&pipeline));
    }
}

#[test]
fn the_peak_is_the_formulas() {
    for (kind, pipeline) in schedules() {
        let Pipeline { stages, chunks, micro_batches, .. } = pipeline;
        for rank in 0..stages {
            let formula = formula::peak_in_flight(kind, stages, chunks, micro_batches, rank);
            assert_eq!(pipeline.peak_in_flight(rank), formula, "{}, rank {rank}", shape(&pipeline));
        }
        assert_eq!(formula::peak_in_flight(kind, stages, chunks, micro_batches, stages), 0);
    }
}

#[test]
fn evaluation_pipelines_any_number_of_micro_batches() {
    for stages in 1..=STAGES {
        for chunks in 1..=CHUNKS {
            for micro_batches in 0..=MICRO_BATCHES {
                let pipeline = Pipeline::forward_only(stages, chunks, micro_batches);
                pipeline.check().unwrap_or_else(|error| panic!("{}: {error}", shape(&pipeline)));
                let (measured, formula) = (pipeline.bubble_fraction(2.0).unwrap(), formula_bubble(&pipeline));
                let full = chunks == 1 || micro_batches % stages == 0;
                assert!(!full || (measured - formula).abs() < 1e-9, "{}: {measured}", shape(&pipeline));
                for rank in 0..stages {
                    assert_eq!(pipeline.peak_in_flight(rank), 0);
                    assert!(most_posted(&pipeline, rank) <= Pipeline::MOST_POSTED);
                    let trains = |action: &Action| {
                        !matches!(action, Action::Forward(_) | Action::Send { .. } | Action::Receive { .. })
                    };
                    assert!(!pipeline.actions(rank).iter().any(trains), "{}", shape(&pipeline));
                }
            }
        }
    }
}

#[test]
fn a_pipeline_of_one_rank_exchanges_nothing() {
    for (kind, chunks) in [
        (PipelineScheduleKind::GPipe, 1),
        (PipelineScheduleKind::OneFOneB, 1),
        (PipelineScheduleKind::Interleaved, 3),
    ] {
        let pipeline = Pipeline::new(kind, 1, chunks, 4).unwrap();
        let transfer = |action: &Action| matches!(action, Action::Send { .. } | Action::Receive { .. });
        assert!(!pipeline.actions(0).iter().any(transfer), "{kind}");
        assert_eq!(pipeline.bubble_fraction(2.0), Ok(0.0));
    }
}

#[test]
fn there_is_nothing_outside_the_pipeline() {
    let pipeline = Pipeline::forward_only(2, 1, 3);
    assert!(pipeline.actions(2).is_empty());
    assert_eq!(pipeline.peak_in_flight(2), 0);
    assert_eq!(Pipeline::forward_only(0, 1, 3).bubble_fraction(1.0), Ok(0.0));
    assert_eq!(Pipeline::forward_only(2, 0, 3).bubble_fraction(1.0), Ok(0.0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Beyond the bounds too, and however long a backward takes.
    #[test]
    fn larger_pipelines_hold_it_too(
        stages in 1_usize..=40,
        chunks in 2_usize..=8,
        groups in 1_usize..=6,
        batches in 1_usize..=150,
        ratio in 0.2..5.0,
    ) {
        for (kind, chunks, micro_batches) in [
            (PipelineScheduleKind::GPipe, 1, batches),
            (PipelineScheduleKind::OneFOneB, 1, batches),
            (PipelineScheduleKind::Interleaved, chunks, groups * stages),
        ] {
            let pipeline = Pipeline::new(kind, stages, chunks, micro_batches).unwrap();
            prop_assert_eq!(pipeline.check(), Ok(()));
            let measured = pipeline.bubble_fraction(ratio).unwrap();
            prop_assert!((measured - formula_bubble(&pipeline)).abs() < 1e-9, "{}: {}", shape(&pipeline), measured);
        }
    }
}
