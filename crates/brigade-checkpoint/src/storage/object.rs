//! Checkpoints in an object store.
//!
//! ```text
//! <prefix>/step-00000050.<id>/      one save; a checkpoint if, and only if, its manifest.json exists
//! ```
//!
//! Object stores cannot rename, but an object appears completely or not at all. So each save has an id of its own, and the
//! manifest, written last, makes it visible. Of several saves of one step, the last one counts.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use brigade_sorted::SortedMap;
use brigade_store::{Location, Scheme, Upload};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use super::{CheckpointDir, StagingDir, Storage, StorageReader, StorageWriter};
use crate::error::{Error, Result};
use crate::format::names::{MANIFEST, folder_step, step_folder};

/// How long one operation may take, including retries.
const DEADLINE: Duration = Duration::from_secs(300);

/// Largest range of one request, in bytes: small enough for a client's timeout on a slow line.
const REQUEST: usize = 16 << 20;

/// Checkpoints below a prefix of an object store. All waiting is done inside its methods.
pub struct ObjectStorage {
    client: Client,
    location: String,
}

impl fmt::Debug for ObjectStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ObjectStorage").field(&self.location).finish()
    }
}

impl ObjectStorage {
    /// Checkpoints below `gs://bucket/prefix`, `s3://bucket/prefix` or `file:///folder`.
    ///
    /// Credentials and options come from the environment, by the names that the crate `object_store` reads
    /// (`GOOGLE_APPLICATION_CREDENTIALS`, `AWS_ACCESS_KEY_ID`, `AWS_REGION`, `AWS_ENDPOINT`, …).
    ///
    /// # Errors
    /// [`Error::InvalidUrl`] for any other URL, or one whose store cannot be set up.
    pub fn open(url: &str) -> Result<Self> {
        let location = Location::parse(url)?;
        match location.scheme() {
            Scheme::S3 | Scheme::Gs => {}
            Scheme::File => {
                return Self::in_folder(&std::path::Path::new("/").join(location.path().as_ref()), url);
            }
            Scheme::Http => {
                let message = "files there can only be read".into();
                return Err(Error::InvalidUrl { url: url.into(), message });
            }
        }
        let store = brigade_store::Client::open(&location, DEADLINE)?;
        Ok(Self { client: Client { store, prefix: location.path().clone() }, location: location.to_string() })
    }

    fn in_folder(folder: &std::path::Path, url: &str) -> Result<Self> {
        std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        let store = LocalFileSystem::new_with_prefix(folder)
            .map_err(|error| Error::InvalidUrl { url: url.into(), message: error.to_string() })?
            .with_automatic_cleanup(true);
        Self::new(Arc::new(store), url)
    }

    /// The store, and the prefix of checkpoints in it.
    pub(crate) fn into_parts(self) -> (brigade_store::Client, Path) {
        (self.client.store, self.client.prefix)
    }

    /// Checkpoints in this process's memory, for tests.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn in_memory() -> Result<Self> {
        Self::new(Arc::new(InMemory::new()), "memory")
    }

    fn new(store: Arc<dyn ObjectStore>, location: &str) -> Result<Self> {
        let store = brigade_store::Client::new(store, location, DEADLINE)?;
        Ok(Self { client: Client { store, prefix: Path::default() }, location: location.into() })
    }

    /// Every save of every step: folder, and when its manifest was written, if it was.
    fn saves(&self) -> Result<SortedMap<u64, Vec<Written>>> {
        let Client { store, prefix } = &self.client;
        let listed = store.retry("list", prefix, || store.store().list_with_delimiter(Some(prefix)))?;
        let mut saves: SortedMap<u64, Vec<Written>> = SortedMap::new();
        for path in listed.common_prefixes {
            let Some(folder) = path.filename() else { continue };
            let Some((step, _)) = folder.split_once('.') else { continue };
            let Some(step) = folder_step(step) else { continue };
            let manifest = self.client.find(&self.client.path(folder, MANIFEST))?;
            let order = manifest.map(|found| (found.last_modified.timestamp_micros(), folder.to_owned()));
            // In a file system, a folder stays when its last object is removed.
            if order.is_none() && self.client.objects(folder)?.is_empty() {
                continue;
            }
            saves.entry(step).or_default().push(Written { order, folder: folder.into() });
        }
        for same_step in saves.values_mut() {
            same_step.sort_by(|a, b| b.order.cmp(&a.order));
        }
        Ok(saves)
    }
}

/// A save; of several of one step, the first in descending order of `order` counts.
struct Written {
    order: Option<(i64, String)>,
    folder: String,
}

impl Storage for ObjectStorage {
    fn location(&self) -> &str {
        &self.location
    }

