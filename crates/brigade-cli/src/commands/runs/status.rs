//! `brigade status`

use std::path::Path;
use std::process::ExitCode;
#[cfg(feature = "object-store")]
use std::time::Duration;

use anyhow::anyhow;
use brigade::checkpoints::{LeaseFound, lease_location, look_at_lease};
#[cfg(feature = "object-store")]
use brigade::report::HISTORY_FILE;
use brigade::report::{HumanCount, StepRecord, counted, now};
use brigade::{UsageError, exit};
use brigade_runs::{Overview, Run, RunState, overviews, seconds_per_step};
use clap::Args;

use crate::output::print;

pub const EXAMPLES: &str = "\
Examples:
  brigade status runs/a            what a run is doing, from any host that sees its folder
  brigade status gs://bucket/run   the same by the URL of its results or checkpoints, from anywhere
  brigade status runs/a --json

Exit codes: 0 preparing, running or finished, 1 failed or killed, 2 wrong usage, 75 preempted and to be started again, 130 interrupted.";

/// How many of the last nodes that left or joined are shown.
const SHOWN_NODES: usize = 4;

/// How long an object store may take to answer.
#[cfg(feature = "object-store")]
const ANSWER: Duration = Duration::from_secs(20);

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The run's folder, or the URL of its results or its checkpoints in an object store.
    #[arg(value_name = "RUN")]
    run: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What is known about a run.
struct Seen {
    name: String,
    state: RunState,
    last: Option<StepRecord>,
    total_steps: Option<u64>,
    /// How long the steps that are left will take, if known.
    seconds_left: Option<f64>,
    /// What targets are called, if known.
    unit: Option<String>,
    ranks: Option<usize>,
    /// The axes of the mesh with their sizes.
    mesh: Vec<(String, usize)>,
    /// Nodes that left or joined an elastic run, and when.
    nodes: Vec<(f64, String)>,
    /// The process that runs it, and when it last gave a sign of life.
    holder: Option<String>,
}

pub fn run(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let seen = if args.run.contains("://") { in_store(&args.run)? } else { in_folder(Path::new(&args.run))? };
    print(&if args.json { json(&seen) } else { text(&seen) })?;
    Ok(ExitCode::from(match seen.state {
        RunState::Preparing | RunState::Running | RunState::Finished(_) => exit::DONE,
        RunState::Preempted => exit::PREEMPTED,
        RunState::Interrupted(_) => exit::INTERRUPTED,
        RunState::Failed(_) | RunState::Killed => exit::FAILED,
    }))
}

fn in_folder(folder: &Path) -> anyhow::Result<Seen> {
    let usage = |error: brigade_runs::Error| UsageError(error.into());
    let found =
        overviews(folder).map_err(usage)?.into_iter().collect::<Result<Vec<Overview>, _>>().map_err(usage)?;
    let [overview] = found.as_slice() else {
        let text =
            format!("{} is not the folder of one run; brigade runs lists those in it", folder.display());
        return Err(UsageError(anyhow!(text)).into());
    };
    Ok(Seen::of(&overview.run))
}

impl Seen {
    fn of(run: &Run) -> Self {
        let nodes = run.history.iter().filter_map(|record| Some((record.time, record.event.of_nodes()?)));
        Self {
            name: run.name.clone(),
            state: run.state.clone(),
            last: run.records.last().cloned(),
            total_steps: run.total_steps(),
            seconds_left: run.seconds_left(),
            unit: Some(run.unit().to_string()),
            ranks: run.ranks(),
            mesh: run.mesh(),
            nodes: nodes.collect(),
            holder: None,
        }
    }
}

