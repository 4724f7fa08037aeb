//! Downloads of models.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Seek, SeekFrom, Write};
use std::iter;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use brigade_files::AtomicFile;
use brigade_sorted::SortedSet;
use serde::Deserialize;
use ureq::http::StatusCode;

use super::cache::{ADAPTERS_CONFIG, CONFIG, Cache, INDEX, WEIGHTS, indexed_files, is_git_id};
use super::checksum::Checksum;
use super::http::{Client, Failure, read};
use super::name::is_part;
use super::{Hub, ModelName, Progress, Wanted};
use crate::config::{ConfigFile, read_object};
use crate::error::{HfError, refused_pickle};
use crate::templates::template_name;
use crate::weights::{ADAPTERS, PICKLED_ADAPTERS, PICKLES, class_of};

/// Files beside the weights that are taken where a model has them.
const BESIDE: [&str; 10] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
];

/// The labels beside adapters.
const ADAPTERS_LABELS: &str = "labels.json";

/// How many bytes are read and written at once.
const BUFFER: usize = 1 << 20;

/// How often a lock is looked at that another process holds.
const LOOK: Duration = Duration::from_millis(100);

/// What the hub says of a revision.
#[derive(Deserialize)]
struct Revision {
    sha: String,
    siblings: Vec<RemoteFile>,
}

/// A file of a revision.
#[derive(Deserialize)]
struct RemoteFile {
    rfilename: String,
    #[serde(default)]
    size: Option<u64>,
    #[serde(default, rename = "blobId")]
    blob_id: Option<String>,
    #[serde(default)]
    lfs: Option<LargeFile>,
}

#[derive(Deserialize)]
struct LargeFile {
    sha256: String,
    size: u64,
}

impl RemoteFile {
    /// Under which name its content is kept.
    fn etag(&self) -> Option<&str> {
        let etag = self.lfs.as_ref().map(|lfs| lfs.sha256.as_str()).or(self.blob_id.as_deref())?;
        is_part(etag).then_some(etag)
    }

    /// By what its content is checked besides its size; a large file has another one in Git.
    fn checksum(&self) -> Option<Checksum<'_>> {
        match &self.lfs {
            Some(lfs) => Some(Checksum::Sha256(&lfs.sha256)),
            None => self.blob_id.as_deref().filter(|id| is_git_id(id)).map(Checksum::GitSha1),
        }
    }

    fn size(&self) -> Option<u64> {
        self.lfs.as_ref().map(|lfs| lfs.size).or(self.size)
    }
}

/// Downloads what is wanted of a model and is not in the cache.
pub(super) fn files(
    hub: &Hub,
    name: &ModelName,
    cache: &Cache,
    wanted: Wanted,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf, HfError> {
    let client = Client::new(hub, name);
    let revision = name.revision().replace('/', "%2F");
    let about = client.json(&format!("api/models/{}/revision/{revision}?blobs=true", name.repository()))?;
    let about: Revision = serde_json::from_str(&about).map_err(|error| {
        client.error(format!("{} did not answer with a list of files: {error}", hub.endpoint))
    })?;
    if !is_git_id(&about.sha) {
        return Err(client.error(format!("{} names the commit `{}`", hub.endpoint, about.sha)));
    }
    let download = Download { hub, client: &client, cache, repository: name.repository(), revision: &about };
    let snapshot = download.wanted(wanted, progress)?;
    if !is_git_id(name.revision()) {
        note(&cache.reference(), &about.sha)?;
    }
    Ok(snapshot)
}

/// A download of one revision.
struct Download<'d> {
    hub: &'d Hub,
    client: &'d Client<'d>,
    cache: &'d Cache,
    repository: &'d str,
    revision: &'d Revision,
}