    fn staging_folder(&self, staging: &StagingDir) -> String {
        format!("{}.{}", step_folder(staging.step()), staging.id())
    }

    fn create(&self, folder: &str, name: &str, bytes: u64) -> Result<Box<dyn StorageWriter>> {
        Ok(Box::new(ObjectWriter(Upload::begin(&self.client.store, &self.client.path(folder, name), bytes)?)))
    }

    fn link(&self, from: &str, to: &str, name: &str) -> Result<()> {
        let Client { store, .. } = &self.client;
        let [from, to] = [from, to].map(|folder| self.client.path(folder, name));
        Ok(store.retry("copy", &from, || store.store().copy(&from, &to))?)
    }

    fn open(&self, folder: &str, name: &str) -> Result<Option<Box<dyn StorageReader>>> {
        let path = self.client.path(folder, name);
        let found = self.client.find(&path)?;
        Ok(found.map(|found| {
            Box::new(ObjectReader { client: self.client.clone(), path, size: found.size })
                as Box<dyn StorageReader>
        }))
    }

    fn published(&self) -> Result<Vec<CheckpointDir>> {
        let newest = |(step, same_step): (u64, Vec<Written>)| {
            let first = same_step.into_iter().next().filter(|first| first.order.is_some())?;
            Some(CheckpointDir { step, folder: first.folder })
        };
        Ok(self.saves()?.into_iter().rev().filter_map(newest).collect())
    }

    fn publish(&self, staging: &StagingDir) -> Result<()> {
        let new = self.staging_folder(staging);
        let manifest = self.client.path(&new, MANIFEST);
        if self.client.find(&manifest)?.is_none() {
            return Err(Error::MissingFile { file: manifest.to_string() });
        }
        // It is visible, whatever becomes of the others: the last one counts, and they are removed as `unpublished` later.
        let replaced = || -> Result<()> {
            let same_step = self.saves()?.remove(&staging.step()).unwrap_or_default();
            same_step.iter().filter(|save| save.folder != new).try_for_each(|save| self.remove(&save.folder))
        };
        let _ = replaced();
        Ok(())
    }

    fn remove(&self, folder: &str) -> Result<()> {
        let client = &self.client;
        client.delete(&client.path(folder, MANIFEST))?;
        client.objects(folder)?.iter().try_for_each(|path| client.delete(path))
    }

    fn unpublished(&self) -> Result<Vec<String>> {
        let hidden = |same_step: Vec<Written>| {
            same_step
                .into_iter()
                .enumerate()
                .filter(|(index, save)| *index > 0 || save.order.is_none())
                .map(|(_, save)| save.folder)
        };
        Ok(self.saves()?.into_values().flat_map(hidden).collect())
    }

    fn free_space(&self) -> Result<Option<u64>> {
        Ok(None)
    }
}

/// A prefix in a store.
#[derive(Clone)]
struct Client {
    store: brigade_store::Client,
    prefix: Path,
}

impl Client {
    fn path(&self, folder: &str, name: &str) -> Path {
        self.prefix.clone().join(folder).join(name)
    }

    /// An object's description; `None` when there is none.
    fn find(&self, path: &Path) -> Result<Option<object_store::ObjectMeta>> {
        Ok(self.store.find("find", path, || self.store.store().head(path))?)
    }

    /// The objects of a folder.
    fn objects(&self, folder: &str) -> Result<Vec<Path>> {
        let path = self.prefix.clone().join(folder);
        let listed =
            self.store.retry("list", &path, || self.store.store().list_with_delimiter(Some(&path)))?;
        Ok(listed.objects.into_iter().map(|object| object.location).collect())
    }

    /// Deletes an object, if it exists.
    fn delete(&self, path: &Path) -> Result<()> {
        self.store.find("remove", path, || self.store.store().delete(path))?;
        Ok(())
    }
}

struct ObjectWriter(Upload);

impl StorageWriter for ObjectWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.0.write(bytes)?)
    }

    fn finish(self: Box<Self>) -> Result<()> {
        Ok(self.0.finish()?)
    }
}

struct ObjectReader {
    client: Client,
    path: Path,
    size: u64,
}

impl StorageReader for ObjectReader {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let mut begin = offset;
        for part in into.chunks_mut(REQUEST) {
            let end = begin + part.len() as u64;
            let store = self.client.store.store();
            let bytes =
                self.client.store.retry("read", &self.path, || store.get_range(&self.path, begin..end))?;
            if bytes.len() != part.len() {
                return Err(Error::Object {
                    operation: "read",
                    path: self.path.to_string(),
                    message: format!("{} of {} bytes from byte {begin}", bytes.len(), part.len()),
                    may_pass: false,
                });
            }
            part.copy_from_slice(&bytes);
            begin = end;
        }
        Ok(())
    }
}
