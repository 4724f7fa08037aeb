//! `brigade checkpoint`

mod consolidate;

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;
use brigade::checkpoints::{
    Checkpoint, CheckpointSummary, Error as CheckpointError, ListedCheckpoint, Manifest, Storage, list,
    open_storage, verify,
};
use brigade::report::{HumanBytes, counted};
use brigade::{
    CHECKPOINT_FOLDER, CONFIG_FILE, UsageError, best_step, exit, format_error, parse_whole_number,
};
use brigade_sorted::SortedMap;
use clap::{Args, Subcommand};
use comfy_table::{Cell, CellAlignment, Row};

use crate::data::columns::columns;
use crate::output::print;
use consolidate::{ConsolidateArgs, consolidated};

pub const EXAMPLES: &str = "\
Examples:
  brigade checkpoint list runs/a
  brigade checkpoint show runs/a --step 50
  brigade checkpoint verify runs/a                        reads and checks every byte
  brigade checkpoint consolidate runs/a --to model.safetensors
  brigade checkpoint consolidate runs/a --step 50 --out a-50     a folder that transformers loads

A location is the folder of a run or of its checkpoints, or the URL of either (gs://, s3://, in a build with object stores).
Exit codes: 0 complete, 1 damaged or unreadable, 2 wrong usage.";

/// How often checkpoints are listed again if the run removes some in the meantime.
const MAX_LISTINGS: usize = 20;

#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct CheckpointArgs {
    #[command(subcommand)]
    command: CheckpointCommand,
}

#[derive(Debug, Subcommand)]
enum CheckpointCommand {
    /// List the checkpoints of a run, newest first.
    List(Location),
    /// Show what a checkpoint contains: step, mesh, position in the data, parameters.
    Show(OneStep),
    /// Read every byte of a run's checkpoints and compare checksums.
    Verify(VerifyArgs),
    /// Write the weights of a checkpoint into a file, or into a folder with all that belongs to the model, and those of each additional model into a file beside them,
    /// reading one parameter at a time.
    Consolidate(ConsolidateArgs),
}

#[derive(Debug, Args)]
struct Location {
    /// A run's folder, or where its checkpoints are.
    #[arg(value_name = "LOCATION")]
    location: String,
}

#[derive(Debug, Args)]
struct OneStep {
    #[command(flatten)]
    location: Location,
    /// The checkpoint of this step [default: the newest whole one].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_whole_number::<u64>)]
    step: Option<u64>,
}

#[derive(Debug, Args)]
struct VerifyArgs {
    #[command(flatten)]
    location: Location,
    /// Only the checkpoint of this step [default: all].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_whole_number::<u64>)]
    step: Option<u64>,
}

pub fn run(args: &CheckpointArgs) -> anyhow::Result<ExitCode> {
    let (text, code) = match &args.command {
        CheckpointCommand::List(location) => (listed(&location.open()?)?, exit::DONE),
        CheckpointCommand::Show(of) => (of.with(shown)?, exit::DONE),
        CheckpointCommand::Verify(of) => verified(of)?,
        CheckpointCommand::Consolidate(args) => (consolidated(args)?, exit::DONE),
    };
    print(&text)?;
    Ok(ExitCode::from(code))
}

impl Location {
    /// Where the checkpoints are: where the run's configuration says, in the run's folder, or the location itself.
    fn resolved(&self) -> String {
        let config = std::fs::read_to_string(Path::new(&self.location).join(CONFIG_FILE)).unwrap_or_default();
        let config = config.parse::<toml::Table>().unwrap_or_default();
        let set = config.get("checkpoint").and_then(|section| section.get("dir")?.as_str());
        if let Some(dir) = set.filter(|dir| !dir.is_empty()) {
            return dir.to_owned();
        }
        let inside = Path::new(&self.location).join(CHECKPOINT_FOLDER);
        if inside.is_dir() { inside.to_string_lossy().into_owned() } else { self.location.clone() }
    }

    fn open(&self) -> anyhow::Result<Arc<dyn Storage>> {
        let location = self.resolved();
        if !location.contains("://") && !Path::new(&location).is_dir() {
            return Err(UsageError(anyhow::anyhow!(
                "{location} is not a folder; give a run's folder, or that of its checkpoints"
            ))
            .into());
        }
        let open = |location: &str| open_storage(location).map_err(anyhow::Error::from).map_err(UsageError);
        let storage = open(&location)?;
        if location.contains("://") && storage.published()?.is_empty() {
            let below = open(&format!("{}/{CHECKPOINT_FOLDER}", location.trim_end_matches('/')))?;
            if !below.published()?.is_empty() {
                return Ok(below);
            }
        }
        Ok(storage)
    }
}

impl OneStep {
    /// Runs `act` on the checkpoint of the step, or else on the newest one in which all that `act` reads is whole.
    fn with<T>(&self, act: impl Fn(&Checkpoint) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let storage = self.location.open()?;
        let act = |step| act(&Checkpoint::open(storage.clone(), step)?);
        if let Some(step) = self.step {
            return act(step).map_err(|error| if is_gone(&error) { UsageError(error).into() } else { error });
        }
        for _ in 0..MAX_LISTINGS {
            let mut are_all_there = true;
            for ListedCheckpoint { step, summary } in list(&*storage)? {
                // An error counts if it occurs twice: the run may have removed or replaced the checkpoint meanwhile.
                let again =
                    |error| if is_gone(&error) || is_corruption(&error) { act(step) } else { Err(error) };
                let tried = summary.map_err(anyhow::Error::from).and_then(|_| act(step).or_else(again));
                match tried {
                    Err(error) if is_gone(&error) => are_all_there = false,
                    Err(error) if is_corruption(&error) => {
                        brigade::print_stderr(format_args!("skipped step {step}: {}", format_error(&error)));
                    }
                    done => return done,
                }
            }
            if are_all_there {
                bail!("{} holds no whole checkpoint", storage.location());
            }
        }
        bail!(
            "the run in {} removes its checkpoints faster than they can be read; choose one that is kept with --step, or try \
            again",
            storage.location()
        )
    }
}

