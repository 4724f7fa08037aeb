//! Errors, which name the file, the line or the option.

use std::any::Any;
use std::io;
use std::path::{Path, PathBuf};

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why data could not be read, prepared, sampled or prefetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused an operation on a file or folder.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        /// The operation, as a verb: "read", "write", "rename".
        operation: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The disk (or the user's quota on it) is full; nothing half-written is left behind.
    #[error(
        "the disk is full: cannot write {} ({source}); free some space or choose another cache folder",
        path.display()
    )]
    DiskFull {
        /// The file that was being written.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file or folder of the corpus does not exist.
    #[error("data: {} does not exist", path.display())]
    NotFound {
        /// The path as it was given.
        path: PathBuf,
    },
    /// A glob is malformed.
    #[error("data: {pattern:?} is not a valid glob: {message}")]
    Glob {
        /// The pattern as it was given.
        pattern: String,
        /// What is wrong with it.
        message: String,
    },
    /// A folder or glob contains no file of a known kind.
    #[error("data: {given:?} matches no file that can be read as text (supported: {allowed})")]
    NoFiles {
        /// The source as it was given.
        given: String,
        /// The extensions that are read.
        allowed: String,
    },
    /// A named file has an unknown kind.
    #[error("data: {} has an unknown extension (supported: {allowed})", path.display())]
    UnknownExtension {
        /// The file.
        path: PathBuf,
        /// The extensions that are read.
        allowed: String,
    },
    /// Files say different names of the numbers in a column.
    #[error(
        "data: the numbers in the column `{column}` stand for {} in one file and for {} in another; write names instead",
        names[0].join(", "),
        names[1].join(", ")
    )]
    ClassNames {
        /// The column.
        column: String,
        /// The names of the two files.
        names: [Vec<String>; 2],
    },
    /// The corpus contains no text.
    #[error("data: no text in {corpus} (files read: {files})")]
    EmptyCorpus {
        /// The corpus in words.
        corpus: String,
        /// How many files were read.
        files: usize,
    },
    /// A file is not UTF-8 text.
    #[error("data: {} is not UTF-8 text: bad byte at offset {offset}", path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// The offset of the first bad byte from the start of the file, as it is without compression.
        offset: u64,
    },
    /// A record is not what it must be.
    #[error("data: {place}: {message}")]
    Record {
        /// The file with the line or row.
        place: String,
        /// What is wrong with it.
        message: String,
    },
    /// A file with a structure of its own cannot be read.
    #[error("data: {} is not {kind} that can be read{place}: {message}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What it should be, with its article.
        kind: &'static str,
        /// Where in it, after a comma; empty if nowhere in particular.
        place: String,
        /// What the reader said.
        message: String,
    },
    /// Files of this kind cannot be read by this program.
    #[error("data: {} is {kind}, but this program was built without the feature `parquet` of brigade", path.display())]
    NotBuilt {
        /// The file.
        path: PathBuf,
        /// What it is, with its article.
        kind: &'static str,
    },
    /// A file changed while it was being tokenized.
    #[error("data: {} changed while it was being read; start again when nothing writes to it any more", path.display())]
    ChangedWhileReading {
        /// The file.
        path: PathBuf,
    },
    /// A URL that cannot be used.
    #[error("data: {url}: {message}")]
    InvalidUrl {
        /// The URL without what may be secret in it.
        url: String,
        /// What is wrong with it.
        message: String,
    },
    /// A URL, in a program without object stores.
    #[error(
        "data: {url}: this program was built without the feature `object-store` of brigade; give a file of this host"
    )]
    NoStores {
        /// The URL without what may be secret in it.
        url: String,
    },
    /// An object store refused, or did not answer in time.
    #[error(
        "data: cannot {operation} {url}: {message} (data.timeout_seconds limits how long a store may send \
        nothing)"
    )]
    Store {
        /// The operation, as a verb.
        operation: &'static str,
        /// The object or prefix.
        url: String,
        /// What the store said.
        message: String,
        /// Whether it may do it later: it did not answer, or was busy.
        may_pass: bool,
    },
    /// The locked dependencies of a workspace cannot be found.
    #[error(
        "data: no sources of locked dependencies for {}: {message}; give a corpus of your own instead",
        manifest_dir.display()
    )]
    Dependencies {
        /// The folder that was searched.
        manifest_dir: PathBuf,
        /// What is missing.
        message: String,
    },
    /// A setting has a value that is not allowed.
    #[error("{option} = {given} is not allowed: {allowed}")]
    InvalidSetting {
        /// The option's name.
        option: &'static str,
        /// The value that was given.
        given: String,
        /// What is allowed.
        allowed: String,
    },
    /// A tokenizer cannot be read, trained or used.
    #[error("tokenizer {tokenizer}: {message}")]
    Tokenizer {
        /// The file or the name of the tokenizer.
        tokenizer: String,
        /// What is wrong.
        message: String,
    },
    /// A file of the token cache is truncated, corrupt or of another version.
    #[error("token file {}: {message}", path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        message: String,
    },
    /// A document is longer than a row, and such are refused.
    #[error(
        "document {document}{place} has {given} tokens, more than the {most} of a row (sequence_length), and long = \
        \"refuse\"; use \"cut\", \"split\" or longer rows"
    )]
    LongExample {
        /// The document's number, from 1, in its split.
        document: usize,
        /// Where it is: ` (notes.jsonl:3)`, or ` of notes.txt` where only the source is known; empty where that is not known either.
        place: String,
        /// Its tokens, as a row would have them.
        given: usize,
        /// A row's tokens.
        most: usize,
    },
    /// Another process holds the cache and does nothing.
    #[error(
        "waited {waited_seconds:.0} s for process {holder}, which holds {} to prepare the same text, but has made no progress for \
        {idle_seconds:.0} s; end that process, or start again when it is done",
        path.display()
    )]
    LockTimeout {
        /// The lock file.
        path: PathBuf,
        /// How long it was waited for.
        waited_seconds: f64,
        /// For how long nothing has shown that it works.
        idle_seconds: f64,
        /// The process that holds it, from the lock file.
        holder: String,
    },
    /// The global batch is not a multiple of micro-batch size × data-parallel size.
    #[error(
        "global_batch_size = {global_batch} is not a multiple of micro_batch_size {micro_batch} × data-parallel \
         size {dp_size} = {unit}; the nearest that work: {nearest}"
    )]
    Indivisible {
        /// Sequences per step over all ranks.
        global_batch: usize,
        /// Sequences in one micro-batch of one rank.
        micro_batch: usize,
        /// The number of data-parallel ranks.
        dp_size: usize,
        /// Their product.
        unit: usize,
        /// Global batch sizes that work.
        nearest: String,
    },
    /// There is no such rank or micro-batch.
    #[error("{what} {given} does not exist: there are {count}")]
    OutOfRange {
        /// What was asked for: "dp rank", "micro-batch", "evaluation step".
        what: &'static str,
        /// Which one.
        given: u64,
        /// How many there are.
        count: u64,
    },
    /// The producer of a prefetcher returned an error.
    #[error("preparing step {step} failed: {source}")]
    Producer {
        /// The step.
        step: u64,
        /// The producer's own error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The producer of a prefetcher panicked.
    #[error("preparing step {step} panicked: {message}")]
    ProducerPanic {
        /// The step.
        step: u64,
        /// The panic's text.
        message: String,
    },
    /// A step was not ready in time.
    #[error("step {step} was not ready after {waited_seconds:.1} s: its producer is stuck or too slow")]
    PrefetchTimeout {
        /// The step.
        step: u64,
        /// How long it waited.
        waited_seconds: f64,
    },
    /// A prefetcher was asked for more after a failure.
    #[error("reading ahead ended at step {step}, which failed earlier")]
    PrefetchEnded {
        /// The step that failed.
        step: u64,
    },
}

