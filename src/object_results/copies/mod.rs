//! Copies a run's files to its bucket while it runs.

#[cfg(all(test, feature = "object-store"))]
mod tests;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, anyhow};
use brigade_sorted::SortedMap;

use crate::error::{format_error, print_stderr};
use crate::object_results::ObjectResults;

/// Between two rounds there are at least as many times the length of the last one, so that copies take a small part of the network and the disk.
const SHARE: u32 = 10;

/// The first round comes sooner: a run's configuration and its first lines are worth seeing.
const FIRST: Duration = Duration::from_secs(3);

/// How often it is looked whether a new run has begun to write, as long as an earlier one's files are in the bucket.
const LOOK: Duration = Duration::from_secs(1);

/// A round that has taken so long ends at the first failure: the store does not answer.
const LONG: Duration = Duration::from_secs(20);

/// The folder that is not copied: checkpoints are saved where they belong.
const EXCEPT: &str = "checkpoints";

/// What of a folder is copied.
#[derive(Debug, Default)]
pub(crate) struct Copied {
    /// These folders alone: what the ranks of a node write that has not the run's folder. None: all.
    pub folders: Option<&'static [&'static str]>,
    /// Whether what is in the folder at first is of another run, and so is not copied unless it changes.
    pub is_of_another_run: bool,
    /// Files in the bucket that go, if this machine does not have them, once one of the files `once` has been written.
    pub replaced: Vec<String>,
    pub once: &'static [&'static str],
}

/// Copies files on a thread, until it is told that the run has ended.
pub(crate) struct Copies {
    end: Sender<()>,
    thread: JoinHandle<anyhow::Result<()>>,
}

impl Copies {
    /// Begins to copy what changes in `folder`, every so often, as long as `is_own` says that the bucket is this run's.
    ///
    /// # Errors
    /// If the folder cannot be read, or no thread can be started.
    pub(crate) fn start(
        results: ObjectResults,
        folder: &Path,
        copied: Copied,
        every: Duration,
        is_own: impl Fn() -> bool + Send + 'static,
    ) -> anyhow::Result<Self> {
        let (end, ended) = channel();
        let mut copier = Copier::new(results, folder, copied, Box::new(is_own))?;
        let run = move || {
            let (mut next, mut was_wrong) = (Instant::now() + FIRST.min(every), false);
            loop {
                let left = next.saturating_duration_since(Instant::now());
                let wait = if copier.copied.replaced.is_empty() { left } else { left.min(LOOK) };
                if ended.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
                let begun = Instant::now();
                if begun < next {
                    // If it fails, the next round says so.
                    drop(copier.remove_replaced());
                    continue;
                }
                let round = copier.round();
                let pause = if round.is_ok() { every.max(SHARE * begun.elapsed()) } else { every };
                next = Instant::now() + pause;
                if let Some(error) = round.as_ref().err().filter(|_| !was_wrong) {
                    let (error, seconds) = (format_error(error), every.as_secs_f64());
                    print_stderr(format_args!(
                        "warning: output.dir: {error}; it is tried again every {seconds} s"
                    ));
                }
                was_wrong = round.is_err();
            }
            copier.round().with_context(|| {
                format!("not all of {} could be copied to {}", copier.folder.display(), copier.results.url())
            })
        };
        let thread = thread::Builder::new().name("copies".into()).spawn(run);
        Ok(Self { end, thread: thread.context("no thread can be started for copies of results")? })
    }

    /// Copies what is left.
    ///
    /// # Errors
    /// What could not be copied, and where it is.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        drop(self.end);
        self.thread.join().unwrap_or_else(|_| Err(anyhow!("the thread that copies results has panicked")))
    }
}

struct Copier {
    results: ObjectResults,
    folder: PathBuf,
    copied: Copied,
    began: SystemTime,
    /// Size and time of each file when it was copied.
    done: SortedMap<String, Version>,
    /// Whether it is known what the bucket has in newer versions.
    has_compared: bool,
    is_own: Box<dyn Fn() -> bool + Send>,
}

/// A file's size, and when it was changed.
type Version = (u64, SystemTime);

impl Copier {
    fn new(
        results: ObjectResults,
        folder: &Path,
        copied: Copied,
        is_own: Box<dyn Fn() -> bool + Send>,
    ) -> anyhow::Result<Self> {
        let (folder, began) = (folder.to_owned(), SystemTime::now());
        let has_compared = copied.is_of_another_run;
        let mut copier =
            Self { results, folder, copied, began, done: SortedMap::new(), has_compared, is_own };
        if copier.copied.is_of_another_run {
            copier.done.extend(copier.changed()?);
        }
        Ok(copier)
    }

