//! Who may write into a run's folder, and which run it is.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use brigade_checkpoint::open_storage;

use super::program::Program;
use crate::checkpoint::{changes, newest, refuse_checkpoints};
use crate::error::tell;
use crate::folder::{self, hold};
use crate::settings::{Resume, Settings};

/// Names the run's folder to the ranks that the launcher starts.
pub(crate) const RUN_DIR: &str = "BRIGADE_RUN_DIR";

/// Names the run to the ranks that the launcher starts.
pub(crate) const RUN_ID: &str = "BRIGADE_RUN_ID";

/// A run's folder and the place of its checkpoints, held against other runs until this is dropped and the ranks have ended.
pub(crate) struct Claim {
    pub dir: PathBuf,
    /// Tells this run's checkpoints from those of others. A run that goes on is the same run.
    pub run: String,
    _held: Vec<File>,
}

impl Claim {
    /// Finds the folder of results, for a new run or one that goes on, and locks it; what the run is to do there is decided
    /// under the lock. What is set otherwise than before is told.
    pub(crate) fn of(program: &Program<'_>) -> anyhow::Result<Self> {
        let Settings { output, checkpoint, .. } = program.settings;
        let dir = folder::folder(&output.dir, program.name)?;
        let place = checkpoint.place(&dir);
        let mut held: Vec<File> = hold(&dir, "--out")?.into_iter().collect();
        if !checkpoint.dir.is_empty() && !place.contains("://") {
            held.extend(hold_apart(Path::new(&place), &dir)?);
        }
        let run = match (&program.flags.resume, going_on(program, &place)?) {
            (None, _) if output.overwrite => None,
            (None, _) => {
                folder::refuse_earlier(&dir, &program.config)?;
                refuse_checkpoints(&*open_storage(&place)?)?;
                None
            }
            (Some(_), Ok(found)) => {
                for change in found.changes.iter().filter(|_| !program.flags.quiet) {
                    tell(format_args!("changed: {change}"));
                }
                Some(found.run)
            }
            (Some(Resume::Auto), Err(_)) => {
                folder::refuse_other(&dir, &program.config)?;
                None
            }
            (Some(Resume::From(dir)), Err(why)) => {
                bail!(
                    "--resume {}: {why}; --resume auto --out {0} begins anew where there is none",
                    dir.display()
                )
            }
        };
        let run = run.map_or_else(|| getrandom::u64().map(|number| format!("{number:016x}")), Ok);
        Ok(Self { dir, run: run.context("no random number for the run's name")?, _held: held })
    }

    /// What the launcher has claimed for a rank.
    pub(crate) fn given(dir: PathBuf) -> Self {
        Self { dir, run: std::env::var(RUN_ID).unwrap_or_default(), _held: Vec::new() }
    }

    /// A folder of a process that writes no results.
    pub(crate) fn for_logs(dir: PathBuf) -> Self {
        Self { dir, run: String::new(), _held: Vec::new() }
    }
}

/// How a run begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// From the first step; in place of an earlier run's results only where the settings allow it.
    Fresh,
    /// From the newest checkpoint.
    Resume,
    /// From the newest checkpoint if there is any.
    ResumeIfThere,
}

/// The folder of results, in a rank that Brigade's launcher started.
pub(crate) fn launched_in() -> Option<PathBuf> {
    std::env::var_os(RUN_DIR).map(PathBuf::from)
}

/// How the ranks of a run begin, when they are started for the `restart`th time again.
pub(crate) fn beginning(program: &Program<'_>, restart: u32) -> Beginning {
    match (&program.flags.resume, restart) {
        (None, 0) => Beginning::Fresh,
        (Some(Resume::From(_)), 0) => Beginning::Resume,
        _ => Beginning::ResumeIfThere,
    }
}

/// The step from which a run would go on, where it is to.
///
/// # Errors
/// If it cannot.
pub(crate) fn goes_on(program: &Program<'_>) -> anyhow::Result<Option<u64>> {
    let Settings { output, checkpoint, .. } = program.settings;
    match (&program.flags.resume, going_on(program, &checkpoint.place(&output.dir))?) {
        (None, _) | (Some(Resume::Auto), Err(_)) => Ok(None),
        (Some(_), Ok(found)) => Ok(Some(found.step)),
        (Some(Resume::From(dir)), Err(why)) => bail!("--resume {}: {why}", dir.display()),
    }
}

/// What a run goes on from.
struct Found {
    step: u64,
    run: String,
    changes: Vec<String>,
}

/// Finds the newest checkpoint that `--resume` means and compares it with the settings; else why there is none.
fn going_on(program: &Program<'_>, place: &str) -> anyhow::Result<Result<Found, String>> {
    if program.flags.resume.is_none() {
        return Ok(Err(String::new()));
    }
    Ok(match newest(place)? {
        Ok((step, description)) => Ok(Found {
            step,
            changes: changes(step, &description.configuration, &program.config)?,
            run: description.run,
        }),
        Err(why) => Err(why),
    })
}

/// Locks the place of checkpoints, where that is not the run's folder itself, which is locked already.
fn hold_apart(place: &Path, dir: &Path) -> anyhow::Result<Option<File>> {
    const OPTION: &str = "checkpoint.dir";
    std::fs::create_dir_all(place).with_context(|| format!("{OPTION} = {}", place.display()))?;
    let same = || Ok::<_, std::io::Error>(place.canonicalize()? == dir.canonicalize()?);
    if same().with_context(|| format!("{OPTION} = {}", place.display()))? {
        return Ok(None);
    }
    hold(place, OPTION)
}