impl Download<'_> {
    fn wanted(&self, wanted: Wanted, progress: &mut dyn FnMut(Progress<'_>)) -> Result<PathBuf, HfError> {
        let snapshot = self.cache.snapshot(&self.revision.sha);
        let has = |name: &str| self.remote(name).is_some();
        if has(ADAPTERS_CONFIG) && !has(WEIGHTS) && !has(INDEX) {
            return self.adapters(wanted, &snapshot, progress);
        }
        if !has(CONFIG) {
            return Err(self.client.error(format!("it has neither {CONFIG} nor {ADAPTERS_CONFIG}")));
        }
        match wanted {
            Wanted::Configuration => {
                self.file(CONFIG, &snapshot, progress)?;
                return Ok(snapshot);
            }
            Wanted::AllButWeights => return self.all(iter::empty(), &snapshot, progress),
            Wanted::Model => {}
        }
        let weights = match (has(WEIGHTS), has(INDEX)) {
            (true, _) => SortedSet::from([WEIGHTS.to_owned()]),
            (false, true) => {
                self.file(INDEX, &snapshot, progress)?;
                let index = read_object(&snapshot.join(INDEX))?;
                let files = index.as_ref().and_then(indexed_files);
                files.ok_or_else(|| self.client.error(format!("its {INDEX} lists no weight files")))?
            }
            (false, false) => return Err(self.client.error(self.no_weights(&snapshot, progress))),
        };
        self.all(weights.iter().map(String::as_str), &snapshot, progress)
    }

    /// Adapters without their model. Their file is small, and says which layers have any.
    fn adapters(
        &self,
        wanted: Wanted,
        snapshot: &Path,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<PathBuf, HfError> {
        if self.remote(ADAPTERS).is_none() {
            let pickle = match self.remote(PICKLED_ADAPTERS) {
                Some(_) => format!(
                    " ({PICKLED_ADAPTERS} is a Python pickle, which may run any code when read; `peft` loads it, and saves it as {ADAPTERS})"
                ),
                None => String::new(),
            };
            return Err(self.client.error(format!("it has {ADAPTERS_CONFIG}, but no {ADAPTERS}{pickle}")));
        }
        self.file(ADAPTERS_CONFIG, snapshot, progress)?;
        if self.remote(ADAPTERS_LABELS).is_some() {
            self.file(ADAPTERS_LABELS, snapshot, progress)?;
        }
        match wanted {
            Wanted::Configuration => self.file(ADAPTERS, snapshot, progress).map(|()| snapshot.to_owned()),
            Wanted::AllButWeights | Wanted::Model => self.all(iter::once(ADAPTERS), snapshot, progress),
        }
    }

    /// The configuration, the files that accompany weights, and files of weights.
    fn all<'n>(
        &'n self,
        weights: impl Iterator<Item = &'n str>,
        snapshot: &Path,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<PathBuf, HfError> {
        let beside = [CONFIG].into_iter().chain(BESIDE).filter(|name| self.remote(name).is_some());
        let names = self.revision.siblings.iter().map(|file| file.rfilename.as_str());
        let templates = names.filter(|name| template_name(name).is_some_and(is_part));
        for name in beside.chain(templates).chain(weights) {
            self.file(name, snapshot, progress)?;
        }
        Ok(snapshot.to_owned())
    }

    fn remote(&self, name: &str) -> Option<&RemoteFile> {
        self.revision.siblings.iter().find(|file| file.rfilename == name)
    }

    /// That there are no weights to read, and the command that converts a pickle; the configuration says of which class it is.
    fn no_weights(&self, snapshot: &Path, progress: &mut dyn FnMut(Progress<'_>)) -> String {
        let none = format!("it has neither {WEIGHTS} nor {INDEX}");
        let Some(pickle) = PICKLES.into_iter().find(|name| self.remote(name).is_some()) else { return none };
        let config = self.file(CONFIG, snapshot, progress).and_then(|()| ConfigFile::read(snapshot));
        match config.ok().and_then(|file| class_of(&file.config, file.task)) {
            Some(class) => none + &self.conversion(pickle, &class),
            None => format!("{none}; {pickle} cannot be read"),
        }
    }

    fn conversion(&self, pickle: &str, class: &str) -> String {
        let (model, commit) = (self.repository, &self.revision.sha);
        let folder = model.rsplit('/').next().unwrap_or(model);
        let command = format!(
            "python -c 'from transformers import AutoTokenizer, {class} as Model; \
            [part.from_pretrained(\"{model}\", revision=\"{commit}\").save_pretrained(\"{folder}\") for part in (Model, AutoTokenizer)]'"
        );
        refused_pickle(pickle, &format!("the model with {WEIGHTS} to the folder {folder}"), &command)
    }

    /// Puts one file into the snapshot.
    fn file(
        &self,
        name: &str,
        snapshot: &Path,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), HfError> {
        let link = snapshot.join(name);
        if link.is_file() {
            return Ok(());
        }
        let remote = self.remote(name);
        let (etag, size) = remote
            .and_then(|remote| Some((remote.etag()?, remote.size()?)))
            .ok_or_else(|| self.client.error(format!("the hub does not say what `{name}` contains")))?;
        let blob = self.cache.folder.join("blobs").join(etag);
        let locks = self.hub.cache.join(".locks").join(self.cache.folder.file_name().unwrap_or_default());
        for folder in [blob.parent(), link.parent(), Some(&locks)].into_iter().flatten() {
            fs::create_dir_all(folder).map_err(|error| HfError::io(folder, error))?;
        }
        let part = blob.with_file_name(format!("{etag}.incomplete"));
        let _lock = self.lock(&locks.join(format!("{etag}.lock")), &part)?;
        if !blob.is_file() {
            self.content(name, &part, size, remote.and_then(RemoteFile::checksum), progress)?;
            fs::rename(&part, &blob).map_err(|error| HfError::io(&blob, error))?;
        }
        if link.is_file() {
            // Another process was here first.
            return Ok(());
        }
        if link.is_symlink() {
            // To a content that is no longer there.
            fs::remove_file(&link).map_err(|error| HfError::io(&link, error))?;
        }
        let up = "../".repeat(2 + name.matches('/').count());
        let target = Path::new(&up).join("blobs").join(etag);
        match symlink(&target, &link) {
            Err(error) if !link.is_file() => Err(HfError::io(&link, error)),
            _ => Ok(()),
        }
    }

    /// Locks a content against other processes. While another one downloads it, this waits as long as the content grows.
    fn lock(&self, path: &Path, part: &Path) -> Result<File, HfError> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(|error| HfError::io(path, error))?;
        let length = || fs::metadata(part).map_or(0, |metadata| metadata.len());
        let (mut last, mut since) = (length(), Instant::now());
        // One that checks a large content is silent for long.
        let patience = self.hub.timeout * 10;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::Error(error)) => return Err(HfError::io(path, error)),
                Err(TryLockError::WouldBlock) if since.elapsed() > patience => {
                    let problem = format!("another process holds {}, but downloads nothing", path.display());
                    return Err(self.client.error(problem));
                }
                Err(TryLockError::WouldBlock) => thread::sleep(LOOK),
            }
            let now = length();
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
    }

    /// Downloads a content, from where an earlier download of it ended, and compares it with what the hub says of it.
    fn content(
        &self,
        name: &str,
        part: &Path,
        size: u64,
        checksum: Option<Checksum<'_>>,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), HfError> {
        let io = |error| HfError::io(part, error);
        let mut file =
            OpenOptions::new().create(true).truncate(false).read(true).write(true).open(part).map_err(io)?;
        let path = format!("{}/resolve/{}/{name}", self.repository, self.revision.sha);
        self.client.repeated(|further| self.rest(name, &path, &mut file, size, progress, further))?;
        file.sync_all().map_err(io)?;
        let Some(checksum) = checksum else { return Ok(()) };
        let Some(difference) = checksum.difference(&mut file, size).map_err(io)? else { return Ok(()) };
        fs::remove_file(part).map_err(io)?;
        Err(self.client.error(format!("`{name}` has {difference}; it was removed")))
    }

    /// Downloads what a file lacks.
    fn rest(
        &self,
        name: &str,
        path: &str,
        file: &mut File,
        size: u64,
        progress: &mut dyn FnMut(Progress<'_>),
        further: &mut bool,
    ) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::Final(format!("`{name}` cannot be written: {error}"));
        let mut bytes = file.seek(SeekFrom::End(0)).map_err(failed)?;
        if bytes > size {
            file.set_len(0).map_err(failed)?;
            bytes = file.seek(SeekFrom::Start(0)).map_err(failed)?;
        }
        progress(Progress { file: name, bytes, of: size });
        if bytes == size {
            return Ok(());
        }
        let response = self.client.get(path, bytes)?;
        if bytes > 0 && response.status() != StatusCode::PARTIAL_CONTENT {
            // It sends all, from the beginning.
            file.set_len(0).map_err(failed)?;
            bytes = file.seek(SeekFrom::Start(0)).map_err(failed)?;
        }
        let mut reader = response.into_body().into_reader();
        let mut buffer = vec![0; BUFFER];
        while bytes < size {
            let length = read(&mut reader, &mut buffer)?;
            if length == 0 {
                return Err(Failure::Passing(format!("`{name}` ended after {bytes} of {size} bytes")));
            }
            if bytes + length as u64 > size {
                return Err(Failure::Final(format!(
                    "`{name}` has more than the {size} bytes that the hub reported"
                )));
            }
            file.write_all(&buffer[..length]).map_err(failed)?;
            (bytes, *further) = (bytes + length as u64, true);
            progress(Progress { file: name, bytes, of: size });
        }
        Ok(())
    }
}

/// Notes which commit a revision is.
fn note(reference: &Path, commit: &str) -> Result<(), HfError> {
    let io = |error| HfError::io(reference, error);
    let folder = reference.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(io)?;
    let file = AtomicFile::create(reference).map_err(io)?;
    file.file().write_all(commit.as_bytes()).map_err(io)?;
    file.commit().map(drop).map_err(io)
}