/// Whether a checkpoint was removed after it had been listed.
fn is_gone(error: &anyhow::Error) -> bool {
    let gone = |error: &CheckpointError| matches!(error, CheckpointError::StepNotFound { .. });
    error.chain().any(|cause| cause.downcast_ref().is_some_and(gone))
}

fn is_corruption(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|cause| cause.downcast_ref::<CheckpointError>().is_some_and(CheckpointError::is_corruption))
}

fn listed(storage: &Arc<dyn Storage>) -> anyhow::Result<String> {
    let (mut rows, all) = (Vec::new(), list(&**storage)?);
    let newest = all.iter().find_map(|found| found.summary.as_ref().ok());
    let best = newest.and_then(|newest| best_step(&newest.counters));
    for ListedCheckpoint { step, summary } in all {
        match summary {
            Ok(CheckpointSummary { mesh, files, bytes, position, .. }) => {
                let data =
                    if position == step { String::new() } else { format!(", data up to batch {position}") };
                let mark = if best == Some(step) { ", the best" } else { "" };
                let rest = format!("in {}, {}{data}{mark}", counted(files, "file"), on(&mesh));
                rows.push(vec![Cell::new(format!("step {step}")), size(bytes), Cell::new(rest)]);
            }
            Err(error) => {
                let rest = format!("not complete: {error}");
                rows.push(vec![Cell::new(format!("step {step}")), Cell::new(""), Cell::new(rest)]);
            }
        }
    }
    if rows.is_empty() {
        return Ok(format!("{} holds no checkpoint\n", storage.location()));
    }
    Ok(columns(rows.into_iter().map(Row::from)))
}

fn size(bytes: u64) -> Cell {
    Cell::new(HumanBytes(bytes)).set_alignment(CellAlignment::Right)
}

fn on(mesh: &SortedMap<String, u64>) -> String {
    let axis = |name: &str| mesh.get(name).copied().unwrap_or(1);
    let zero = mesh.get("zero").copied().unwrap_or(0);
    format!("saved by pp {} x dp {}, ZeRO-{zero}", axis("pp"), axis("dp"))
}

fn shown(checkpoint: &Checkpoint) -> anyhow::Result<String> {
    let Manifest { step, state, files, .. } = checkpoint.manifest();
    let mut text = format!("step            {step}\n");
    let batches = if state.position == 1 { "batch" } else { "batches" };
    writeln!(text, "data            {} {batches} consumed", state.position)?;
    writeln!(text, "mesh            {}", on(&state.mesh))?;
    for (what, value) in &state.facts {
        writeln!(text, "{what:<15} {value}")?;
    }
    for (what, count) in &state.counters {
        match what.strip_suffix("_bits") {
            Some(what) => writeln!(text, "{what:<15} {}", f64::from_bits(*count))?,
            None => writeln!(text, "{what:<15} {count}")?,
        }
    }
    writeln!(text, "files")?;
    text += &columns(files.iter().map(|file| {
        let name = Cell::new(format!("  {}", file.name));
        Row::from(vec![name, size(file.bytes), Cell::new(format!("blake3 {}", file.blake3))])
    }));
    writeln!(text, "units")?;
    for unit in &state.units {
        let scalars: Vec<_> = unit
            .scalars
            .iter()
            .map(|(name, value)| format!(", {name} = {}", serde_json::json!(value)))
            .collect();
        let slots = if unit.slots.is_empty() { "no slots".into() } else { unit.slots.join(", ") };
        writeln!(
            text,
            "  {}: {} in {slots}{}",
            unit.name,
            counted(unit.elements, "element"),
            scalars.concat()
        )?;
        for parameter in &unit.parameters {
            writeln!(text, "    {} {:?}", parameter.name, parameter.shape)?;
        }
    }
    Ok(text)
}

fn verified(of: &VerifyArgs) -> anyhow::Result<(String, u8)> {
    let storage = of.location.open()?;
    let steps = match of.step {
        Some(step) => vec![step],
        None => list(&*storage)?.into_iter().map(|found| found.step).collect(),
    };
    let (mut text, mut damaged) = (String::new(), 0);
    for step in &steps {
        let problems = match verify(&*storage, *step) {
            Err(CheckpointError::StepNotFound { .. }) if of.step.is_none() => {
                writeln!(text, "step {step:<8}  removed in the meantime")?;
                continue;
            }
            Err(error @ CheckpointError::StepNotFound { .. }) => return Err(UsageError(error.into()).into()),
            verified => verified?,
        };
        damaged += usize::from(!problems.is_empty());
        writeln!(text, "step {step:<8}  {}", if problems.is_empty() { "whole" } else { "damaged" })?;
        for problem in problems {
            writeln!(text, "  {problem}")?;
        }
    }
    if steps.is_empty() {
        bail!("{} holds no checkpoint", storage.location());
    }
    Ok((text, if damaged == 0 { exit::DONE } else { exit::FAILED }))
}
