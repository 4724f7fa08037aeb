//! What must hold of every schedule, over every shape up to 16 stages, 4 chunks and 64 micro-batches.

use brigade_plan::{Action, Pipeline, PipelineScheduleKind, Placement, Stage, formula};
use proptest::prelude::*;

const STAGES: usize = 16;
const CHUNKS: usize = 4;
const MICRO_BATCHES: usize = 64;

/// Every training schedule up to the bounds.
fn schedules() -> impl Iterator<Item = (PipelineScheduleKind, Pipeline)> {
    let shapes = (1..=STAGES).flat_map(|stages| (1..=MICRO_BATCHES).map(move |batches| (stages, batches)));
    shapes.flat_map(|(stages, batches)| {
        let plain = [
            (PipelineScheduleKind::GPipe, 1),
            (PipelineScheduleKind::OneFOneB, 1),
            (PipelineScheduleKind::ZbH1, 1),
            (PipelineScheduleKind::ZbH2, 1),
            (PipelineScheduleKind::Zbv, 2),
        ];
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
    let kind = pipeline.kind().unwrap_or_default();
    formula::bubble_fraction(kind, pipeline.stages, pipeline.chunks, pipeline.micro_batches)
}

/// The largest number of receives that a rank has posted and not used.
fn most_posted(pipeline: &Pipeline, rank: usize) -> usize {
    let last = pipeline.virtual_stages() - 1;
    let owner = |stage| pipeline.placement().owner(pipeline.stages, stage).0;
    let (mut posted, mut most) = (0, 0);
    for action in pipeline.actions(rank) {
        match action {
            Action::Receive { .. } => posted += 1,
            Action::Forward(task) => {
                let stage = pipeline.virtual_stage(rank, task.chunk);
                posted -= usize::from(stage > 0 && owner(stage - 1) != rank);
            }
            Action::Backward(task) | Action::BackwardInput(task) => {
                let stage = pipeline.virtual_stage(rank, task.chunk);
                posted -= usize::from(stage < last && owner(stage + 1) != rank);
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
    assert!(count > 5_000);
}

#[test]
fn few_receives_are_posted_ahead() {
    for (_, pipeline) in schedules() {
        for rank in 0..pipeline.stages {
            let most = most_posted(&pipeline, rank);
            assert!(most <= Pipeline::MAX_POSTED, "{}, rank {rank}: {most}", shape(&pipeline));
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

/// Zero-bubble schedules never wait longer than 1F1B, however the halves' time compares with a forward's.
#[test]
fn halves_wait_less() {
    let halves =
        schedules().filter(|(kind, pipeline)| kind.splits_backward() && pipeline.micro_batches <= 24);
    for (kind, pipeline) in halves {
        let Pipeline { stages, micro_batches, .. } = pipeline;
        let plain = Pipeline::new(PipelineScheduleKind::OneFOneB, stages, 1, micro_batches).unwrap();
        for ratio in [0.5, 1.0, 3.0, 5.0] {
            let [halves, whole] =
                [&pipeline, &plain].map(|pipeline| pipeline.bubble_fraction(ratio).unwrap());
            assert!(halves < whole + 1e-9, "{}, ratio {ratio}: {halves}, 1F1B {whole}", shape(&pipeline));
        }
        let summary = pipeline.summary(3.0).unwrap();
        assert!(summary.ends_with("at --backward-ratio 2)"), "{kind}: {summary}");
    }
}

/// What is left of ZB-H2's bubble is that ranks do not begin at the same time.
#[test]
fn ranks_of_zb_h2_do_not_wait_once_they_have_begun() {
    for (_, pipeline) in schedules().filter(|(kind, _)| *kind == PipelineScheduleKind::ZbH2) {
        let timeline = pipeline.timeline(2.0).unwrap();
        for (rank, spans) in timeline.ranks.iter().enumerate() {
            let [first, last] = [spans.first().unwrap(), spans.last().unwrap()];
            let busy: f64 = spans.iter().map(|span| span.end - span.start).sum();
            let waits = last.end - first.start - busy;
            let fills = pipeline.micro_batches >= 2 * pipeline.stages - 1;
            assert!(!fills || waits == 0.0, "{}, rank {rank} waits {waits}", shape(&pipeline));
        }
    }
}

/// Only schedules of halves leave any for later; of those that loop, the first rank fewest.
#[test]
fn no_more_is_deferred_than_is_in_flight() {
    for (kind, pipeline) in schedules() {
        for rank in 0..pipeline.stages {
            let deferred = pipeline.peak_deferred(rank);
            assert!(deferred <= pipeline.peak_in_flight(rank));
            assert_eq!(deferred > 0, kind.splits_backward(), "{}", shape(&pipeline));
            if matches!(kind, PipelineScheduleKind::ZbH1 | PipelineScheduleKind::ZbH2) {
                assert!(deferred >= pipeline.peak_deferred(0), "{}", shape(&pipeline));
            }
        }
    }
}

#[test]
fn a_v_ends_where_it_begins() {
    let pipeline = Pipeline::new(PipelineScheduleKind::Zbv, 4, 2, 8).unwrap();
    for (rank, stages) in [[0, 7], [1, 6], [2, 5], [3, 4]].into_iter().enumerate() {
        for (chunk, stage) in stages.into_iter().enumerate() {
            assert_eq!(pipeline.virtual_stage(rank, chunk), stage);
            assert_eq!(Placement::V.owner(4, stage), (rank, chunk));
        }
    }
    let stage = Stage::new(Placement::V, 0, 4, &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!((stage.blocks(0), stage.blocks(1)), (0..1, 28..36));
    assert!(stage.is_last() && stage.holds(28) && !stage.holds(27));
    // The pass turns round on the last rank: between its chunks there is no message.
    let receives = |rank: usize| {
        pipeline.actions(rank).iter().filter(|action| matches!(action, Action::Receive { .. })).count()
    };
    assert_eq!([0, 1, 2, 3].map(receives), [2 * 8, 4 * 8, 4 * 8, 2 * 8]);
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
                let v = Pipeline::forward_only(Placement::V, stages, chunks, micro_batches);
                v.check().unwrap_or_else(|error| panic!("V, {}: {error}", shape(&v)));
                let pipeline = Pipeline::forward_only(Placement::Loop, stages, chunks, micro_batches);
                pipeline.check().unwrap_or_else(|error| panic!("{}: {error}", shape(&pipeline)));
                let (measured, formula) = (pipeline.bubble_fraction(2.0).unwrap(), formula_bubble(&pipeline));
                let full = chunks == 1 || micro_batches % stages == 0;
                assert!(!full || (measured - formula).abs() < 1e-9, "{}: {measured}", shape(&pipeline));
                for rank in 0..stages {
                    assert_eq!(pipeline.peak_in_flight(rank), 0);
                    assert!(most_posted(&pipeline, rank) <= Pipeline::MAX_POSTED);
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
        (PipelineScheduleKind::ZbH1, 1),
        (PipelineScheduleKind::ZbH2, 1),
        (PipelineScheduleKind::Zbv, 2),
    ] {
        let pipeline = Pipeline::new(kind, 1, chunks, 4).unwrap();
        let transfer = |action: &Action| matches!(action, Action::Send { .. } | Action::Receive { .. });
        assert!(!pipeline.actions(0).iter().any(transfer), "{kind}");
        assert_eq!(pipeline.bubble_fraction(2.0), Ok(0.0));
    }
}

#[test]
fn there_is_nothing_outside_the_pipeline() {
    let pipeline = Pipeline::forward_only(Placement::Loop, 2, 1, 3);
    assert!(pipeline.actions(2).is_empty());
    assert_eq!(pipeline.peak_in_flight(2), 0);
    assert_eq!(Pipeline::forward_only(Placement::Loop, 0, 1, 3).bubble_fraction(1.0), Ok(0.0));
    assert_eq!(Pipeline::forward_only(Placement::Loop, 2, 0, 3).bubble_fraction(1.0), Ok(0.0));
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
        for (kind, chunks) in
            [(PipelineScheduleKind::ZbH1, 1), (PipelineScheduleKind::ZbH2, 1), (PipelineScheduleKind::Zbv, 2)]
        {
            let pipeline = Pipeline::new(kind, stages, chunks, batches).unwrap();
            prop_assert_eq!(pipeline.check(), Ok(()));
            let measured = pipeline.bubble_fraction(2.0).unwrap();
            prop_assert!((measured - formula_bubble(&pipeline)).abs() < 1e-9, "{}: {}", shape(&pipeline), measured);
        }
    }
}
