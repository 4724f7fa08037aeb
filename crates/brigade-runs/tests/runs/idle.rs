//! Who stands idle in a timeline, and why.

use brigade_report::timeline::{Timeline, TimelineInfo, Track, Tracks};
use brigade_runs::timeline::{Reason, expected_events, idle, read};

/// Two stages, of which the second has three blocks of four; a step of 1 s with one micro-batch. All blocks take 0.1 s forward and 0.1 s backward.
pub fn pipeline() -> Timeline {
    let mut events = Vec::new();
    for (rank, first, count) in [(0, 0, 1), (1, 1, 3)] {
        let mut tracks = Tracks::new(rank, format!("rank {rank}"));
        let at = |start: f64, end: f64| (1e6 * start, 1e6 * end);
        tracks.span(Track::Steps, ("step 4".into(), "step"), at(0.0, 1.0), []);
        let (forward, backward) = if rank == 0 { (0.0, 0.7) } else { (0.1, 0.4) };
        for (action, name, begin) in [("forward", "F0.0", forward), ("backward", "B0.0", backward)] {
            let long = 0.1 * f64::from(count);
            let args = [("action", action.into())];
            tracks.span(Track::Schedule, (name.into(), "action"), at(begin, begin + long), args);
            for block in 0..count {
                let begin = begin + 0.1 * f64::from(block);
                let args = [("action", action.into()), ("block", (first + block).into())];
                tracks.span(Track::Blocks, ("block".into(), "block"), at(begin, begin + 0.1), args);
            }
        }
        let waits = match rank {
            0 => {
                [("pipeline", Some(1), 0.1, 0.7), ("data", None, 0.8, 0.85), ("all_reduce", None, 0.85, 1.0)]
            }
            _ => {
                [("pipeline", Some(0), 0.0, 0.1), ("data", None, 0.7, 0.95), ("all_reduce", None, 0.95, 1.0)]
            }
        };
        for (what, stage, start, end) in waits {
            let args = stage.map(|stage: usize| ("stage", stage.into()));
            tracks.span(Track::Waits, (what.into(), "wait"), at(start, end), args);
        }
        // The second rank comes to the sum 0.1 s later.
        let called = if rank == 0 { 0.85e6 } else { 0.95e6 };
        let args = [("group", 7.into()), ("number", 3.into()), ("called", called.into())];
        let track = Track::Operations("collectives of world".into());
        tracks.span(track, ("all_reduce".into(), "collective"), (called, 1e6), args);
        events.extend(tracks.events());
    }
    let info = TimelineInfo {
        first_step: 4,
        last_step: 4,
        mesh: vec![("pp".into(), 2), ("dp".into(), 1)],
        blocks: (0..4).map(|block| format!("layers.{block}")).collect(),
        split: vec![1, 3],
        schedule: "1f1b".into(),
        chunks: 1,
        micro_batches: 1,
        clock_error_us: 12.0,
    };
    Timeline { trace_events: events, display_time_unit: "ms".into(), other_data: info }
}

#[test]
fn each_rank_is_told_what_it_waited_for() {
    let found = idle(&pipeline());
    assert!(
        (found.ranks[0].share - 0.8).abs() < 1e-6 && (found.ranks[1].share - 0.4).abs() < 1e-6,
        "{found:?}"
    );
    let causes = |rank: usize| -> Vec<(Reason, i64)> {
        let of = found.ranks[rank].causes.iter().filter(|cause| cause.share > 1e-9);
        of.map(|cause| (cause.reason.clone(), (100.0 * cause.share).round() as i64)).collect()
    };
    let what = || "all_reduce".to_owned();
    let first = [
        (Reason::Stage { rank: 1 }, 60),
        (Reason::LastRank { rank: 1, what: what() }, 10),
        (Reason::Data, 5),
        (Reason::Communication { what: what() }, 5),
    ];
    assert_eq!(causes(0), first);
    let second =
        [(Reason::Data, 25), (Reason::Stage { rank: 0 }, 10), (Reason::Communication { what: what() }, 5)];
    assert_eq!(causes(1), second);
}

#[test]
fn a_split_that_leaves_less_idle_is_named() {
    // With two micro-batches an equal split lets the stages work beside each other.
    let mut timeline = pipeline();
    timeline.other_data.micro_batches = 8;
    let advice = idle(&timeline).advice.unwrap();
    assert_eq!(advice.split.as_deref(), Some(&[2, 2][..]));
    assert!((advice.stages[1] / advice.stages[0] - 3.0).abs() < 1e-6, "{advice:?}");
    // 1F1B of two equal stages with eight micro-batches.
    assert!((advice.split_idle - 1.0 / 9.0).abs() < 1e-6 && advice.idle > 0.3, "{advice:?}");
    let said = idle(&timeline).to_string();
    for expected in [
        "step 4, 1.00 s each",
        "rank 0 waits 80%: 60% for rank 1 (stage 1 has 3.00 times its work), 10% for rank 1, the last to reach all_reduce",
        "`pipeline.stages = [2, 2]` would leave 11%",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    timeline.other_data.split = vec![2, 2];
    assert_eq!(idle(&timeline).advice.unwrap().split, None);
}

#[test]
fn the_schedule_beside_a_timeline_is_of_no_ranks() {
    let alone = pipeline();
    let mut both = pipeline();
    let expected = expected_events(&both).unwrap();
    assert!(expected.iter().any(|event| event.pid == 3), "{expected:?}");
    both.trace_events.extend(expected);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("steps-4-4-with-plan.json");
    std::fs::write(&path, serde_json::to_vec(&both).unwrap()).unwrap();
    let read = read(&path).unwrap();
    assert_eq!(read.trace_events.len(), alone.trace_events.len());
    assert_eq!(idle(&read), idle(&alone));
}
