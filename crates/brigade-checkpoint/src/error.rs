//! Errors, which name the file, the rank, the unit or the setting.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::Path;

use crate::format::unit::UnitMetadata;

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a checkpoint could not be written, published, found or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused an operation on a file or folder.
    #[error("cannot {operation} {path}: {source}")]
    Io {
        /// The operation, as a verb: "read", "write", "rename".
        operation: &'static str,
        /// The file or folder.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// The file system (or the user's quota on it) is full; what was written of this checkpoint is removed.
    #[error(
        "the disk is full: cannot write {path} after {written} bytes ({source}); older checkpoints are untouched"
    )]
    DiskFull {
        /// The file that was being written.
        path: String,
        /// Bytes of it that had been written.
        written: u64,
        /// What the system said.
        source: io::Error,
    },
    /// There is not enough free space; nothing was written.
    #[error("a checkpoint needs {needed} bytes, but {location} has only {free} bytes free")]
    NoSpace {
        /// Where the checkpoints are.
        location: String,
        /// Bytes to write.
        needed: u64,
        /// Bytes that are free for this user.
        free: u64,
    },
    /// An object store refused an operation.
    #[error("cannot {operation} {path}: {message}")]
    Object {
        /// The operation, as a verb.
        operation: &'static str,
        /// The object or prefix.
        path: String,
        /// What the object store's client said.
        message: String,
        /// Whether it may do it later: it did not answer, or was busy.
        may_pass: bool,
    },
    /// Another process holds the place.
    #[error("{place}: another run is using it: {holder}; stop that run first, or give another location")]
    Held {
        /// The folder or URL.
        place: String,
        /// Who holds it.
        holder: String,
    },
    /// The place could be taken, but would be of no use.
    #[error("{reason}")]
    NotTaken {
        /// Why.
        reason: String,
    },
    /// The URL needs a cargo feature that this build lacks.
    #[error("{url}: this build does not support object stores; build with the cargo feature `{feature}`")]
    MissingFeature {
        /// The URL as it was given.
        url: String,
        /// The feature of this crate.
        feature: &'static str,
    },
    /// The URL is not one of a supported storage.
    #[error(
        "{url}: {message} (allowed: a folder's path, file:///folder, gs://bucket/prefix, s3://bucket/prefix)"
    )]
    InvalidUrl {
        /// The URL as it was given.
        url: String,
        /// What is wrong with it.
        message: String,
    },
    /// A name cannot be stored.
    #[error("{what} {given:?} is not allowed: {allowed}")]
    InvalidName {
        /// What has the name: "unit", "slot", "id of a save".
        what: &'static str,
        /// The name as it was given.
        given: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// The data of a rank is too large for one file.
    #[error("rank {rank}: {what} is {given}, the limit is {limit}")]
    TooLarge {
        /// The rank.
        rank: usize,
        /// What is too large.
        what: &'static str,
        /// What was given.
        given: u64,
        /// What is allowed.
        limit: u64,
    },
    /// The file has a newer format than this build can read.
    #[error(
        "{file}: its format is version {found}, this build reads up to version {supported}; use a newer build"
    )]
    UnsupportedVersion {
        /// The manifest.
        file: String,
        /// The version in it.
        found: u64,
        /// The newest version that can be read.
        supported: u32,
    },
    /// A manifest contradicts itself or is not one.
    #[error("{file}: {message}")]
    InvalidManifest {
        /// The manifest.
        file: String,
        /// What is wrong.
        message: String,
    },
    /// Two ranks differ in what they say of a unit.
    #[error("rank {rank} and an earlier one differ in unit {:?}: {unit:?} and {known:?}", unit.name)]
    UnitsDiffer {
        /// The later one of the ranks.
        rank: usize,
        /// What it says.
        unit: Box<UnitMetadata>,
        /// What an earlier one said.
        known: Box<UnitMetadata>,
    },
    /// The ranks' items of a slot leave a gap or overlap.
    #[error("{unit}/{slot}: elements {}..{} {defect} (the slot has {elements})", range.start, range.end)]
    Coverage {
        /// The unit.
        unit: String,
        /// The slot.
        slot: String,
        /// The elements that are missing or doubled.
        range: Range<usize>,
        /// "are in no rank's shard" or "are written twice".
        defect: &'static str,
        /// Elements of the slot.
        elements: usize,
    },
    /// A rank's file is not where the publishing rank looks for it.
    #[error(
        "{location}: {file} of rank {rank} is missing, although rank {rank} wrote it; all nodes must see \
        the same folder (a shared file system or an object store)"
    )]
    NotShared {
        /// Where the checkpoints are.
        location: String,
        /// The rank.
        rank: usize,
        /// Its file.
        file: String,
    },
    /// A file that the manifest names does not exist.
    #[error("{file}: the file is missing")]
    MissingFile {
        /// The file.
        file: String,
    },
    /// A file does not have the size that its rank wrote.
    #[error("{file}: {given} bytes, but its rank wrote {expected}")]
    SizeMismatch {
        /// The file.
        file: String,
        /// Its size.
        given: u64,
        /// The size that was written.
        expected: u64,
    },
    /// A rank reported a file of another save.
    #[error("rank {rank} reported a file of {given}, but {expected} is being published")]
    ForeignSave {
        /// The rank.
        rank: usize,
        /// The save that the rank's entry belongs to.
        given: String,
        /// The save that is being published.
        expected: String,
    },
    /// Two entries of one rank.
    #[error("rank {rank} reported its file twice")]
    DuplicateRank {
        /// The rank.
        rank: usize,
    },
    /// A file's bytes are not those that were written.
    #[error(
        "{file}: chunk {chunk} (at byte {offset}) is damaged: its crc32c is {given:08x}, but {expected:08x} was written"
    )]
    ChecksumMismatch {
        /// The file.
        file: String,
        /// The chunk's number.
        chunk: u64,
        /// Offset of the chunk in the file, in bytes.
        offset: u64,
        /// Checksum of what was read.
        given: u32,
        /// Checksum of what was written.
        expected: u32,
    },
    /// There is no checkpoint of that step.
    #[error("{location} has no checkpoint of step {step} (there are: {there})")]
    StepNotFound {
        /// Where the checkpoints are.
        location: String,
        /// The step as it was given.
        step: u64,
        /// The steps that exist, in words.
        there: String,
    },
    /// The checkpoint has no such unit or slot.
    #[error("{checkpoint} has no {unit}/{slot} (there are: {there})")]
    SlotNotFound {
        /// The checkpoint.
        checkpoint: String,
        /// The unit as it was given.
        unit: String,
        /// The slot as it was given.
        slot: String,
        /// What exists, in words.
        there: String,
    },
    /// A range lies outside a slot, or does not fit the buffer.
    #[error(
        "{unit}/{slot}: cannot read elements {}..{} into a buffer of {buffer}; the slot has {elements}",
        range.start, range.end
    )]
    OutOfRange {
        /// The unit.
        unit: String,
        /// The slot.
        slot: String,
        /// The requested elements.
        range: Range<usize>,
        /// Elements of the buffer that was given.
        buffer: usize,
        /// Elements of the slot.
        elements: usize,
    },
}

