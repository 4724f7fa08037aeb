//! A run's files in a bucket.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use brigade_files::AtomicFile;
use brigade_store::{Folder, Location, Scheme};

/// How long what a store does not answer is tried again.
const DEADLINE: Duration = Duration::from_secs(120);

/// Refuses a URL that results cannot go to, and says why.
pub(crate) fn check_url(url: &str) -> Result<(), String> {
    match Location::parse(url) {
        Err(error) => Err(error.to_string()),
        Ok(location) if location.scheme() == Scheme::Http => {
            Err("files there can only be read; give a folder, gs://BUCKET/PATH or s3://BUCKET/PATH".into())
        }
        Ok(location) if location.path().as_ref().is_empty() => {
            Err(format!("a path in the bucket is needed, as in {}/runs/a", location.root()))
        }
        Ok(_) => Ok(()),
    }
}

/// The files below a run's URL.
#[derive(Debug, Clone)]
pub(crate) struct ObjectResults {
    folder: Folder,
    url: String,
}

impl ObjectResults {
    /// What is at this URL, where nothing need be yet.
    pub(crate) fn open(url: &str) -> anyhow::Result<Self> {
        Ok(Self {
            folder: Folder::open(url, DEADLINE).context("--out")?,
            url: url.trim_end_matches('/').into(),
        })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The names of its files, and of those in these folders.
    pub(crate) fn names(&self, folders: &[&str]) -> anyhow::Result<Vec<String>> {
        let mut names = Vec::new();
        for folder in [""].iter().chain(folders) {
            names.extend(self.folder.files(folder).context("--out")?.into_iter().map(|file| file.name));
        }
        Ok(names)
    }

    /// When the files in one of its folders, or in itself (`""`), were written, by the store's clock.
    pub(super) fn times(&self, folder: &str) -> anyhow::Result<Vec<(String, SystemTime)>> {
        let files = self.folder.files(folder)?;
        Ok(files.into_iter().map(|file| (file.name, file.changed)).collect())
    }

    /// Brings those of these files into a folder of this machine that are newer in the bucket, or are not here. What this machine wrote last stays:
    /// a launcher that was killed may not have copied it, or it was written while the copy of what was there before was on its way.
    pub(crate) fn fetch(&self, folder: &Path, names: &[&str]) -> anyhow::Result<()> {
        for file in self.folder.files("").context("--out")? {
            let local = folder.join(&file.name);
            let here = local.metadata().and_then(|here| here.modified());
            if !names.contains(&file.name.as_str()) || here.is_ok_and(|here| here >= file.changed) {
                continue;
            }
            self.download(&file.name, &local, file.changed)
                .with_context(|| format!("cannot write {}", local.display()))?;
        }
        Ok(())
    }

    fn download(&self, name: &str, local: &Path, changed: SystemTime) -> anyhow::Result<()> {
        if let Some(folder) = local.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut file = AtomicFile::create(local)?;
        if self.folder.download(name, &mut file)? && !begins_with(local, file.file())? {
            file.file().set_modified(changed)?;
            file.commit()?;
        }
        Ok(())
    }

    /// Copies the first bytes of a file.
    pub(super) fn upload(&self, name: &str, file: &File, bytes: u64) -> anyhow::Result<()> {
        Ok(self.folder.upload(name, file, bytes)?)
    }

    pub(super) fn remove(&self, name: &str) -> anyhow::Result<()> {
        Ok(self.folder.remove(name)?)
    }
}

/// Whether a file begins with all that another one contains, and that contains anything.
fn begins_with(path: &Path, other: &File) -> io::Result<bool> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        opened => opened?,
    };
    let length = other.metadata()?.len();
    if length == 0 || file.metadata()?.len() < length {
        return Ok(false);
    }
    let mut parts = [[0; 1 << 16]; 2];
    let mut at = 0;
    while at < length {
        let count = (length - at).min(1 << 16) as usize;
        let [here, there] = &mut parts;
        file.read_exact_at(&mut here[..count], at)?;
        other.read_exact_at(&mut there[..count], at)?;
        if here[..count] != there[..count] {
            return Ok(false);
        }
        at += count as u64;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_begins_with_an_earlier_copy_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let long = [7; 100_000];
        let here = write("here", &long);
        for bytes in [&long[..], &long[..70_000], &[7]] {
            let copy = write("there", bytes);
            assert!(begins_with(&here, &File::open(copy).unwrap()).unwrap(), "{}", bytes.len());
        }
        let mut other = long[..70_000].to_vec();
        other[69_999] = 8;
        for bytes in [&[][..], &other, &[7; 100_001]] {
            let copy = write("there", bytes);
            assert!(!begins_with(&here, &File::open(copy).unwrap()).unwrap(), "{}", bytes.len());
        }
        let missing = folder.path().join("missing");
        assert!(!begins_with(&missing, &File::open(here).unwrap()).unwrap());
    }
}
