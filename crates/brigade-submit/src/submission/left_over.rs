//! Objects of another job with the same name, which a job would share or be refused for.

use std::path::Path;

use super::process::output;
use crate::error::{Error, Result};
use crate::job::Job;
use crate::systems::{LeftOver, System, line};

/// Refuses a job whose name the system still has objects of.
///
/// # Errors
/// If there are any, or the system's program fails for another reason than that this user may not ask.
pub(super) fn refuse(system: &dyn System, job: &Job, folder: &Path) -> Result<()> {
    let Some(left_over) = system.left_over(job) else { return Ok(()) };
    match names(&left_over, folder) {
        Ok(names) if names.is_empty() => Ok(()),
        Ok(names) => {
            let allowed = format!(
                "the cluster has {} of another job; give another --name, or, if that job is over, delete it with {}",
                names.join(" and "),
                delete(&left_over, &names)
            );
            Err(Error::value("--name", &job.name, allowed))
        }
        Err(Error::Failed { stderr, .. }) if stderr.contains("Forbidden") => Ok(()),
        Err(error) => Err(error),
    }
}

/// The error of a job that could not be submitted, with what was made of it all the same.
pub(super) fn named(error: Error, system: &dyn System, job: &Job, folder: &Path) -> Error {
    let Some(left_over) = system.left_over(job) else { return error };
    match names(&left_over, folder) {
        Ok(names) if !names.is_empty() => Error::Half {
            name: job.name.clone(),
            there: names.join(" and "),
            delete: delete(&left_over, &names),
            source: Box::new(error),
        },
        _ => error,
    }
}

/// The names that the system's program prints, each with its kind before a slash.
fn names(left_over: &LeftOver, folder: &Path) -> Result<Vec<String>> {
    let printed = output(&left_over.find, folder)?;
    Ok(printed.split_whitespace().filter(|word| word.contains('/')).map(str::to_owned).collect())
}

fn delete(left_over: &LeftOver, names: &[String]) -> String {
    line(&[left_over.delete.as_slice(), names].concat())
}
