//! The folder of a run: which run may write there, and how it starts.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use brigade_checkpoint::{Lease, open_storage};
use brigade_files::write_atomic;
use brigade_report::timeline::PROFILE_FOLDER;
use brigade_report::{HISTORY_FILE, METRICS_FILE, add_launch_to_history, check_metrics_address};

use super::auto::CHOICE_FILE;
use super::lost_lease::LostLease;
use super::program::Program;
use crate::checkpoint::{newest, refuse_checkpoints};
use crate::error::{format_error, print_stderr};
use crate::folder::{
    FLIGHT_FOLDER, LOGS_FOLDER, RESULTS, TEMPLATES_FOLDER, create_folder, is_of_a_run, is_weights, lease,
    lock_folder, may_be_shared, name_host, refuse_earlier, refuse_earlier_names, refuse_other,
    refuse_results_without_checkpoint, refuse_unwritable,
};
use crate::object_results::{Copied, Copies, ObjectResults};
use crate::settings::{CONFIG_FILE, Resume, Settings, changes};

/// The variable that says what was chosen for the run.
pub(crate) const RUN_CHOICE: &str = "BRIGADE_RUN_CHOICE";

/// The variable that names the run to them.
pub(crate) const RUN_ID: &str = "BRIGADE_RUN_ID";

/// Writes down what was chosen for the run, on rank 0; a run for which nothing was chosen leaves no word of an earlier one's choice.
pub(crate) fn write_choice(dir: &Path, is_new: bool) -> anyhow::Result<()> {
    let file = dir.join(CHOICE_FILE);
    let wrong = || format!("cannot write {}", file.display());
    match std::env::var(RUN_CHOICE) {
        Ok(choice) => write_atomic(&file, choice.as_bytes()).with_context(wrong),
        Err(_) if is_new && file.exists() => std::fs::remove_file(&file).with_context(wrong),
        Err(_) => Ok(()),
    }
}

/// A run's folder and where its checkpoints are, locked against other runs until this is dropped and the ranks have ended; by leases where
/// there are no locks.
pub(crate) struct RunFolder {
    pub dir: PathBuf,
    /// Identifies the checkpoints of this run. A resumed run keeps its id.
    pub run: String,
    /// Whether it has lost a lease.
    pub lost: Arc<LostLease>,
    leases: Vec<Lease>,
    copies: Option<Copies>,
    _locks: Vec<File>,
}

impl RunFolder {
    /// Refuses a new run, before anything is prepared for it, for what would end it later: its folder, and the address of its metrics. Nothing is made
    /// or locked; a run that resumes may wait for an earlier one to end.
    pub(crate) fn look(program: &Program<'_>) -> anyhow::Result<()> {
        let output = &program.settings.output;
        if program.flags.resume.is_some() {
            return Ok(());
        }
        let dir = output.folder()?;
        refuse_unwritable(&dir)?;
        if !output.overwrite && !dir.as_os_str().is_empty() {
            refuse_earlier(&dir, &program.config)?;
        }
        output.metrics_address()?.map_or(Ok(()), |address| Ok(check_metrics_address(address)?))
    }

