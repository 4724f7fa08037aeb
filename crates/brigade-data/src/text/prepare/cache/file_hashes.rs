//! The contents of a corpus's files, remembered by size and times.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use brigade_files::write_atomic;
use serde::{Deserialize, Serialize};

use super::FileLock;
use crate::text::corpus::SourceFile;
use crate::text::prepare::parallel::Workers;
use crate::{Corpus, Error, Progress, Result};

/// A file that was changed less than this ago is not remembered: another change may leave its size and time alike.
const SETTLED: Duration = Duration::from_secs(2);

/// One file of a corpus, and what it held when it was read.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct HashedFile {
    pub(crate) file: SourceFile,
    pub(crate) stamp: FileStamp,
    pub(crate) hash: String,
}

/// What changes when a file does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileStamp {
    pub(crate) size: u64,
    modified_seconds: i64,
    modified_nanoseconds: i64,
    /// Which file of its disk it is, and when anything of it was changed last: a copy may have the size and time of another file.
    number: u64,
    changed: (i64, i64),
}

impl FileStamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            size: metadata.len(),
            modified_seconds: metadata.mtime(),
            modified_nanoseconds: metadata.mtime_nsec(),
            number: metadata.ino(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Whether it is as when the file was written last, whatever else has changed of it.
    fn is_as_written(&self, other: &Self) -> bool {
        let written = |stamp: &Self| (stamp.size, stamp.modified_seconds, stamp.modified_nanoseconds);
        written(self) == written(other)
    }

    /// Its version is part of what stands for an object's content.
    fn of_object(size: u64) -> Self {
        Self { size, modified_seconds: 0, modified_nanoseconds: 0, number: 0, changed: (0, 0) }
    }

    fn is_settled(&self, now: SystemTime) -> bool {
        let age = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |age| age.as_secs() as i64);
        age - self.modified_seconds > SETTLED.as_secs() as i64
    }
}

impl HashedFile {
    /// Whether the file still has the size and time that it had when it was read.
    /// Every range of an object was of the version that was found.
    pub(crate) fn is_unchanged(&self) -> bool {
        self.file.object.is_some()
            || fs::metadata(&self.file.path)
                .is_ok_and(|metadata| FileStamp::of(&metadata).is_as_written(&self.stamp))
    }
}

#[derive(Serialize, Deserialize)]
struct RememberedHashes {
    identity: Option<String>,
    files: Vec<HashedFile>,
}

/// The files of `corpus` in order, with their contents' hashes; those that `cache` remembers are not read. Of several processes, one
/// reads, and the others wait for what it remembers.
pub(crate) fn hashed_files(
    corpus: &Corpus,
    cache: &Path,
    timeout: Duration,
    workers: &Workers,
    progress: &dyn Progress,
) -> Result<Vec<HashedFile>> {
    let name = blake3::hash(corpus.identity().as_bytes()).to_hex();
    let path = cache.join(format!("{}.memo", &name[..32]));
    let lock = FileLock::acquire(&path.with_extension("memo.lock"), None, timeout, progress)?;
    let memo: Option<RememberedHashes> =
        fs::read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let identity = corpus.stable_identity();
    let (same_list, remembered) = match memo {
        Some(memo) => (identity.is_some() && memo.identity == identity, memo.files),
        None => (false, Vec::new()),
    };
    if same_list && remembered.iter().all(HashedFile::is_unchanged) {
        return Ok(remembered);
    }

    let stamped: Vec<(SourceFile, FileStamp)> = corpus
        .files()?
        .into_iter()
        .map(|file| match &file.object {
            Some(object) => {
                let stamp = FileStamp::of_object(object.size());
                Ok((file, stamp))
            }
            None => match fs::metadata(&file.path) {
                Ok(metadata) => Ok((file, FileStamp::of(&metadata))),
                Err(source) => Err(Error::io("read", &file.path, source)),
            },
        })
        .collect::<Result<_>>()?;
    let known: HashMap<&Path, &HashedFile> =
        remembered.iter().map(|known| (known.file.path.as_path(), known)).collect();
    let local = stamped.iter().filter(|(file, _)| file.object.is_none());
    let total = local.map(|(_, stamp)| stamp.size).sum();
    progress.start(total, "reading");
    let hashed = workers.map(&stamped, |(file, stamp)| {
        if let Some(object) = &file.object {
            // Its URL and version stand for its content, which is read once, when it is tokenized.
            let named = format!("{}\n{}\n{}", object.url(), object.version(), object.size());
            let hash = blake3::hash(named.as_bytes()).to_hex().to_string();
            return Ok(HashedFile { file: file.clone(), stamp: *stamp, hash });
        }
        let known =
            known.get(file.path.as_path()).filter(|known| known.stamp == *stamp && known.file == *file);
        let hash = known.map_or_else(|| content_hash(&file.path, &lock), |known| Ok(known.hash.clone()))?;
        progress.advance(stamp.size);
        Ok(HashedFile { file: file.clone(), stamp: *stamp, hash })
    });
    progress.finish();
    let files: Vec<HashedFile> = hashed.into_iter().collect::<Result<_>>()?;
    remember(&path, identity, &files);
    Ok(files)
}

