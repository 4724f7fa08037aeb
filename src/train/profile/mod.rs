//! Timelines of some steps: what each rank did when, in one file.

mod clocks;
mod operations;

use std::ops::RangeInclusive;
use std::time::{Instant, UNIX_EPOCH};

use anyhow::Context;
use brigade_comm::{DType, FlightRecorder};
use brigade_core::plan::{Action, Pass};
use brigade_core::{Activity, PP, Span};
use brigade_report::counted;
use brigade_report::timeline::{PROFILE_FOLDER, Timeline, TimelineInfo, Track, Tracks, timeline_file};
use serde_json::{Value, json};

use self::clocks::ClockOffset;
use self::operations::Operations;
use crate::run::Session;
use crate::thread_spans::{ThreadSpan, ThreadSpans};

/// The longest list of events that rank 0 takes of a rank, in bytes.
const MAX_BYTES: usize = 1 << 28;

/// The timeline of a run.
pub(super) struct Profile {
    steps: RangeInclusive<u64>,
    /// While steps are recorded.
    recording: Option<Recording>,
    is_written: bool,
}

/// What was recorded so far.
struct Recording {
    recorder: FlightRecorder,
    offset: ClockOffset,
    began: Instant,
    operations: Operations,
    spans: Vec<Named>,
    /// The step under way, or the steps of a round, and when they began.
    under_way: Option<(RangeInclusive<u64>, Instant)>,
    /// The steps that are in it.
    recorded: Option<RangeInclusive<u64>>,
}

/// A span that the engine does not know.
struct Named {
    track: Track,
    name: String,
    category: &'static str,
    start: Instant,
    end: Instant,
    args: Vec<(&'static str, Value)>,
}

impl Profile {
    /// A timeline of these steps, of a run that has done this many.
    pub fn new(steps: Option<RangeInclusive<u64>>, done: u64) -> Option<Self> {
        let steps = steps.filter(|steps| *steps.start() > done)?;
        Some(Self { steps, recording: None, is_written: false })
    }

    /// Whether the step that is about to begin, or has begun, is recorded; in rounds, the steps of one are, if any of them is to be. All ranks call it
    /// together.
    ///
    /// # Errors
    /// If a rank failed.
    pub fn begin_step(&mut self, session: &Session, steps: RangeInclusive<u64>) -> anyhow::Result<bool> {
        if self.is_written || steps.end() < self.steps.start() || steps.start() > self.steps.end() {
            return Ok(false);
        }
        if self.recording.is_none() {
            let recorder = session.group().flight_recorder();
            let (began, began_at) = recorder.began();
            let at = began_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as f64;
            let now = || at + micros(began, Instant::now());
            let offset = clocks::compare(session.collectives().as_ref(), now)?;
            let operations = Operations::record(recorder.clone());
            self.recording = Some(Recording {
                recorder,
                offset,
                operations,
                spans: Vec::new(),
                under_way: None,
                recorded: None,
                began: Instant::now(),
            });
        }
        if let Some(recording) = &mut self.recording
            && recording.under_way.as_ref().is_none_or(|(of, _)| *of != steps)
        {
            recording.under_way = Some((steps, Instant::now()));
        }
        Ok(true)
    }

    /// Adds what went on outside of the engine, where a step is recorded.
    pub fn add(&mut self, track: Track, name: impl Into<String>, start: Instant, end: Instant) {
        if let Some(recording) = &mut self.recording {
            let category = if track == Track::Waits { "wait" } else { "loop" };
            recording.add(track, name, category, (start, end), Vec::new());
        }
    }

    /// Adds what threads did since the first step; once, before the timeline is written.
    pub fn add_threads(&mut self, track: &Track, threads: &ThreadSpans) {
        let Some(recording) = &mut self.recording else { return };
        let (began, now) = (recording.began, Instant::now());
        for ThreadSpan { name, start, end } in threads.since(began) {
            // What began before the first step is not a part of it.
            let at = (start.max(began), end.unwrap_or(now));
            recording.add(track.clone(), name, "thread", at, Vec::new());
        }
    }

    /// Whether the timeline is written after this step; `is_update`: whether the step makes an update.
    pub fn ends_with(&self, step: u64, is_update: bool) -> bool {
        self.recording.is_some() && step >= *self.steps.end() && is_update
    }

    /// A step has ended; `is_update`: with an update, of which `spans` is what the engine recorded. Writes the timeline after the last one. Returns messages to print. All ranks
    /// call it together.
    ///
    /// # Errors
    /// If a rank failed. If the file cannot be written, a note says so.
    pub fn end_step(
        &mut self,
        session: &Session,
        step: u64,
        is_update: bool,
        spans: Option<Vec<Span>>,
        info: impl FnOnce() -> TimelineInfo,
    ) -> anyhow::Result<Option<String>> {
        let Some(recording) = &mut self.recording else { return Ok(None) };
        let info = info();
        recording.end_step(spans.unwrap_or_default(), &info.blocks);
        if self.ends_with(step, is_update) { self.write(session, info).map(Some) } else { Ok(None) }
    }

    /// Writes what was recorded of a run that ends before the last of the steps, if a step of them is over.
    ///
    /// # Errors
    /// As [`end_step`](Self::end_step).
    pub fn end_run(&mut self, session: &Session, info: TimelineInfo) -> anyhow::Result<Option<String>> {
        let has_steps = self.recording.as_ref().is_some_and(|recording| recording.recorded.is_some());
        if has_steps { self.write(session, info).map(Some) } else { Ok(None) }
    }