    /// Finds the folder of results of a new or resumed run, locks it, and only then decides what the run may do there. Prints
    /// which settings a resumed run changes. `notify`: the command that is told if the run loses its place.
    pub(crate) fn lock(program: &Program<'_>, notify: &[String]) -> anyhow::Result<Self> {
        let Settings { output, checkpoint, .. } = program.settings;
        let dir = create_folder(&output.folder()?, program.name)?;
        let location = program.settings.checkpoint_location(&dir);
        let results = output.url().map(|url| ObjectResults::open(&url)).transpose()?;
        let names_there =
            || results.as_ref().map_or_else(|| Ok(Vec::new()), |results| results.names(&FOLDERS));
        let own = lock_folder(&dir, "--out")?;
        let check_new = || {
            if program.flags.resume.is_none() && !output.overwrite {
                refuse_earlier(&dir, &program.config)?;
                refuse_earlier_names(&output.dir, &names_there()?)?;
                refuse_checkpoints(&*open_storage(&location)?)?;
            }
            Ok(())
        };
        let lost = Arc::new(LostLease::new(&dir, own.is_some() && !may_be_shared(&dir), notify));
        let take = |place: &str, option| {
            let lost = Arc::clone(&lost);
            let end_run = move |message: &str| lost.end_run(message);
            lease(place, option, &dir, own.as_ref(), program.settings, &check_new, end_run)
        };
        let mut leases = Vec::new();
        let url = output.url();
        match &url {
            Some(url) => leases.push(take(url, "--out")?),
            None if own.is_none() || may_be_shared(&dir) => {
                leases.push(take(&dir.to_string_lossy(), "--out")?)
            }
            None => {}
        }
        let mut locks = Vec::new();
        if location.contains("://") {
            if url.as_deref() != Some(location.trim_end_matches('/')) {
                leases.push(take(&location, CHECKPOINTS)?);
            }
        } else if !checkpoint.dir.is_empty() {
            match lock_checkpoints(Path::new(&location), &dir)? {
                Claim::Locked(file) => {
                    if may_be_shared(Path::new(&location)) {
                        leases.push(take(&location, CHECKPOINTS)?);
                    }
                    locks.push(file);
                }
                Claim::NoLocks => leases.push(take(&location, CHECKPOINTS)?),
                Claim::Owned => {}
            }
        }
        let mut own = own;
        if may_be_shared(&dir) {
            own.iter_mut().for_each(name_host);
        }
        locks.extend(own);
        // Another run may have written until now.
        let there = names_there()?;
        if let Some(results) = results.as_ref().filter(|_| program.flags.resume.is_some()) {
            results.fetch(&dir, &RECORDS)?;
        }
        let run = match (&program.flags.resume, find_checkpoint(program, &location)?) {
            (None, _) => {
                check_new()?;
                None
            }
            (Some(_), Ok(found)) => {
                for change in found.changes.iter().filter(|_| !program.flags.quiet) {
                    print_stderr(format_args!("changed: {change}"));
                }
                Some(found.run)
            }
            (Some(Resume::Auto), Err(_)) => {
                refuse_other(&dir, &program.config)?;
                refuse_results_without_checkpoint(&output.dir, &there)?;
                None
            }
            (Some(Resume::From(dir)), Err(why)) => {
                bail!(
                    "--resume {}: {why}; --resume auto --out {0} starts a new run if there is none to resume",
                    dir.display()
                )
            }
        };
        let run = run.map_or_else(|| getrandom::u64().map(|number| format!("{number:016x}")), Ok);
        let run = run.context("no random number for the run's id")?;
        let of_run = Arc::clone(&lost);
        let is_own = move || of_run.reason().is_none();
        let copies = match results {
            None => None,
            Some(results) => {
                let was_last = claim(&dir, &run)?;
                let copied = match program.flags.resume {
                    None => Copied::new_run(there),
                    Some(_) => Copied::resumed(!was_last, there),
                };
                Some(start_copies(program, &dir, results, copied, is_own)?)
            }
        };
        add_launch_to_history(&dir)?;
        Ok(Self { dir, run, lost, leases, copies, _locks: locks })
    }

    /// The folder of a node without rank 0, whose ranks write logs there.
    pub(crate) fn of_node(program: &Program<'_>) -> anyhow::Result<Self> {
        let output = &program.settings.output;
        let dir = create_folder(&output.folder()?, program.name)?;
        let copies = output.url().map(|url| {
            let copied = Copied { folders: Some(&OF_EVERY_NODE), ..Copied::default() };
            start_copies(program, &dir, ObjectResults::open(&url)?, copied, || true)
        });
        let copies = copies.transpose()?;
        Ok(Self { copies, ..Self::for_logs(dir) })
    }

    /// The folder that the launcher has locked for its ranks.
    pub(crate) fn from_launcher(dir: PathBuf) -> Self {
        Self { run: std::env::var(RUN_ID).unwrap_or_default(), ..Self::for_logs(dir) }
    }

    /// The folder of a process that writes no results, only logs.
    pub(crate) fn for_logs(dir: PathBuf) -> Self {
        let lost = Arc::new(LostLease::new(&dir, false, &[]));
        Self { dir, run: String::new(), lost, leases: Vec::new(), copies: None, _locks: Vec::new() }
    }

    /// Whether the run has a bucket.
    pub(crate) fn has_copies(&self) -> bool {
        self.copies.is_some()
    }

    /// Copies what is left to the run's bucket, if it has one.
    ///
    /// # Errors
    /// If that fails; the files are in the run's folder on this machine.
    pub(crate) fn finish_copies(&mut self) -> anyhow::Result<()> {
        self.copies.take().map_or(Ok(()), Copies::finish)
    }

    /// Gives the places back, and says how the run ended, to those who look at a lease.
    pub(crate) fn release(mut self, ended: &str) {
        if let Err(error) = self.finish_copies() {
            print_stderr(format_args!("warning: {}", format_error(&error)));
        }
        for lease in self.leases {
            let location = lease.location();
            if let Err(error) = lease.release(ended) {
                print_stderr(format_args!(
                    "warning: could not release the lease of {location} ({error}); it will expire"
                ));
            }
        }
    }
}

/// What a run that resumes on another machine goes on writing to.
const RECORDS: [&str; 4] = [CONFIG_FILE, METRICS_FILE, HISTORY_FILE, CHOICE_FILE];

/// Folders of what a run writes, but its checkpoints.
const FOLDERS: [&str; 4] = [LOGS_FOLDER, FLIGHT_FOLDER, PROFILE_FOLDER, TEMPLATES_FOLDER];