impl Error {
    /// The error of `operation` on `path`; a full disk has an error of its own.
    pub(crate) fn io(operation: &'static str, path: impl AsRef<Path>, source: io::Error) -> Self {
        #[cfg(feature = "object-store")]
        if let Some(store) = source.get_ref().and_then(|inner| inner.downcast_ref::<brigade_store::Error>()) {
            return store.clone().into();
        }
        let path = path.as_ref().to_path_buf();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull { path, source },
            _ => Self::Io { operation, path, source },
        }
    }

    /// Whether an object store is at fault.
    #[cfg(feature = "text")]
    pub(crate) fn is_of_store(source: &io::Error) -> bool {
        #[cfg(feature = "object-store")]
        return source.get_ref().is_some_and(|inner| inner.is::<brigade_store::Error>());
        #[cfg(not(feature = "object-store"))]
        {
            let _ = source;
            false
        }
    }

    /// Whether the same may succeed later, without anybody changing anything: an object store did not answer, or was busy.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Store { may_pass: true, .. })
    }

    /// Whether the user's settings or data are at fault, rather than the machine or a failure at run time.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::NotFound { .. }
                | Self::Glob { .. }
                | Self::NoFiles { .. }
                | Self::UnknownExtension { .. }
                | Self::EmptyCorpus { .. }
                | Self::NotUtf8 { .. }
                | Self::Record { .. }
                | Self::Damaged { .. }
                | Self::NotBuilt { .. }
                | Self::Dependencies { .. }
                | Self::InvalidUrl { .. }
                | Self::NoStores { .. }
                | Self::InvalidSetting { .. }
                | Self::Tokenizer { .. }
                | Self::Indivisible { .. }
                | Self::LongExample { .. }
        )
    }
}

#[cfg(feature = "object-store")]
impl From<brigade_store::Error> for Error {
    fn from(error: brigade_store::Error) -> Self {
        use brigade_store::Error as Store;
        match error {
            Store::Url { url, message } => Self::InvalidUrl { url, message },
            Store::NotFound { url } => Self::NotFound { path: url.into() },
            Store::Changed { url } => Self::ChangedWhileReading { path: url.into() },
            Store::Failed { operation, url, message, may_pass } => {
                Self::Store { operation, url, message, may_pass }
            }
        }
    }
}

/// The message of a panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}
