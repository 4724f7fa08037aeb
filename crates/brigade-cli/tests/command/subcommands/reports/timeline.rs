//! `brigade train --profile-steps` and `brigade inspect timeline`.

use std::collections::BTreeMap;

use brigade::core::plan::{Action, Pipeline, PipelineScheduleKind};
use brigade::report::timeline::{Timeline, TraceEvent, TracePhase};
use serde_json::Value;

use crate::place::Place;

/// The name of an action in a timeline.
fn name(action: &Action) -> String {
    match action {
        Action::Forward(task) => format!("F{task}"),
        Action::Backward(task) => format!("B{task}"),
        Action::BackwardInput(task) => format!("I{task}"),
        Action::BackwardWeights(task) => format!("W{task}"),
        other => other.to_string(),
    }
}

/// Checks that a text is a timeline by the format, in which nothing overlaps on a thread.
fn checked(text: &str) -> Timeline {
    let plain: Value = serde_json::from_str(text).unwrap();
    for event in plain["traceEvents"].as_array().unwrap() {
        assert!(event["name"].is_string() && event["pid"].is_u64() && event["tid"].is_u64(), "{event}");
        assert!(event["ts"].is_f64(), "{event}");
        match event["ph"].as_str().unwrap() {
            "X" => assert!(event["dur"].as_f64().unwrap() >= 0.0, "{event}"),
            "s" | "f" => assert!(event["id"].is_string(), "{event}"),
            phase => assert_eq!(phase, "M", "{event}"),
        }
    }
    let timeline: Timeline = serde_json::from_value(plain).unwrap();
    let mut threads: BTreeMap<(usize, usize), Vec<&TraceEvent>> = BTreeMap::new();
    for event in timeline.trace_events.iter().filter(|event| event.ph == TracePhase::Complete) {
        threads.entry((event.pid, event.tid)).or_default().push(event);
    }
    for spans in threads.values_mut() {
        spans.sort_by(|a, b| a.ts.total_cmp(&b.ts));
        for pair in spans.windows(2) {
            assert!(pair[0].end() <= pair[1].ts, "{pair:?}");
        }
    }
    timeline
}