    fn write(&mut self, session: &Session, info: TimelineInfo) -> anyhow::Result<String> {
        let Some(recording) = self.recording.take() else { return Ok(String::new()) };
        self.is_written = true;
        let (rank, group) = (session.rank(), session.group());
        let mut name = format!("rank {rank}");
        if session.plan.mesh.size(PP) > 1 {
            name.push_str(&format!(", stage {}", session.plan.mesh.coordinate(rank, PP)));
        }
        let error = recording.offset.error;
        let recorded = recording.recorded.clone().unwrap_or_else(|| self.steps.clone());
        let (first_step, last_step) = recorded.into_inner();
        let (tracks, forgotten) = recording.tracks(rank, name);
        let own = tracks.to_json()?;
        let mut errors = vec![0.0; group.size()];
        errors[rank] = error;
        group.all_gather_in_place(&mut errors)?;
        if rank > 0 {
            group.send(own, DType::U8, 0).wait()?;
            return Ok(String::new());
        }
        let others: Vec<_> = (1..group.size()).map(|rank| group.recv_message(rank, MAX_BYTES)).collect();
        let mut ranks = vec![own];
        for message in others {
            ranks.push(message.wait()?);
        }
        let path = session.out.join(PROFILE_FOLDER).join(timeline_file(first_step, last_step));
        let clock_error_us = errors.into_iter().fold(0.0, f64::max);
        let info = TimelineInfo { first_step, last_step, clock_error_us, ..info };
        let written = Timeline::write(&path, &ranks, &info)
            .with_context(|| format!("the timeline {} could not be written", path.display()));
        Ok(match (written, forgotten) {
            (Err(why), _) => format!("{why:#}"),
            (Ok(()), 0) => format!("timeline: {}", path.display()),
            (Ok(()), some) => {
                format!(
                    "timeline: {}; {} of rank 0 left out, because there were too many",
                    path.display(),
                    counted(some, "operation")
                )
            }
        })
    }
}

impl Recording {
    fn add(
        &mut self,
        track: Track,
        name: impl Into<String>,
        category: &'static str,
        (start, end): (Instant, Instant),
        args: Vec<(&'static str, Value)>,
    ) {
        self.spans.push(Named { track, name: name.into(), category, start, end, args });
    }

    fn end_step(&mut self, spans: Vec<Span>, blocks: &[String]) {
        self.operations.read();
        for Span { what, start, end } in spans {
            let at = (start, end);
            match what {
                Activity::Action(action) => {
                    self.add(Track::Schedule, action_name(action), "action", at, action_args(action));
                }
                Activity::Block { block, action } => {
                    let name = blocks.get(block).map_or("", String::as_str);
                    let mut args = action_args(action);
                    args.push(("block", block.into()));
                    self.add(Track::Blocks, name, "block", at, args);
                }
                Activity::Wait { what, from } => {
                    let args = from.map(|stage| ("stage", stage.into())).into_iter().collect();
                    self.add(Track::Waits, what, "wait", at, args);
                }
                Activity::Phase(name) => self.add(Track::Schedule, name, "phase", at, Vec::new()),
            }
        }
        if let Some((steps, start)) = self.under_way.take() {
            let at = (start, Instant::now());
            let (first, last) = steps.into_inner();
            let name =
                if first == last { format!("step {last}") } else { format!("steps {first} to {last}") };
            self.add(Track::Steps, name, "step", at, vec![("step", last.into())]);
            let before = self.recorded.take().unwrap_or(first..=last);
            self.recorded = Some(*before.start()..=last.max(*before.end()));
        }
    }

    /// All of it as a timeline; and how many operations are not in it.
    fn tracks(self, rank: usize, name: String) -> (Tracks, usize) {
        let (began, began_at) = self.recorder.began();
        let at = began_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as f64;
        let shift = at - self.offset.ahead - self.offset.origin;
        let time = |instant: Instant| micros(began, instant) + shift;
        let mut tracks = Tracks::new(rank, name);
        let mut end = 0.0_f64;
        for Named { track, name, category, start, end: until, args } in self.spans {
            let at = (time(start), time(until));
            end = end.max(at.1);
            tracks.span(track, (name, category), at, args);
        }
        let forgotten = self.operations.add_to(&mut tracks, rank, |micros| micros as f64 + shift, end);
        (tracks, forgotten)
    }
}

/// The name of an action in a timeline.
fn action_name(action: Action) -> String {
    match action {
        Action::Forward(task) => format!("F{task}"),
        Action::Backward(task) => format!("B{task}"),
        Action::BackwardInput(task) => format!("I{task}"),
        Action::BackwardWeights(task) => format!("W{task}"),
        other => other.to_string(),
    }
}

fn action_args(action: Action) -> Vec<(&'static str, Value)> {
    let pass = |pass: Pass| match pass {
        Pass::Forward => "forward",
        Pass::Backward => "backward",
    };
    let (what, task) = match action {
        Action::Forward(task) => ("forward", task),
        Action::Backward(task) => ("backward", task),
        Action::BackwardInput(task) => ("backward_input", task),
        Action::BackwardWeights(task) => ("backward_weights", task),
        Action::Send { task, .. } => ("send", task),
        Action::Receive { task, .. } => ("receive", task),
        Action::Reduce { chunk } => return vec![("action", "reduce".into()), ("chunk", chunk.into())],
    };
    let mut args =
        vec![("action", json!(what)), ("micro_batch", task.micro_batch.into()), ("chunk", task.chunk.into())];
    match action {
        Action::Send { pass: of, to, .. } => args.extend([("pass", pass(of).into()), ("to", to.into())]),
        Action::Receive { pass: of, from, .. } => {
            args.extend([("pass", pass(of).into()), ("from", from.into())]);
        }
        _ => {}
    }
    args
}

fn micros(since: Instant, now: Instant) -> f64 {
    now.saturating_duration_since(since).as_nanos() as f64 / 1e3
}