    /// Copies what has changed. One file that cannot be copied does not keep the rest from it.
    fn round(&mut self) -> anyhow::Result<()> {
        self.skip_older()?;
        let (begun, mut failure) = (Instant::now(), self.remove_replaced());
        for (name, _) in self.changed()? {
            if !(self.is_own)() {
                return Ok(());
            }
            if failure.is_err() && begun.elapsed() > LONG {
                return failure;
            }
            match self.copy(&name) {
                Ok(version) => self.done.extend(version.map(|version| (name, version))),
                Err(error) => failure = failure.and(Err(error)),
            }
        }
        failure
    }

    /// Leaves out what is in the bucket in a newer version: what this machine has of a run that another one has continued.
    fn skip_older(&mut self) -> anyhow::Result<()> {
        if self.has_compared {
            return Ok(());
        }
        let here = self.changed()?;
        let folders: BTreeSet<_> = here.iter().map(|(name, _)| folder_of(name)).collect();
        let mut there = SortedMap::<String, SystemTime>::new();
        for folder in folders {
            there.extend(self.results.times(folder)?);
        }
        let is_older = |(name, (_, changed)): &(String, Version)| {
            there.get(name).is_some_and(|there| there >= changed && *changed < self.began)
        };
        let older: Vec<_> = here.into_iter().filter(is_older).collect();
        self.done.extend(older);
        self.has_compared = true;
        Ok(())
    }

    /// Copies a file; its version, unless it is not there any more.
    fn copy(&self, name: &str) -> anyhow::Result<Option<Version>> {
        let path = self.folder.join(name);
        let wrong = || path.display().to_string();
        match File::open(&path) {
            // It was removed, or has another name now.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            opened => {
                let file = opened.with_context(wrong)?;
                let about = file.metadata().with_context(wrong)?;
                self.results.upload(name, &file, about.len())?;
                Ok(Some((about.len(), about.modified().with_context(wrong)?)))
            }
        }
    }

    /// Removes from the bucket what this run replaces, where this machine does not have it, once it has written something in its place. What
    /// it has of the earlier run may still be removed here.
    fn remove_replaced(&mut self) -> anyhow::Result<()> {
        let changed = |name: &str| self.folder.join(name).metadata().and_then(|file| file.modified());
        let is_new = |name: &&str| changed(name).is_ok_and(|changed| changed >= self.began);
        if self.copied.replaced.is_empty() || !self.copied.once.iter().any(is_new) || !(self.is_own)() {
            return Ok(());
        }
        let (mut left, mut failure) = (Vec::new(), Ok(()));
        for name in &self.copied.replaced {
            match changed(name) {
                Ok(changed) if changed >= self.began => {}
                Ok(_) => left.push(name.clone()),
                Err(_) if failure.is_err() => left.push(name.clone()),
                Err(_) => {
                    failure = self.results.remove(name);
                    left.extend(failure.is_err().then(|| name.clone()));
                }
            }
        }
        self.copied.replaced = left;
        failure
    }

    /// The files that are not copied as they are now.
    fn changed(&self) -> anyhow::Result<Vec<(String, Version)>> {
        let mut found = Vec::new();
        for folder in self.copied.folders.unwrap_or(&[""]) {
            files(&self.folder, folder, &mut found)?;
        }
        found.retain(|(name, version)| self.done.get(name) != Some(version));
        found.sort();
        Ok(found)
    }
}

/// The folder that a file is in.
fn folder_of(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// Finds the files in a folder below `root` and in those below it. Names that begin with a dot are locks and files that are being written.
fn files(root: &Path, below: &str, found: &mut Vec<(String, Version)>) -> anyhow::Result<()> {
    let folder = root.join(below);
    let entries = match fs::read_dir(&folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        read => read.with_context(|| format!("cannot read {}", folder.display()))?,
    };
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot read {}", folder.display()))?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = if below.is_empty() { name.clone() } else { format!("{below}/{name}") };
        // It may be gone by now.
        let Ok(about) = entry.metadata() else { continue };
        if name.starts_with('.') || path == EXCEPT {
            continue;
        }
        if about.is_dir() {
            files(root, &path, found)?;
        } else if let Some(changed) = about.modified().ok().filter(|_| about.is_file()) {
            found.push((path, (about.len(), changed)));
        }
    }
    Ok(())
}