#[test]
fn a_timeline_has_every_action_of_every_rank_and_changes_no_bit() {
    let place = Place::new();
    let line = "--nproc-per-node 4 --pp 2 --zero 1 --checkpoint-every 3";
    let done = place.succeed(&mut place.train(&format!("{line} --profile-steps 3..5 --out profiled")));
    assert!(done.err.contains("timeline: "), "{}", done.err);
    place.succeed(&mut place.train(&format!("{line} --out plain")));
    assert!(place.read("profiled/model.safetensors") == place.read("plain/model.safetensors"));
    assert!(!place.path("plain/profile").exists());

    let timeline = checked(&place.text("profiled/profile/steps-3-5.json"));
    let info = &timeline.other_data;
    assert_eq!((info.first_step, info.last_step, info.micro_batches), (3, 5, 2));
    assert_eq!((info.blocks.len(), info.split.iter().sum::<usize>()), (4, 4));
    let pipeline = Pipeline::new(PipelineScheduleKind::OneFOneB, 2, 1, 2).unwrap();
    let of = |rank: usize, category: &str| -> Vec<&TraceEvent> {
        let events = timeline.trace_events.iter();
        let mut found: Vec<_> = events.filter(|event| event.pid == rank && event.cat == category).collect();
        found.sort_by(|a, b| a.ts.total_cmp(&b.ts));
        found
    };
    for rank in 0..4 {
        let steps = of(rank, "step");
        assert_eq!(steps.len(), 3);
        let expected: Vec<String> = pipeline.actions(rank / 2).iter().map(name).collect();
        for step in steps {
            let is_within = |event: &&TraceEvent| step.ts <= event.ts && event.ts < step.end();
            let actions: Vec<String> =
                of(rank, "action").into_iter().filter(is_within).map(|event| event.name.clone()).collect();
            assert_eq!(actions, expected, "rank {rank}, {}", step.name);
        }
        let phases: Vec<&str> = of(rank, "phase").iter().map(|event| event.name.as_str()).collect();
        assert_eq!(phases.iter().filter(|name| **name == "optimizer").count(), 3);
        assert!(of(rank, "thread").iter().any(|event| event.name == "write step 3"), "rank {rank}");
        let collectives = of(rank, "collective");
        for operation in ["all_gather", "reduce_scatter"] {
            let found = collectives.iter().find(|event| event.name == operation);
            let found = found.unwrap_or_else(|| panic!("rank {rank} has no {operation}"));
            assert!(found.number("bytes").is_some_and(|bytes| bytes > 0), "{found:?}");
            assert!(found.args["peers"].as_array().is_some_and(|peers| !peers.is_empty()), "{found:?}");
        }
    }
    // Each activation and each gradient is an arrow from one rank to another, and each collective one to the next rank.
    let mut arrows: BTreeMap<&str, Vec<(TracePhase, usize)>> = BTreeMap::new();
    for event in timeline.trace_events.iter().filter(|event| event.id.is_some()) {
        arrows.entry(event.id.as_deref().unwrap()).or_default().push((event.ph, event.pid));
    }
    let whole = |what: &str| {
        let of = arrows.iter().filter(|(id, _)| id.contains(what)).map(|(_, ends)| ends);
        of.filter(|ends| {
            ends.len() == 2
                && ends.iter().any(|(phase, _)| *phase == TracePhase::FlowEnd)
                && ends[0].1 != ends[1].1
        })
        .count()
    };
    assert!(whole(":message:") >= 2 * 2 * 2 * 3, "{arrows:?}");
    // A gather of scalars alone in each of three steps, both ways between two ranks.
    assert!(whole(":collective:") >= 2 * 2 * 3, "{arrows:?}");

    let said = place.succeed(&mut place.brigade("inspect timeline profiled --steps 3..5 --with-plan")).out;
    for expected in ["steps 3 to 5, ", "rank 0 waits ", "rank 3 waits ", "a micro-batch takes ", "beside it"]
    {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    let both = checked(&place.text("profiled/profile/steps-3-5-with-plan.json"));
    let planned = both.trace_events.iter().filter(|event| event.cat == "expected");
    assert_eq!(planned.count(), 3 * 2 * 4, "forwards and backwards of two stages in three steps");
}

#[test]
fn a_run_that_ends_within_the_steps_writes_those_that_it_made() {
    let place = Place::new();
    // It ends after step 8 of 10.
    let patience = "--set train.early_stopping_patience=1 --set optimizer.learning_rate=0";
    place.succeed(&mut place.train(&format!("--nproc-per-node 2 {patience} --profile-steps 7..9 --out a")));
    let timeline = checked(&place.text("a/profile/steps-7-8.json"));
    assert_eq!((timeline.other_data.first_step, timeline.other_data.last_step), (7, 8));
    let steps = timeline.trace_events.iter().filter(|event| event.cat == "step");
    assert_eq!(steps.filter(|event| event.name == "step 8").count(), 2, "one on each rank");
    let said = place.succeed(&mut place.brigade("inspect timeline a")).out;
    assert!(said.starts_with("steps 7 to 8, "), "{said}");
}

#[test]
fn a_timeline_that_is_not_there_is_said() {
    let place = Place::new();
    let done = place.run(&mut place.train("--profile-steps 9..11 --out a"));
    assert_eq!(done.code, Some(2));
    let said = "profile.steps (--profile-steps) = 9..11 is not possible: the run has 10 steps";
    assert!(done.err.contains(said), "{}", done.err);
    place.succeed(&mut place.train("--nproc-per-node 1 --profile-steps 2 --out a"));
    let found = place.succeed(&mut place.brigade("inspect timeline a"));
    assert!(found.out.starts_with("step 2, ") && found.out.contains("rank 0 waits"), "{}", found.out);
    for (line, said) in [
        ("inspect timeline a --steps 4..5", "a has no timeline of steps 4..5 (there is 2..2)"),
        ("inspect timeline text", "text has no timeline: `brigade train --profile-steps 10..12` writes one"),
        ("inspect timeline tiny.toml", "tiny.toml is not a timeline written by Brigade: "),
        ("inspect timeline missing", "missing is not a folder"),
    ] {
        let done = place.run(&mut place.brigade(line));
        assert!(done.code == Some(2) && done.err.contains(said), "{line}: {}", done.err);
    }
}
