//! Runs whose files are in a bucket.

use std::fs::File;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A run's folder, or a copy of what is read of one whose folder is a URL; the copy goes when this is dropped.
pub struct RunPlace {
    folder: PathBuf,
    copy: Option<TempDir>,
    /// Of a run that goes on, as its own folder has it.
    _lock: Option<File>,
}

impl RunPlace {
    /// Finds a run; `given` is its folder or its URL.
    ///
    /// # Errors
    /// If the bucket does not answer, or the build has no object stores.
    pub fn of(given: &Path) -> anyhow::Result<Self> {
        match given.to_string_lossy() {
            url if url.contains("://") => copied(url.trim_end_matches('/')),
            _ => Ok(Self { folder: given.to_owned(), copy: None, _lock: None }),
        }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether it is a copy, into which nothing should be written.
    pub fn is_copy(&self) -> bool {
        self.copy.is_some()
    }
}

#[cfg(not(feature = "object-store"))]
fn copied(url: &str) -> anyhow::Result<RunPlace> {
    anyhow::bail!("{url}: this build has no object stores (cargo's feature object-store)")
}

#[cfg(feature = "object-store")]
fn copied(url: &str) -> anyhow::Result<RunPlace> {
    use std::fs;
    use std::time::Duration;

    use anyhow::Context;
    use brigade::checkpoints::{lease_location, look_at_lease};
    use brigade::lock_folder;
    use brigade::report::timeline::PROFILE_FOLDER;
    use brigade_store::Folder;

    /// How long the store may take for a file.
    const ANSWER: Duration = Duration::from_secs(60);
    let bucket = Folder::open(url, ANSWER)?;
    let copy =
        tempfile::Builder::new().prefix("brigade-").tempdir().context("cannot create a temporary folder")?;
    let folder = copy.path().join(url.rsplit('/').next().unwrap_or_default());
    let wrong = || format!("cannot write into {}", folder.display());
    fs::create_dir_all(folder.join(PROFILE_FOLDER)).with_context(wrong)?;
    fs::create_dir_all(folder.join("logs")).with_context(wrong)?;
    let files = ["", PROFILE_FOLDER, "logs"].map(|below| bucket.files(below)).into_iter();
    let files = files.collect::<Result<Vec<_>, _>>()?.concat();
    for file in files.into_iter().filter(|file| is_read(&file.name)) {
        let mut local = File::create(folder.join(&file.name)).with_context(wrong)?;
        bucket.download(&file.name, &mut local)?;
    }
    let is_running = look_at_lease(&*lease_location(url)?)?.is_some_and(|found| found.is_held());
    // A lock that is free again says that nobody is at work, though the files are new.
    let lock = lock_folder(&folder, "the copy")?.filter(|_| is_running);
    Ok(RunPlace { folder, copy: Some(copy), _lock: lock })
}

/// Whether pages and comparisons of runs read a file: lines, settings and timelines, but not weights.
#[cfg(feature = "object-store")]
fn is_read(name: &str) -> bool {
    [".json", ".jsonl", ".toml"].iter().any(|end| name.ends_with(end)) && !name.ends_with("tokenizer.json")
}
