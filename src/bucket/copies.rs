//! Copies a run's files to its bucket while it runs.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, anyhow};
use brigade_report::METRICS_FILE;
use brigade_sorted::SortedMap;

use super::Bucket;
use crate::error::{format_error, print_stderr};

/// Between two rounds there are at least as many times the length of the last one, so that copies take a small part of the network and the disk.
const SHARE: u32 = 10;

/// The first round comes sooner: a run's configuration and its first lines are worth seeing.
const FIRST: Duration = Duration::from_secs(3);

/// A round that has taken so long ends at the first failure: the store does not answer.
const LONG: Duration = Duration::from_secs(20);

/// What of a folder is copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Copied {
    /// All that the run writes. `stale`: files of an earlier run in the bucket, which are removed once this one has begun to replace them.
    Run { stale: Vec<String> },
    /// These folders: what the ranks of a node write that has not the run's folder.
    Folders(&'static [&'static str]),
}

/// Copies files on a thread, until it is told that the run has ended.
pub(crate) struct Copies {
    end: Sender<()>,
    thread: JoinHandle<anyhow::Result<()>>,
}

impl Copies {
    /// Begins to copy what changes in `folder`, but for the folder `except` in it, every so often, as long as `is_own` says that the bucket is this
    /// run's.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn start(
        bucket: Bucket,
        folder: &Path,
        (copied, except): (Copied, &'static str),
        every: Duration,
        is_own: impl Fn() -> bool + Send + 'static,
    ) -> anyhow::Result<Self> {
        let (end, ended) = channel();
        let mut copier = Copier {
            bucket,
            folder: folder.to_owned(),
            copied,
            except,
            began: SystemTime::now(),
            done: SortedMap::new(),
            is_own: Box::new(is_own),
        };
        let run = move || {
            let (mut wait, mut was_wrong) = (FIRST.min(every), false);
            copier.skip_older();
            while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                let begun = Instant::now();
                let round = copier.round();
                wait = every.max(SHARE * begun.elapsed());
                if let Some(error) = round.as_ref().err().filter(|_| !was_wrong) {
                    let error = format_error(error);
                    print_stderr(format_args!(
                        "warning: output.dir: {error}; it is tried again, every {} s at most",
                        every.as_secs_f64()
                    ));
                }
                was_wrong = round.is_err();
            }
            copier.round().with_context(|| {
                format!("not all of {} could be copied to {}", copier.folder.display(), copier.bucket.url())
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
    bucket: Bucket,
    folder: PathBuf,
    copied: Copied,
    except: &'static str,
    began: SystemTime,
    /// Size and time of each file when it was copied.
    done: SortedMap<String, Version>,
    is_own: Box<dyn Fn() -> bool + Send>,
}

/// A file's size, and when it was changed.
type Version = (u64, SystemTime);

impl Copier {
    /// Copies what has changed. One file that cannot be copied does not keep the rest from it.
    fn round(&mut self) -> anyhow::Result<()> {
        self.remove_stale()?;
        let (begun, mut failure) = (Instant::now(), Ok(()));
        for (name, version) in self.changed()? {
            if !(self.is_own)() {
                return Ok(());
            }
            match self.copy(&name, version) {
                Ok(()) => drop(self.done.insert(name, version)),
                Err(error) if failure.is_err() || begun.elapsed() > LONG => return failure.and(Err(error)),
                Err(error) => failure = Err(error),
            }
        }
        failure
    }

    /// Leaves out what is in the bucket in a newer version: what this machine has of a run that another one has continued. Where the store does not answer, the next
    /// round says so.
    fn skip_older(&mut self) {
        let Ok(here) = self.changed() else { return };
        let folders: BTreeSet<_> = here.iter().map(|(name, _)| folder_of(name)).collect();
        let there: SortedMap<String, SystemTime> =
            folders.into_iter().filter_map(|folder| self.bucket.times(folder).ok()).flatten().collect();
        let is_older =
            |(name, (_, changed)): &(String, Version)| there.get(name).is_some_and(|there| there >= changed);
        let older: Vec<_> = here.into_iter().filter(is_older).collect();
        self.done.extend(older);
    }

    fn copy(&self, name: &str, (bytes, _): Version) -> anyhow::Result<()> {
        let path = self.folder.join(name);
        match File::open(&path) {
            // It was removed, or has another name now.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            opened => self.bucket.upload(name, &opened.with_context(|| path.display().to_string())?, bytes),
        }
    }

    /// Removes what an earlier run has left in the bucket, where this one does not have it, once it writes metrics of its own.
    fn remove_stale(&mut self) -> anyhow::Result<()> {
        let Copied::Run { stale } = &mut self.copied else { return Ok(()) };
        let metrics = self.folder.join(METRICS_FILE).metadata().and_then(|file| file.modified());
        if stale.is_empty() || !metrics.is_ok_and(|changed| changed >= self.began) || !(self.is_own)() {
            return Ok(());
        }
        for name in std::mem::take(stale) {
            if !self.folder.join(&name).exists() {
                self.bucket.remove(&name)?;
            }
        }
        Ok(())
    }

    /// The files that are not copied as they are now.
    fn changed(&self) -> anyhow::Result<Vec<(String, Version)>> {
        let mut found = Vec::new();
        match &self.copied {
            Copied::Run { .. } => files(&self.folder, "", self.except, &mut found)?,
            Copied::Folders(names) => {
                names.iter().try_for_each(|name| files(&self.folder, name, self.except, &mut found))?;
            }
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
fn files(root: &Path, below: &str, except: &str, found: &mut Vec<(String, Version)>) -> anyhow::Result<()> {
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
        if name.starts_with('.') || path == except {
            continue;
        }
        if about.is_dir() {
            files(root, &path, except, found)?;
        } else if let Some(changed) = about.modified().ok().filter(|_| about.is_file()) {
            found.push((path, (about.len(), changed)));
        }
    }
    Ok(())
}

#[cfg(all(test, feature = "object-store"))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    struct Place {
        _temp: tempfile::TempDir,
        local: PathBuf,
        remote: PathBuf,
        bucket: Bucket,
    }

    fn place() -> Place {
        let temp = tempfile::tempdir().unwrap();
        let [local, remote] = ["local", "remote"].map(|name| temp.path().join(name));
        fs::create_dir_all(local.join("logs")).unwrap();
        let bucket = Bucket::open(&format!("file://{}", remote.display())).unwrap();
        Place { _temp: temp, local, remote, bucket }
    }

    impl Place {
        fn copier(&self, copied: Copied) -> Copier {
            let (bucket, folder) = (self.bucket.clone(), self.local.clone());
            let (began, done) = (SystemTime::UNIX_EPOCH, SortedMap::new());
            Copier { bucket, folder, copied, except: EXCEPT, began, done, is_own: Box::new(|| true) }
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.local.join(name), text).unwrap();
        }

        fn there(&self, name: &str) -> Option<String> {
            fs::read_to_string(self.remote.join(name)).ok()
        }
    }

    const EXCEPT: &str = "checkpoints";

    const RUN: Copied = Copied::Run { stale: Vec::new() };

    #[test]
    fn what_a_run_writes_is_copied_and_nothing_else() {
        let place = place();
        fs::create_dir(place.local.join(EXCEPT)).unwrap();
        for name in ["a.txt", "logs/rank-0.log", ".brigade.lock", ".a.txt.abcdefgh.part", "checkpoints/x"] {
            place.write(name, "1");
        }
        let copies =
            Copies::start(place.bucket.clone(), &place.local, (RUN, EXCEPT), Duration::from_secs(60), || {
                true
            })
            .unwrap();
        place.write("last.txt", "2");
        copies.finish().unwrap();
        for (name, content) in [("a.txt", "1"), ("logs/rank-0.log", "1"), ("last.txt", "2")] {
            assert_eq!(place.there(name).as_deref(), Some(content), "{name}");
        }
        for name in [".brigade.lock", ".a.txt.abcdefgh.part", "checkpoints/x"] {
            assert_eq!(place.there(name), None, "{name}");
        }
    }

    #[test]
    fn only_what_has_changed_is_copied_again() {
        let place = place();
        let mut copier = place.copier(RUN);
        place.write("a.txt", "1");
        place.write("b.txt", "1");
        copier.round().unwrap();
        assert!(copier.changed().unwrap().is_empty());
        place.write("a.txt", "12");
        assert_eq!(copier.changed().unwrap().len(), 1);
        copier.round().unwrap();
        assert_eq!(place.there("a.txt").as_deref(), Some("12"));
    }

    #[test]
    fn what_another_machine_has_written_since_stays() {
        let place = place();
        place.write("model.safetensors", "old");
        place.write("logs/rank-0.log", "old");
        place.copier(RUN).round().unwrap();
        for name in ["model.safetensors", "logs/rank-0.log"] {
            fs::write(place.remote.join(name), "of another machine").unwrap();
        }
        place.write("config.toml", "new");
        let mut copier = place.copier(RUN);
        copier.skip_older();
        copier.round().unwrap();
        assert_eq!(place.there("model.safetensors").as_deref(), Some("of another machine"));
        assert_eq!(place.there("logs/rank-0.log").as_deref(), Some("of another machine"));
        assert_eq!(place.there("config.toml").as_deref(), Some("new"));
        // But what changes here from now on is copied.
        place.write("model.safetensors", "newest");
        copier.round().unwrap();
        assert_eq!(place.there("model.safetensors").as_deref(), Some("newest"));
    }

    #[test]
    fn other_nodes_copy_what_their_ranks_write() {
        let place = place();
        place.write("config.toml", "1");
        place.write("logs/rank-4.log", "1");
        place.copier(Copied::Folders(&["logs", "flight"])).round().unwrap();
        assert_eq!((place.there("config.toml"), place.there("logs/rank-4.log")), (None, Some("1".into())));
    }

    #[test]
    fn files_of_an_earlier_run_stay_until_this_one_writes() {
        let place = place();
        place.write("model.safetensors", "old");
        place.write("config.toml", "old");
        place.copier(RUN).round().unwrap();
        fs::remove_file(place.local.join("model.safetensors")).unwrap();
        place.write("config.toml", "new");
        let stale = ["model.safetensors", "config.toml"].map(str::to_owned).to_vec();
        let mut copier = place.copier(Copied::Run { stale });
        copier.round().unwrap();
        assert_eq!(place.there("model.safetensors").as_deref(), Some("old"));
        place.write(METRICS_FILE, "{}");
        copier.round().unwrap();
        assert_eq!(place.there("model.safetensors"), None);
        assert_eq!(place.there("config.toml").as_deref(), Some("new"));
    }

    #[test]
    fn a_bucket_of_another_run_is_left_alone() {
        let place = place();
        place.write("a.txt", "1");
        let mut copier = Copier { is_own: Box::new(|| false), ..place.copier(RUN) };
        copier.round().unwrap();
        assert_eq!(place.there("a.txt"), None);
    }

    #[test]
    fn what_fails_is_named_and_the_rest_is_copied() {
        let place = place();
        // A folder of the name of a file.
        fs::create_dir_all(place.remote.join("a.txt/x")).unwrap();
        place.write("a.txt", "1");
        place.write("b.txt", "1");
        let error = place.copier(RUN).round().unwrap_err().to_string();
        assert!(error.contains("a.txt"), "{error}");
        assert_eq!(place.there("b.txt").as_deref(), Some("1"));
    }

    #[test]
    fn the_newer_of_two_files_is_fetched() {
        let place = place();
        place.write("metrics.jsonl", "old");
        place.write("config.toml", "old");
        place.copier(RUN).round().unwrap();
        let late = SystemTime::now() + Duration::from_secs(60);
        let set = |file: PathBuf| File::options().write(true).open(file).unwrap().set_modified(late).unwrap();
        place.write("config.toml", "newer here");
        set(place.local.join("config.toml"));
        fs::write(place.remote.join("metrics.jsonl"), "newer there").unwrap();
        set(place.remote.join("metrics.jsonl"));
        place.bucket.fetch(&place.local, &["metrics.jsonl", "config.toml", "none"]).unwrap();
        let here = |name: &str| fs::read_to_string(place.local.join(name)).unwrap();
        assert_eq!((here("metrics.jsonl"), here("config.toml")), ("newer there".into(), "newer here".into()));
        // Another machine.
        let other = place.local.join("other");
        place.bucket.fetch(&other, &["metrics.jsonl"]).unwrap();
        assert_eq!(fs::read_to_string(other.join("metrics.jsonl")).unwrap(), "newer there");
        assert!(!other.join("config.toml").exists());
    }
}
