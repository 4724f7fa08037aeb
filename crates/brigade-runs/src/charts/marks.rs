//! What happened when: checkpoints, starts, restarts, failures, skipped steps.

use brigade_report::{HumanBytes, RunEvent, StepRecord};
use serde::Serialize;

use crate::run::Run;

/// Something that happened at a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Mark {
    /// After which step.
    pub step: u64,
    /// When, in seconds since the first step began, where that is known.
    pub seconds: Option<f64>,
    /// What it was.
    pub kind: MarkKind,
    /// The same in words.
    pub text: String,
}

/// What may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MarkKind {
    /// A checkpoint was saved.
    Checkpoint,
    /// The ranks started.
    Start,
    /// They continued from a checkpoint.
    Resume,
    /// They failed and were started again.
    Restart,
    /// The run failed, or was interrupted.
    Failure,
    /// It went back to a checkpoint.
    Rollback,
    /// A step made no update.
    Skipped,
    /// The run ended.
    Finish,
}

/// What happened to a run, in the order of time where that is known.
pub fn marks(run: &Run) -> Vec<Mark> {
    let begin = run.records.first().and_then(|first| Some(first.time? - first.step_seconds));
    let seconds = |time: Option<f64>| Some((10.0 * (time? - begin?)).round() / 10.0 + 0.0);
    let mut marks = Vec::new();
    for record in &run.records {
        let mut add = |step, kind, text| marks.push(Mark { step, seconds: seconds(record.time), kind, text });
        if record.skipped {
            add(record.step, MarkKind::Skipped, format!("step {} made no update", record.step));
        }
        if let Some(saved) = record.checkpoint {
            let text = format!(
                "checkpoint of step {}: {} in {:.2} s, training interrupted for {:.2} s",
                saved.step,
                HumanBytes(saved.bytes),
                saved.seconds,
                saved.stall_seconds
            );
            add(saved.step, MarkKind::Checkpoint, text);
        }
    }
    for happened in &run.history {
        let last = last_step_at(&run.records, happened.time);
        let Some((step, kind, text)) = in_words(&happened.event, last) else { continue };
        marks.push(Mark { step, seconds: seconds(Some(happened.time)), kind, text });
    }
    let order = |mark: &Mark| (mark.seconds.unwrap_or(0.0), mark.step);
    marks.sort_by(|a, b| order(a).partial_cmp(&order(b)).unwrap_or(std::cmp::Ordering::Equal));
    marks
}

/// The last step that was done at a time, of those that were not undone later.
fn last_step_at(records: &[StepRecord], time: f64) -> u64 {
    let done = records.iter().take_while(|record| record.time.is_none_or(|end| end <= time));
    done.last().map_or(0, |record| record.step)
}

fn in_words(event: &RunEvent, last: u64) -> Option<(u64, MarkKind, String)> {
    Some(match event {
        RunEvent::Launched => return None,
        RunEvent::Started { ranks, mesh, resumed_at, .. } => {
            let sizes: Vec<String> = mesh.iter().map(|(axis, size)| format!("{axis} {size}")).collect();
            let on = format!("on {}, mesh {}", brigade_report::counted(*ranks, "rank"), sizes.join(" x "));
            match resumed_at {
                Some(step) => (*step, MarkKind::Resume, format!("resumed after step {step} {on}")),
                None => (0, MarkKind::Start, format!("started {on}")),
            }
        }
        RunEvent::RolledBack { step } => (*step, MarkKind::Rollback, format!("went back to step {step}")),
        RunEvent::Finished { step, ended_early: None } => {
            (*step, MarkKind::Finish, format!("finished after step {step}"))
        }
        RunEvent::Finished { step, ended_early: Some(why) } => {
            (*step, MarkKind::Finish, format!("ended early after step {step}: {why}"))
        }
        RunEvent::Preempted => (last, MarkKind::Failure, format!("preempted after step {last}")),
        RunEvent::Restarting { restart, reason } => {
            (last, MarkKind::Restart, format!("restart {restart}, because {reason}"))
        }
        RunEvent::NodeLeft { .. } | RunEvent::NodeJoined { .. } => {
            (last, MarkKind::Restart, event.of_nodes().unwrap_or_default())
        }
        RunEvent::Failed { reason } => (last, MarkKind::Failure, format!("failed: {reason}")),
        RunEvent::Interrupted { signal } => (last, MarkKind::Failure, format!("interrupted by {signal}")),
    })
}