/// Writes the memo; one that cannot be written costs time, nothing else.
fn remember(path: &Path, identity: Option<String>, files: &[HashedFile]) {
    let now = SystemTime::now();
    let is_settled = |file: &&HashedFile| file.file.object.is_none() && file.stamp.is_settled(now);
    let settled: Vec<HashedFile> = files.iter().filter(is_settled).cloned().collect();
    // The list itself is only remembered whole.
    let identity = identity.filter(|_| settled.len() == files.len());
    let memo = serde_json::to_vec(&RememberedHashes { identity, files: settled }).map_err(io::Error::other);
    if let Err(error) = memo.and_then(|memo| write_atomic(path, &memo)) {
        tracing::warn!("the files' contents cannot be remembered: {}: {error}", path.display());
    }
}

/// A file that is read under a lock.
struct LockedFile<'a> {
    file: File,
    lock: &'a FileLock,
}

impl Read for LockedFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.lock.show_progress();
        self.file.read(buffer)
    }
}

fn content_hash(path: &PathBuf, lock: &FileLock) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    let read = File::open(path).and_then(|file| hasher.update_reader(LockedFile { file, lock }).map(drop));
    read.map_err(|source| Error::io("read", path, source))?;
    Ok(hasher.finalize().to_hex().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NoProgress;

    fn read(corpus: &Corpus, cache: &Path) -> Vec<String> {
        hashed_files(corpus, cache, Duration::from_secs(9), &Workers::start(2).unwrap(), &NoProgress)
            .unwrap()
            .into_iter()
            .map(|file| file.hash)
            .collect()
    }

    fn age(path: &Path, seconds: u64) {
        let file = File::options().write(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
    }

    #[test]
    fn files_are_read_again_where_size_or_time_changed_or_the_change_is_fresh() {
        let folder = tempfile::tempdir().unwrap();
        let (path, cache) = (folder.path().join("a.txt"), folder.path().join("cache"));
        fs::create_dir(&cache).unwrap();
        let corpus = Corpus::from_sources(&[path.display().to_string()]);
        let write = |content: &str, seconds| {
            fs::write(&path, content).unwrap();
            age(&path, seconds);
            read(&corpus, &cache)
        };
        let old = write("one", 100);
        // Neither size nor the time of writing tells these two apart.
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        fs::write(&path, "two").unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
        assert_ne!(read(&corpus, &cache), old);
        // A fresh file is not remembered.
        let fresh = write("six", 0);
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        fs::write(&path, "ten").unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
        assert_ne!(read(&corpus, &cache), fresh);
    }

    #[test]
    fn a_broken_memo_is_as_good_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        fs::write(&path, "text").unwrap();
        age(&path, 100);
        let corpus = Corpus::from_sources(&[path.display().to_string()]);
        let first = read(&corpus, folder.path());
        let memo = |entry: fs::DirEntry| {
            entry.path().extension().is_some_and(|kind| kind == "memo").then(|| entry.path())
        };
        let memo = fs::read_dir(folder.path()).unwrap().find_map(|entry| memo(entry.unwrap())).unwrap();
        fs::write(&memo, "{\"identity\":").unwrap();
        assert_eq!(read(&corpus, folder.path()), first);
    }
}
