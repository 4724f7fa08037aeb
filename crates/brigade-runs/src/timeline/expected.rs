//! The schedule as it would run with the times that blocks took.

use std::collections::BTreeSet;

use brigade_plan::{Action, ScheduleError, SimulatedSpan, balanced};
use brigade_report::timeline::{Timeline, TraceEvent, Track, Tracks};

use super::work::Work;

/// A split that leaves less than this less idle is not worth a change.
const WORTH: f64 = 0.01;

/// The category of what stands in a timeline as it would run.
const EXPECTED: &str = "expected";

/// The schedule with the times that blocks took.
#[derive(Debug, Clone, PartialEq)]
pub struct Advice {
    /// Seconds that each stage computes for a micro-batch.
    pub stages: Vec<f64>,
    /// The share of the ranks' time that the schedule leaves idle if messages take no time.
    pub idle: f64,
    /// A split of the blocks that leaves less, if there is one: `pipeline.stages`.
    pub split: Option<Vec<usize>>,
    /// What it leaves.
    pub split_idle: f64,
}

/// Of pipelines of several stages.
pub(super) fn advice(work: &Work<'_>) -> Option<Advice> {
    let (stages, now) = (work.stages(), &work.info.split);
    if stages < 2 || now.is_empty() {
        return None;
    }
    let idle = bubble(work, now).ok()?;
    let costs: Vec<f64> = work.blocks.iter().map(|block| block.total()).collect();
    let better = balanced(&costs, now.len()).ok().filter(|split| split != now);
    let better = better.and_then(|split| bubble(work, &split).ok().map(|idle| (split, idle)));
    let better = better.filter(|(_, left)| *left + WORTH < idle);
    let pipeline = work.pipeline().ok()?;
    let of_stage = |rank: usize| {
        let all = pipeline.actions(rank).iter().map(|action| work.seconds(&pipeline, now, rank, *action));
        all.sum::<f64>() / pipeline.micro_batches as f64
    };
    Some(Advice {
        stages: (0..stages).map(of_stage).collect(),
        idle,
        split_idle: better.as_ref().map_or(idle, |(_, left)| *left),
        split: better.map(|(split, _)| split),
    })
}

fn bubble(work: &Work<'_>, split: &[usize]) -> Result<f64, ScheduleError> {
    let pipeline = work.pipeline()?;
    let seconds = |rank, action| work.seconds(&pipeline, split, rank, action);
    Ok(pipeline.timeline_of(seconds)?.bubble_fraction())
}

/// The schedule of each step of a timeline as it would run with the times that blocks took, if messages took none: a process for each stage, which
/// stands behind those of the ranks.
///
/// # Errors
/// If the timeline's schedule cannot be.
pub fn expected_events(timeline: &Timeline) -> Result<Vec<TraceEvent>, ScheduleError> {
    let work = Work::of(timeline);
    let pipeline = work.pipeline()?;
    let split = &work.info.split;
    let expected = pipeline.timeline_of(|rank, action| work.seconds(&pipeline, split, rank, action))?;
    let begins: Vec<f64> = work.ranks.first().map_or(Vec::new(), |rank| first_actions(timeline, &rank.steps));
    let mut events = Vec::new();
    for (stage, spans) in expected.ranks.iter().enumerate() {
        let mut tracks = Tracks::new(work.ranks.len() + stage, format!("expected, stage {stage}"));
        for begin in &begins {
            for SimulatedSpan { action, start, end } in spans {
                let at = (begin + 1e6 * start, begin + 1e6 * end);
                let (letter, task) = match action {
                    Action::Forward(task) => ('F', task),
                    Action::Backward(task) => ('B', task),
                    Action::BackwardInput(task) => ('I', task),
                    Action::BackwardWeights(task) => ('W', task),
                    Action::Send { .. } | Action::Receive { .. } | Action::Reduce { .. } => continue,
                };
                let args = [("micro_batch", task.micro_batch.into()), ("chunk", task.chunk.into())];
                tracks.span(Track::Schedule, (format!("{letter}{task}"), EXPECTED), at, args);
            }
        }
        events.extend(tracks.events());
    }
    Ok(events)
}

/// Removes the processes of [`expected_events`], which are no ranks.
pub(super) fn remove_expected(timeline: &mut Timeline) {
    let events = &mut timeline.trace_events;
    let of_stages: BTreeSet<usize> =
        events.iter().filter(|event| event.cat == EXPECTED).map(|event| event.pid).collect();
    events.retain(|event| !of_stages.contains(&event.pid));
}

/// When the first action of each step began, on any rank.
fn first_actions(timeline: &Timeline, steps: &[(f64, f64)]) -> Vec<f64> {
    let first = |(start, end): &(f64, f64)| {
        let actions = timeline.trace_events.iter().filter(|event| event.cat == "action");
        actions.map(|event| event.ts).filter(|ts| (*start..*end).contains(ts)).fold(f64::INFINITY, f64::min)
    };
    steps.iter().map(first).filter(|begin| begin.is_finite()).collect()
}
