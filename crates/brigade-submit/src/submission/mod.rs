//! Submits a job by its system's own program, and follows it.

mod follow;
mod image_backend;
mod left_over;
mod logs;
mod over_ssh;
mod preflight;
mod process;

use std::path::Path;
use std::sync::atomic::AtomicBool;

use brigade_files::write_atomic;

pub use image_backend::{missing_in_image, unknown_image};
pub use over_ssh::{missing_on_hosts, over_ssh};
pub use preflight::{check_by_system, missing_in_system};
pub use process::missing_program;
use process::output_without;

use crate::error::{Error, Result};
use crate::job::Job;
use crate::systems::{Commands, Manifest, System, line};

/// What to do after Ctrl-C.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Go on following.
    Follow,
    /// Let the job run, and end here.
    Leave,
    /// Cancel the job.
    Cancel,
}

/// How following a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The job is done.
    Done,
    /// It failed permanently.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// It runs on, and nobody follows it any more.
    Left,
}

/// What the one who submits sees and says.
pub struct Console<'a> {
    /// Shows a line.
    pub say: &'a mut dyn FnMut(&str),
    /// Set by Ctrl-C.
    pub interrupted: &'a AtomicBool,
    /// Asks what to do after it.
    pub ask: &'a mut dyn FnMut() -> Answer,
}

/// A line that is shown when it changes.
#[derive(Default)]
struct Notice {
    shown: String,
}

impl Notice {
    fn show(&mut self, line: String, console: &mut Console<'_>) {
        if line != self.shown {
            (console.say)(&line);
            self.shown = line;
        }
    }
}

/// Where a job is submitted from.
#[derive(Debug, Clone, Copy)]
pub struct Folders<'a> {
    /// Where its manifests are written: nobody else writes there.
    pub manifests: &'a Path,
    /// Where the systems' programs run.
    pub current: &'a Path,
}

/// Writes the manifests of a job into a folder, which is made.
///
/// # Errors
/// If a file cannot be written.
pub fn write(manifests: &[Manifest], folder: &Path) -> Result<()> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::File { path, source }
    };
    std::fs::create_dir_all(folder).map_err(failed(folder))?;
    for manifest in manifests {
        let path = folder.join(&manifest.file);
        write_atomic(&path, manifest.text.as_bytes()).map_err(failed(&path))?;
    }
    Ok(())
}

/// Submits a job, which was checked, and follows it until its end.
///
/// # Errors
/// If the system has another job of this name, or its program fails, is not there, or says nothing of the job for minutes.
pub fn submit(
    system: &dyn System,
    job: &Job,
    folders: Folders<'_>,
    console: &mut Console<'_>,
) -> Result<Ending> {
    let commands = system.commands(job).with_manifest(&written(system, job, folders.manifests)?);
    left_over::refuse(system, job, folders.current)?;
    let printed = output_without(&commands.submit, folders.current, &|name| system.hides(name))
        .map_err(|error| left_over::named(error, system, job, folders.current))?;
    let id = id_of(&printed).ok_or_else(|| Error::NoId { command: line(&commands.submit) })?;
    let commands = commands.with_id(&id);
    (console.say)(&format!("submitted {}, which {} knows as {id}", job.name, system.name()));
    (console.say)(&format!("its output: {}", line(&commands.logs)));
    (console.say)(&format!("to cancel it: {}", line(&commands.cancel)));
    let ending = follow::follow(system, &commands, folders.current, console)?;
    match ending {
        Ending::Failed => (console.say)(&format!("{} failed", job.name)),
        Ending::Cancelled => (console.say)(&format!("{} was cancelled", job.name)),
        Ending::Done | Ending::Left => {}
    }
    Ok(ending)
}

/// Writes the manifests of a job; the path of the one that is submitted.
fn written(system: &dyn System, job: &Job, folder: &Path) -> Result<String> {
    let manifests = system.manifests(job);
    write(&manifests, folder)?;
    let path = folder.join(manifests.first().map_or("", |manifest| &manifest.file));
    Ok(path.display().to_string())
}

/// What a system calls a job: the last word of what submitting it printed. Slurm adds `;` and a cluster.
fn id_of(printed: &str) -> Option<String> {
    let last = printed.split_whitespace().next_back()?;
    last.split(';').next().filter(|id| !id.is_empty()).map(str::to_owned)
}

impl Commands {
    /// With the manifest's path in its place.
    pub fn with_manifest(&self, path: &str) -> Self {
        self.with("{manifest}", path)
    }

    /// With the job's id in its place.
    pub fn with_id(&self, id: &str) -> Self {
        self.with("{id}", id)
    }

    fn with(&self, name: &str, value: &str) -> Self {
        let with = |words: &[String]| words.iter().map(|word| word.replace(name, value)).collect();
        Self {
            check: self.check.as_deref().map(with),
            submit: with(&self.submit),
            logs: with(&self.logs),
            logs_have_times: self.logs_have_times,
            state: with(&self.state),
            waiting: self.waiting.as_deref().map(with),
            cancel: with(&self.cancel),
        }
    }
}
