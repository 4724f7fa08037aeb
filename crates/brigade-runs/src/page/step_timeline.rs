//! One step of a profiled run, rank by rank: what each did, and when it waited.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use brigade_report::timeline::{Timeline, TraceEvent, TracePhase};
use serde::Serialize;

use crate::run::Run;
use crate::timeline::{self, idle};

/// A larger file takes too long to read each time that a page is made.
const MAX_BYTES: u64 = 64 << 20;

/// More rows than fit on a screen.
const MAX_RANKS: usize = 64;

/// More spans than a page should carry.
const MAX_SPANS: usize = 40_000;

/// The last step of a run's newest timeline.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepTimeline {
    /// The step.
    pub step: u64,
    /// How long it took, from the first rank's start to the last rank's end.
    pub seconds: f64,
    /// The ranks, at most 64.
    pub rows: Vec<RankTimeline>,
    /// How many ranks the run has.
    pub ranks: usize,
    /// What ranks waited for in all steps of the timeline, and the split of the model that would leave less, in sentences.
    pub causes: Vec<String>,
}

/// What one rank did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RankTimeline {
    /// The rank, and its stage where there are several.
    pub name: String,
    /// The share of the step in which it waited.
    pub waited: f64,
    /// What it did, in order; waits come last, since they lie within what waited.
    pub spans: Vec<StepSpan>,
}

/// Something that a rank did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepSpan {
    /// What kind of work it is.
    pub kind: SpanKind,
    /// Its name: `F3.0` is the forward pass of micro-batch 3 through chunk 0.
    pub name: String,
    /// When it began, in seconds since the step began.
    pub start: f64,
    /// When it ended.
    pub end: f64,
}

/// Kinds of work, each of which has a colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SpanKind {
    /// A forward pass.
    Forward,
    /// A whole backward pass, or the half that computes gradients of inputs.
    Backward,
    /// The half of a backward pass that computes gradients of weights.
    BackwardWeights,
    /// Everything else: reductions, the optimizer, hooks.
    Other,
    /// Waiting.
    Wait,
}

/// The last step of the run's newest timeline, if it has one that can be read.
pub fn step_timeline(run: &Run) -> Option<StepTimeline> {
    NewestTimeline::default().of(run).cloned()
}

/// The newest timeline of a run that goes on, whose file is read again only where it changed.
#[derive(Default)]
pub(crate) struct NewestTimeline {
    /// The file that was read, when it was written, and its bytes.
    seen: Option<(PathBuf, SystemTime, u64)>,
    step: Option<StepTimeline>,
}

impl NewestTimeline {
    /// Its last step, as [`step_timeline`] has it.
    pub fn of(&mut self, run: &Run) -> Option<&StepTimeline> {
        let path = timeline::find(&run.dir, None).ok()?;
        let file = fs::metadata(&path).ok()?;
        let found = (path, file.modified().ok()?, file.len());
        if self.seen.as_ref() != Some(&found) {
            let timeline = (file.len() <= MAX_BYTES).then(|| timeline::read(&found.0).ok()).flatten();
            self.step = timeline.as_ref().and_then(of);
            self.seen = Some(found);
        }
        self.step.as_ref()
    }
}

fn of(timeline: &Timeline) -> Option<StepTimeline> {
    let step = timeline.other_data.last_step;
    let mut by_rank = BTreeMap::<usize, Vec<&TraceEvent>>::new();
    for event in timeline.trace_events.iter().filter(|event| event.ph == TracePhase::Complete) {
        by_rank.entry(event.pid).or_default().push(event);
    }
    let whole = |events: &[&TraceEvent]| {
        let name = format!("step {step}");
        let found = events.iter().find(|event| event.cat == "step" && event.name == name);
        found.map(|event| (event.ts, event.end()))
    };
    let ranges: Vec<(f64, f64)> = by_rank.values().filter_map(|events| whole(events)).collect();
    let began = ranges.iter().map(|range| range.0).reduce(f64::min)?;
    let ended = ranges.iter().map(|range| range.1).reduce(f64::max)?;
    let idle = idle(timeline);
    let stage = |rank: usize| idle.ranks.iter().find(|of| of.rank == rank).map_or(0, |of| of.stage);
    let has_stages = idle.ranks.iter().any(|of| of.stage > 0);
    let mut left = MAX_SPANS;
    let rows = by_rank.iter().take(MAX_RANKS).filter_map(|(rank, events)| {
        let range = whole(events)?;
        let mut spans = spans(events, range, began);
        spans.truncate(left);
        left -= spans.len();
        let waits = spans.iter().filter(|span| span.kind == SpanKind::Wait);
        let waited = waits.map(|span| span.end - span.start).sum::<f64>() * 1e6;
        let name = match has_stages {
            true => format!("{rank} · stage {}", stage(*rank)),
            false => format!("rank {rank}"),
        };
        Some(RankTimeline { name, waited: waited / (range.1 - range.0).max(1.0), spans })
    });
    let rows = rows.collect();
    let causes = idle.to_string().lines().map(str::to_owned).collect();
    Some(StepTimeline { step, seconds: (ended - began) / 1e6, rows, ranks: by_rank.len(), causes })
}

/// What a rank did within a range, in seconds since `began`.
fn spans(events: &[&TraceEvent], (start, end): (f64, f64), began: f64) -> Vec<StepSpan> {
    let seconds = |micros: f64| ((micros - began) * 10.0).round() / 1e7;
    let span = |event: &&TraceEvent| {
        let at = (event.ts.max(start), event.end().min(end));
        let kind = kind(event).filter(|_| at.0 < at.1)?;
        Some(StepSpan { kind, name: event.name.clone(), start: seconds(at.0), end: seconds(at.1) })
    };
    let mut spans: Vec<StepSpan> = events.iter().filter_map(span).collect();
    let is_wait = |span: &StepSpan| span.kind == SpanKind::Wait;
    spans.sort_by(|a, b| is_wait(a).cmp(&is_wait(b)).then(a.start.total_cmp(&b.start)));
    spans
}

fn kind(event: &TraceEvent) -> Option<SpanKind> {
    match event.cat.as_str() {
        "wait" => Some(SpanKind::Wait),
        "action" => Some(match event.text("action") {
            Some("forward") => SpanKind::Forward,
            Some("backward" | "backward_input") => SpanKind::Backward,
            Some("backward_weights") => SpanKind::BackwardWeights,
            _ => SpanKind::Other,
        }),
        "phase" | "loop" => Some(SpanKind::Other),
        _ => None,
    }
}
