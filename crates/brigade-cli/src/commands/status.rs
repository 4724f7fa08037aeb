//! `brigade status`

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use brigade::report::{HumanCount, now};
use brigade::{UsageError, exit};
use brigade_runs::{Overview, RunState, overviews};
use clap::Args;

use crate::output::print;

pub const EXAMPLES: &str = "\
Examples:
  brigade status runs/a          what a run does, from any host that sees its folder
  brigade status runs/a --json

Exit codes: 0 it runs or is finished, 1 it failed or was killed, 2 wrong usage, 75 preempted, to be started again, 130 interrupted.";

/// A run that writes no step for so long, and whose lock nobody holds here, does not go on.
const SILENCE: Duration = Duration::from_secs(300);

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The run's folder.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let found = overviews(&args.run).map_err(|error| UsageError(error.into()))?;
    let [overview] = found.as_slice() else {
        let text =
            format!("{} is not the folder of one run; brigade runs lists those in it", args.run.display());
        return Err(UsageError(anyhow::anyhow!(text)).into());
    };
    let state = state(overview);
    let text = if args.json { json(overview, &state) } else { text(overview, &state) };
    print(&text)?;
    Ok(ExitCode::from(match state {
        RunState::Running | RunState::Finished(_) => exit::DONE,
        RunState::Preempted => exit::PREEMPTED,
        RunState::Interrupted(_) => exit::INTERRUPTED,
        RunState::Failed(_) | RunState::Killed => exit::FAILED,
    }))
}

/// The lock of a process on another host is not seen on every file system, but that it writes is.
fn state(overview: &Overview) -> RunState {
    let writes = || {
        let changed = overview.run.dir.join("metrics.jsonl").metadata()?.modified()?;
        std::io::Result::Ok(SystemTime::now().duration_since(changed).unwrap_or_default() < SILENCE)
    };
    match &overview.run.state {
        RunState::Killed if writes().unwrap_or(false) => RunState::Running,
        state => state.clone(),
    }
}

fn text(overview: &Overview, state: &RunState) -> String {
    let run = &overview.run;
    let mut text = format!("{}: {state}\n", run.name);
    let Some(last) = overview.last() else { return text };
    let total = run.total_steps().map_or_else(String::new, |total| format!(" of {total}"));
    text.push_str(&format!("step {}{total}, loss {:.4}", last.step, last.loss));
    text.push_str(&format!(
        ", {} {} a second",
        HumanCount(last.tokens_per_second.round() as u64),
        run.unit()
    ));
    if let Some(time) = last.time {
        text.push_str(&format!(", {:.0} s ago", (now() - time).max(0.0)));
    }
    let left = run.total_steps().map(|total| total.saturating_sub(last.step)).filter(|left| *left > 0);
    if let Some(left) = left.filter(|_| *state == RunState::Running) {
        text.push_str(&format!("; {:.0} minutes to go", left as f64 * last.step_seconds / 60.0));
    }
    text.push('\n');
    text
}

fn json(overview: &Overview, state: &RunState) -> String {
    let (run, last) = (&overview.run, overview.last());
    let value = serde_json::json!({
        "run": run.name,
        "state": state.word(),
        "step": last.map(|last| last.step),
        "total_steps": run.total_steps(),
        "loss": last.map(|last| last.loss),
        "tokens_per_second": last.map(|last| last.tokens_per_second),
        "time": last.and_then(|last| last.time),
        "ranks": run.ranks(),
    });
    format!("{value}\n")
}