/// What the ranks of each node write.
const OF_EVERY_NODE: [&str; 2] = [LOGS_FOLDER, FLIGHT_FOLDER];

/// The file in a folder of this machine that says which run has worked there, of those with a URL.
const RUN_FILE: &str = ".brigade.run";

/// Says that this run works in this folder of the machine; whether it was the last one that did.
fn claim(dir: &Path, run: &str) -> anyhow::Result<bool> {
    let file = dir.join(RUN_FILE);
    let was_there = std::fs::read_to_string(&file).is_ok_and(|before| before == run);
    write_atomic(&file, run.as_bytes()).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(was_there)
}

/// Begins to copy what the run writes to its bucket.
fn start_copies(
    program: &Program<'_>,
    dir: &Path,
    results: ObjectResults,
    copied: Copied,
    is_own: impl Fn() -> bool + Send + 'static,
) -> anyhow::Result<Copies> {
    if !program.flags.quiet && copied.folders.is_none() {
        print_stderr(format_args!("the files of {} are copied to {}", dir.display(), results.url()));
    }
    let every = Duration::from_secs_f64(program.settings.output.copy_every_seconds);
    Copies::start(results, dir, copied, every, is_own)
}

impl Copied {
    /// Of a new run, which replaces what is in the bucket as soon as it writes metrics.
    fn new_run(there: Vec<String>) -> Self {
        let is_replaced = |name: &String| is_of_a_run(name) || name == CHOICE_FILE;
        let replaced = there.into_iter().filter(is_replaced).collect();
        Self { is_of_another_run: true, replaced, once: &[METRICS_FILE], ..Self::default() }
    }

    /// Of a resumed run, which only replaces weights, when it writes some.
    fn resumed(is_of_another_run: bool, there: Vec<String>) -> Self {
        let replaced = there.into_iter().filter(|name| is_weights(name)).collect();
        Self { is_of_another_run, replaced, once: &RESULTS, ..Self::default() }
    }
}

/// Where a run starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartFrom {
    /// The first step; earlier results are replaced only if the settings allow it.
    Scratch,
    /// The newest checkpoint.
    Checkpoint,
    /// The newest checkpoint, or the first step if there is none.
    CheckpointIfAny,
}

/// Where the ranks start from, after the launcher has restarted them `restart` times.
pub(crate) fn start_from(program: &Program<'_>, restart: u32) -> StartFrom {
    match (&program.flags.resume, restart) {
        (None, 0) => StartFrom::Scratch,
        (Some(Resume::From(_)), 0) => StartFrom::Checkpoint,
        _ => StartFrom::CheckpointIfAny,
    }
}

/// The step that `--resume` would resume from; `None` for a new run.
///
/// # Errors
/// If it cannot be resumed.
pub(crate) fn resume_step(program: &Program<'_>) -> anyhow::Result<Option<u64>> {
    let location = program.settings.checkpoint_location(&program.settings.output.folder()?);
    match (&program.flags.resume, find_checkpoint(program, &location)?) {
        (None, _) | (Some(Resume::Auto), Err(_)) => Ok(None),
        (Some(_), Ok(found)) => Ok(Some(found.step)),
        (Some(Resume::From(dir)), Err(why)) => bail!("--resume {}: {why}", dir.display()),
    }
}

/// The checkpoint that a run resumes from.
struct Found {
    step: u64,
    run: String,
    changes: Vec<String>,
}

/// Finds the newest checkpoint for `--resume` and compares its configuration with this one; the inner error says why there is
/// none.
fn find_checkpoint(program: &Program<'_>, location: &str) -> anyhow::Result<Result<Found, String>> {
    if program.flags.resume.is_none() {
        return Ok(Err(String::new()));
    }
    Ok(match newest(location)? {
        Ok((step, description)) => Ok(Found {
            step,
            changes: changes(step, &description.configuration, &program.config)?,
            run: description.run,
        }),
        Err(why) => Err(why),
    })
}

/// The option that says where checkpoints are.
const CHECKPOINTS: &str = "checkpoint.dir";

/// Whether a folder has a lock.
enum Claim {
    Locked(File),
    /// The file system has none.
    NoLocks,
    /// It is the run's folder.
    Owned,
}

/// Locks the folder of checkpoints, unless it is the run's folder, which is locked already.
fn lock_checkpoints(location: &Path, dir: &Path) -> anyhow::Result<Claim> {
    const OPTION: &str = CHECKPOINTS;
    std::fs::create_dir_all(location).with_context(|| format!("{OPTION} = {}", location.display()))?;
    let same = || Ok::<_, std::io::Error>(location.canonicalize()? == dir.canonicalize()?);
    if same().with_context(|| format!("{OPTION} = {}", location.display()))? {
        return Ok(Claim::Owned);
    }
    Ok(lock_folder(location, OPTION)?.map_or(Claim::NoLocks, Claim::Locked))
}
