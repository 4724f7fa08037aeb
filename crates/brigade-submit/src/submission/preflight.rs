//! What a system says of a job before it is submitted.

use std::path::Path;

use super::process::{output, output_without};
use super::{Folders, left_over, written};
use crate::error::{Error, Result};
use crate::job::Job;
use crate::systems::{Lacking, Needed, System};

/// Whether the system's own program has checked a job, which it then would take: its limits, quotas and rules for names, as far as they
/// are its own. Nothing is submitted.
///
/// # Errors
/// If the system refuses it or has another job of this name, or its program fails.
pub fn check_by_system(system: &dyn System, job: &Job, folders: Folders<'_>) -> Result<bool> {
    let commands = system.commands(job).with_manifest(&written(system, job, folders.manifests)?);
    // Where the question itself fails, it is asked again when the job is submitted.
    if let Err(error) = left_over::refuse(system, job, folders.current)
        && error.is_usage()
    {
        return Err(error);
    }
    let Some(check) = commands.check else { return Ok(false) };
    output_without(&check, folders.current, &|name| system.hides(name)).map(|_| true)
}

/// What a job needs and the system does not have, or not enough of. `folder` is where its program runs.
pub fn missing_in_system(system: &dyn System, job: &Job, folder: &Path) -> Lacking {
    let mut lacking = Lacking::default();
    for Needed { name, command } in system.needed(job) {
        match output(&command, folder) {
            Ok(_) => {}
            Err(Error::Failed { stderr, .. }) if stderr.contains("NotFound") => {
                lacking.missing.push(format!("{name}, which is not in the cluster"));
            }
            Err(Error::Failed { stderr, .. }) if stderr.contains("doesn't have a resource type") => {
                lacking.missing.push(format!("{name}: the cluster has no resources of this type"));
            }
            Err(error) => {
                // Whoever may not ask for one may ask for others; who finds nobody to ask learns nothing more.
                let is_forbidden =
                    matches!(&error, Error::Failed { stderr, .. } if stderr.contains("Forbidden"));
                let rest = if is_forbidden { "" } else { ", and what else the job needs" };
                lacking.unknown.push(format!("whether there is {name}{rest}: {error}"));
                if !is_forbidden {
                    return lacking;
                }
            }
        }
    }
    match system.quotas().map(|command| output(&command, folder)) {
        Some(Ok(printed)) => {
            let over = system.over_quotas(job, &printed);
            lacking.missing.extend(over.missing);
            lacking.unknown.extend(over.unknown);
        }
        Some(Err(error)) => lacking.unknown.push(format!("the quotas of the namespace: {error}")),
        None => {}
    }
    lacking
}