/// What the lease in a bucket, and a history there, say about its run.
fn in_store(url: &str) -> anyhow::Result<Seen> {
    let place = lease_location(url).map_err(|error| UsageError(error.into()))?;
    #[cfg(feature = "object-store")]
    answers(url)?;
    let Some(found) = look_at_lease(&*place)? else {
        let text = format!(
            "{url} has no lease of a run; give the run's --out or checkpoint.dir as it was given to brigade train"
        );
        return Err(UsageError(anyhow!(text)).into());
    };
    let state = match (found.is_held(), found.record.ended.as_deref()) {
        (true, _) => RunState::Running,
        (false, None) => RunState::Killed,
        (false, Some("finished")) => RunState::Finished(None),
        (false, Some("preempted")) => RunState::Preempted,
        (false, Some("interrupted")) => RunState::Interrupted("a signal".into()),
        (false, Some(_)) => RunState::Failed(String::new()),
    };
    let LeaseFound { record, silent } = found;
    let holder = format!("{}; its last sign of life was {:.0} s ago", record.holder, silent.as_secs_f64());
    let last: Option<StepRecord> = serde_json::from_value(record.status["last"].clone()).ok();
    let total_steps = record.status["total_steps"].as_u64().filter(|steps| *steps > 0);
    let seconds_left = last.as_ref().zip(total_steps).and_then(|(last, total)| {
        let left = total.checked_sub(last.step).filter(|left| *left > 0)?;
        Some(left as f64 * seconds_per_step(std::slice::from_ref(last), None)?)
    });
    let run = Run::of_history(url, &history(url)?, last, state);
    let seen = Seen::of(&run);
    // What checkpoints alone do not say.
    let (unit, mesh) = if run.started().is_some() { (seen.unit, seen.mesh) } else { (None, vec![]) };
    let total_steps = total_steps.or(seen.total_steps);
    Ok(Seen { total_steps, seconds_left, unit, mesh, holder: Some(holder), ..seen })
}

/// Asks the store for a list, with less patience than a run has: nobody waits minutes to hear that credentials are missing.
#[cfg(feature = "object-store")]
fn answers(url: &str) -> anyhow::Result<()> {
    use brigade_store::{Access, Location, access};
    let location = Location::parse(url).map_err(|error| UsageError(error.into()))?;
    match access(&location, ANSWER)? {
        Access::Listed => Ok(()),
        Access::NoBucket => {
            Err(UsageError(anyhow!("{url} is not possible: the bucket does not exist")).into())
        }
        Access::NoRight(said) => anyhow::bail!("{url} may not be listed from here: {said}"),
    }
}

/// What happened to the run, where its results are at a URL, and not its checkpoints alone.
#[cfg(feature = "object-store")]
fn history(url: &str) -> anyhow::Result<String> {
    let mut text = Vec::new();
    brigade_store::Folder::open(url, ANSWER)?.download(HISTORY_FILE, &mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(not(feature = "object-store"))]
fn history(_: &str) -> anyhow::Result<String> {
    Ok(String::new())
}

fn text(seen: &Seen) -> String {
    let mut text = format!("{}: {}\n", seen.name, seen.state);
    if let Some(last) = &seen.last {
        let total = seen.total_steps.map_or_else(String::new, |total| format!(" of {total}"));
        text.push_str(&format!("step {}{total}, loss {:.4}", last.step, last.loss));
        if let Some(unit) = &seen.unit {
            text.push_str(&format!(
                ", {} {unit} a second",
                HumanCount(last.tokens_per_second.round() as u64)
            ));
        }
        if let Some(time) = last.time {
            text.push_str(&format!(", {:.0} s ago", (now() - time).max(0.0)));
        }
        if let Some(left) = seen.seconds_left.filter(|_| seen.state == RunState::Running) {
            text.push_str(&format!("; {} to go", counted((left / 60.0).round() as usize, "minute")));
        }
        text.push('\n');
    }
    if let Some(ranks) = seen.ranks.filter(|_| !seen.nodes.is_empty()) {
        let axes: Vec<String> = seen.mesh.iter().map(|(axis, size)| format!("{axis} {size}")).collect();
        text.push_str(&format!("on {}, mesh {}\n", counted(ranks, "rank"), axes.join(" x ")));
    }
    for (time, happened) in seen.nodes.iter().rev().take(SHOWN_NODES).rev() {
        text.push_str(&format!("{happened}, {:.0} s ago\n", (now() - time).max(0.0)));
    }
    if let Some(holder) = &seen.holder {
        text.push_str(&format!("{holder}\n"));
    }
    text
}

fn json(seen: &Seen) -> String {
    let last = seen.last.as_ref();
    let value = serde_json::json!({
        "run": seen.name,
        "state": seen.state.word(),
        "step": last.map(|last| last.step),
        "total_steps": seen.total_steps,
        "loss": last.map(|last| last.loss),
        "unit": seen.unit,
        "tokens_per_second": last.map(|last| last.tokens_per_second),
        "time": last.and_then(|last| last.time),
        "ranks": seen.ranks,
        "mesh": seen.mesh,
        "nodes": seen.nodes.iter().map(|(time, text)| serde_json::json!({ "time": time, "what": text })).collect::<Vec<_>>(),
        "holder": seen.holder,
    });
    format!("{value}\n")
}
