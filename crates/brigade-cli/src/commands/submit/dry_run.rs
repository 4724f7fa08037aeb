//! `brigade submit --dry-run`

use std::path::Path;
use std::process::ExitCode;

use brigade::{RunPlan, exit};
use brigade_submit::{Error, Folders, Job, check_by_system, missing_program};

use super::destination::Destination;
use super::fit::{self, Fit};
use super::{SubmitArgs, current_folder, manifests_folder};
use crate::commands::train::TrainArgs;
use crate::output::print;

/// What is known of a job so far.
pub struct Found {
    /// Whether all options were given that it needs: without them it has no manifests.
    pub is_whole: bool,
    /// What is missing, a line each.
    pub missing: Vec<String>,
    /// Other lines.
    pub notes: Vec<String>,
}

/// Prints what would be submitted, whether the model fits, and what is missing; fails if something is.
pub fn dry_run(
    args: &SubmitArgs,
    job: &Job,
    place: &Destination,
    found: Found,
    train: Option<&TrainArgs>,
    own_mesh: anyhow::Result<Option<Option<RunPlan>>>,
) -> anyhow::Result<ExitCode> {
    let Found { is_whole, mut missing, mut notes } = found;
    let mut text = String::new();
    if is_whole {
        for manifest in place.manifests(job) {
            text.push_str(&format!("# {}\n{}\n", manifest.file, manifest.text));
        }
        text.push_str(&format!("{}\n", place.manual_steps(job, Path::new(""))));
    }
    let own_mesh = own_mesh.unwrap_or_else(|error| {
        missing.push(format!("a valid training command: {error:#}"));
        None
    });
    let fit = match (train, args.gpu_kind) {
        (Some(train), Some(kind)) => {
            fit::fit(train, own_mesh.flatten().as_ref(), job, kind, args.price_per_gpu_hour)
        }
        (Some(_), None) if args.gpus == 0 => without_plan("ranks on processors are not planned here"),
        (Some(_), None) => without_plan("give --gpu-kind"),
        (None, _) => without_plan("only `brigade train` is planned"),
    };
    text.push_str(&fit.text);
    if let (Some(hours), Some(limit)) = (fit.hours, place.time_limit().map(|limit| limit as f64 / 3600.0))
        && hours > limit
    {
        text.push_str(&format!(
            "the job would be stopped after {limit:.0} hours, before its {hours:.0} hours of training are over: give a longer --time\n"
        ));
    }
    missing.extend(fit.missing);
    match missing_program(place.program()) {
        Some(program) => missing.push(program.to_string()),
        None if is_whole => {
            match asked(job, place)? {
                Ok(true) => text.push_str(&format!("{} would take the job\n", place.program())),
                Ok(false) => {}
                Err(refused) => missing.push(format!("the cluster did not accept it: {refused}")),
            }
            let lacking = place.lacking(job, &current_folder()?);
            missing.extend(lacking.missing);
            notes.extend(lacking.unknown.iter().map(|line| format!("not checked: {line}")));
            notes.extend(lacking.notes);
        }
        None => {}
    }
    missing.iter().for_each(|line| text.push_str(&format!("missing: {line}\n")));
    notes.iter().for_each(|line| text.push_str(&format!("{line}\n")));
    print(&text)?;
    Ok(ExitCode::from(if missing.is_empty() { exit::DONE } else { exit::FAILED }))
}

fn without_plan(why: &str) -> Fit {
    Fit { text: format!("no plan: {why}\n"), ..Fit::default() }
}

/// Whether the system has checked the job, or why it refuses it.
fn asked(job: &Job, place: &Destination) -> anyhow::Result<Result<bool, Error>> {
    let Destination::System(system) = place else { return Ok(Ok(false)) };
    let manifests = manifests_folder()?;
    let current = current_folder()?;
    let folders = Folders { manifests: manifests.path(), current: &current };
    Ok(check_by_system(&**system, job, folders))
}