#[cfg(feature = "object-store")]
impl From<brigade_store::Error> for Error {
    fn from(error: brigade_store::Error) -> Self {
        use brigade_store::Error as Store;
        let object = |operation, path, message, may_pass| Self::Object { operation, path, message, may_pass };
        match error {
            Store::Url { url, message } => Self::InvalidUrl { url, message },
            Store::Failed { operation, url, message, may_pass } => object(operation, url, message, may_pass),
            Store::NotFound { url } => object("find", url, "it does not exist".into(), false),
            Store::Changed { url } => object("read", url, "it changed in the meantime".into(), false),
        }
    }
}

impl Error {
    /// Whether the checkpoint is damaged, so that an older one should be used; false if it just could not be read now, or not by
    /// this build.
    pub fn is_corruption(&self) -> bool {
        matches!(
            self,
            Self::InvalidManifest { .. }
                | Self::MissingFile { .. }
                | Self::SizeMismatch { .. }
                | Self::ChecksumMismatch { .. }
                | Self::Coverage { .. }
                | Self::SlotNotFound { .. }
        )
    }

    /// Whether the same may succeed later, without anybody changing anything: an object store did not answer, or a file system on the network.
    pub fn may_pass(&self) -> bool {
        use io::ErrorKind::{Interrupted, StaleNetworkFileHandle, TimedOut};
        match self {
            Self::Object { may_pass, .. } => *may_pass,
            Self::Io { source, .. } => {
                matches!(source.kind(), Interrupted | StaleNetworkFileHandle | TimedOut)
            }
            _ => false,
        }
    }

    /// An error of the system, for `map_err`; a full disk becomes [`Error::DiskFull`] with no byte written.
    pub fn io(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        Self::io_after(operation, path.display().to_string(), 0)
    }

    /// An error of the system after `written` bytes of the file, for `map_err`.
    pub(crate) fn io_after(
        operation: &'static str,
        path: impl fmt::Display,
        written: u64,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_string();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::DiskFull { path, written, source }
            }
            _ => Self::Io { operation, path, source },
        }
    }
}
