//! Where checkpoints are stored: the operations that local folders and object stores have in common.

mod local;
#[cfg(feature = "object-store")]
mod object;
mod staging;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

pub use local::LocalStorage;
#[cfg(feature = "object-store")]
pub use object::ObjectStorage;
pub use staging::StagingDir;

use crate::error::{Error, Result};

/// A place for checkpoints. Each checkpoint is a folder of files; `folder` and `name` are as this storage gave them,
/// or as [`rank_file`](crate::rank_file), [`frozen_file`](crate::frozen_file), [`MANIFEST`](crate::MANIFEST) and [`MANIFEST_HASH`](crate::MANIFEST_HASH).
///
/// A checkpoint is written into the folder of a [`StagingDir`], where no reader looks; the manifest is written last, and
/// then [`publish`](Self::publish) makes it visible, completely or not at all. A process may die between any two calls
/// and within each of them.
pub trait Storage: fmt::Debug + Send + Sync {
    /// The location as text: a path or a URL.
    fn location(&self) -> &str;

    /// The folder that a save writes into.
    fn staging_folder(&self, staging: &StagingDir) -> String;

    /// A new file of `bytes` bytes; an existing one is replaced, and stays as it is in other folders that it is [linked](Self::link) into.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::DiskFull`] or [`Error::Object`] with the file.
    fn create(&self, folder: &str, name: &str, bytes: u64) -> Result<Box<dyn StorageWriter>>;

    /// Puts a finished file of the folder `from` into the folder `to`, too, under the same name, without sending its bytes. Removing either one leaves the other.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Object`] with the file, also where the storage cannot do so. The caller can [create](Self::create) the file instead.
    fn link(&self, from: &str, to: &str, name: &str) -> Result<()>;

    /// A file for reading; `None` if it does not exist.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Object`] with the file.
    fn open(&self, folder: &str, name: &str) -> Result<Option<Box<dyn StorageReader>>>;

    /// The visible checkpoints, newest first, one per step. A location that does not exist has none.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Object`].
    fn published(&self) -> Result<Vec<CheckpointDir>>;

    /// Makes a save visible. All its files must be finished, the manifest last. A visible checkpoint of the same step stays until
    /// then, and is removed.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Object`]. Either the old checkpoint or the new one is visible then.
    fn publish(&self, staging: &StagingDir) -> Result<()>;

    /// Removes a folder with its files. A visible one is hidden first, so that it is never partly visible.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Object`]. It is no error if there is no such folder.
    fn remove(&self, folder: &str) -> Result<()>;

    /// Folders that no reader sees: saves that were never published, removals that were not finished.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Object`].
    fn unpublished(&self) -> Result<Vec<String>>;

    /// Bytes that are free for this user, if known.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn free_space(&self) -> Result<Option<u64>>;
}

/// A visible checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointDir {
    /// Completed training steps.
    pub step: u64,
    /// Its folder.
    pub folder: String,
}

/// A file that is being written. If it is dropped without [`finish`](Self::finish), a part of it may remain.
pub trait StorageWriter: Send {
    /// Appends `bytes`.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::DiskFull`] or [`Error::Object`] with the file.
    fn write(&mut self, bytes: &[u8]) -> Result<()>;

    /// Ends the file. After this returns, its content survives a power failure.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::DiskFull`] or [`Error::Object`] with the file.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// A file that is being read.
pub trait StorageReader: Send {
    /// Its size in bytes.
    fn size(&self) -> u64;

    /// Fills `into` from byte `offset` on.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Object`] with the file, also when it ends before `into` is full.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()>;
}

/// The storage at a folder's path, or at a URL (`file://`, `gs://`, `s3://`, by the feature `object-store`).
///
/// For a local folder, use a path: `file://` goes through the object store's client, which neither flushes files to the disk
/// nor knows the free space, and has another folder layout.
///
/// # Errors
/// [`Error::MissingFeature`] for a URL in a build without object stores, [`Error::InvalidUrl`] for another scheme or a bad URL.
pub fn open_storage(place: &str) -> Result<Arc<dyn Storage>> {
    match place.split_once("://") {
        None => Ok(Arc::new(LocalStorage::new(Path::new(place)))),
        Some(("file" | "gs" | "s3", _)) => open_url(place),
        Some((scheme, _)) => {
            Err(Error::InvalidUrl { url: place.into(), message: format!("the scheme {scheme:?} is unknown") })
        }
    }
}

#[cfg(feature = "object-store")]
fn open_url(url: &str) -> Result<Arc<dyn Storage>> {
    Ok(Arc::new(ObjectStorage::open(url)?))
}

#[cfg(not(feature = "object-store"))]
fn open_url(url: &str) -> Result<Arc<dyn Storage>> {
    Err(Error::MissingFeature { url: url.into(), feature: "object-store" })
}
