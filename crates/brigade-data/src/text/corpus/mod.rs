//! Where text comes from.

mod bytes;
mod documents;
mod files;
mod input;
mod locked;
mod records;
mod remote;

use std::path::PathBuf;
use std::time::Duration;

pub(crate) use bytes::BytesRead;
pub(crate) use documents::{TextChunk, chunks};
pub(crate) use files::SourceFile;
pub use files::TEXT_EXTENSIONS;
use files::source_files;
pub use records::{Columns, Record, RecordEncoder, RecordLocation};
pub(crate) use records::{Part, parts, text_of_record};
pub use remote::{check_url, is_url};

use crate::{Error, Result};

/// How much text [`Corpus::locked_dependencies`] usually takes: 16 MiB.
pub const DEFAULT_CORPUS_BYTES: u64 = 16 << 20;

/// More sources than this, as a shell makes of a pattern, are described by the first and the last.
const MAX_NAMED: usize = 4;

/// A corpus: which files hold the text. Nothing is read before [`prepare`](crate::prepare()).
///
/// A document is one text file, one line of a JSONL file, one object of a JSON file, or one row of a Parquet or Arrow file. Tables and compressed files (`.gz`,
/// `.zst`: text, JSONL and JSON) take the feature `parquet`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corpus {
    origin: Origin,
    timeout: Duration,
}

/// How long a store may send no byte, by default: 5 minutes.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Origin {
    Locked { manifest_dir: PathBuf, max_bytes: u64 },
    Sources(Vec<String>),
}

impl Corpus {
    /// The Rust sources of the locked dependencies of the workspace at `manifest_dir`, for the platform that this
    /// program was built for: real text on any machine that has built the workspace, without a download.
    ///
    /// Files are taken in the order of a hash of package and path until `max_bytes` is reached, so the subset is a mix of
    /// many packages and the same wherever the lock file and the platform are the same. Files above 256 KiB
    /// (generated tables and bindings), empty files, and files that are not UTF-8 are left out.
    pub fn locked_dependencies(manifest_dir: impl Into<PathBuf>, max_bytes: u64) -> Self {
        Self::of(Origin::Locked { manifest_dir: manifest_dir.into(), max_bytes })
    }

    /// Files, folders, globs or URLs of object stores (by the feature `object-store`), in this order. A folder stands for all files in it and below it with a known extension
    /// ([`TEXT_EXTENSIONS`], `jsonl`, `parquet`, `arrow`), sorted by path, without hidden ones and without following links to
    /// folders; files of JSON (`json`: an array of objects, or one after the other) are read where they are named or a glob ends in `.json`; of a folder that `datasets.save_to_disk` wrote it has the data set's files. A glob stands for its matches with a known extension. A file that is found twice counts once.
    ///
    /// A URL (`gs://`, `s3://`, `https://`) is one object, or else stands for those below it, as a folder does; in its last part and the ones
    /// before, `*` and `[…]` match as in a glob. Only its tokens are kept.
    ///
    /// Lines of JSONL, objects of JSON and rows of tables have [`Columns`].
    pub fn from_sources(sources: &[String]) -> Self {
        Self::of(Origin::Sources(sources.to_vec()))
    }

    fn of(origin: Origin) -> Self {
        Self { origin, timeout: DEFAULT_TIMEOUT }
    }

    /// The same corpus, whose object stores may give no byte for so long, while requests are made again, before that is an error.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The corpus in a few words.
    pub fn describe(&self) -> String {
        match &self.origin {
            Origin::Locked { max_bytes, .. } => {
                format!(
                    "Rust sources of the locked dependencies (at most {:.1} MiB)",
                    *max_bytes as f64 / 1048576.0
                )
            }
            Origin::Sources(sources) => match sources.as_slice() {
                [first, .., last] if sources.len() > MAX_NAMED => {
                    format!("{first}, …, {last} ({} sources)", sources.len())
                }
                few => few.join(", "),
            },
        }
    }

    /// The records of all files, one after the other; each file of text is one, with its text as the column `text`.
    ///
    /// # Errors
    /// What is wrong with the sources; each record may be an error, after which there are none of its file.
    pub fn records(&self, columns: &Columns) -> Result<impl Iterator<Item = Result<Record>> + Send + use<>> {
        let columns = columns.clone();
        Ok(self.files()?.into_iter().flat_map(move |file| {
            let opened = records::records(&file, &None, &columns, &BytesRead::default());
            opened.unwrap_or_else(|error| Box::new(std::iter::once(Err(error))))
        }))
    }

    /// The names that the whole numbers in a column stand for, where files are tables that say them, as the `ClassLabel` of Hugging Face's `datasets`; and whether all
    /// files do.
    ///
    /// # Errors
    /// What is wrong with the sources, a file that cannot be read, or two that say different names.
    pub fn class_names(&self, columns: &Columns, column: &str) -> Result<Option<(Vec<String>, bool)>> {
        let (mut found, mut are_for_all): (Option<Vec<String>>, bool) = (None, true);
        for file in self.files()? {
            let Some(names) = records::class_names(&file, columns, column)? else {
                are_for_all = false;
                continue;
            };
            if let Some(found) = found.filter(|found| *found != names) {
                return Err(Error::ClassNames { column: column.to_owned(), names: [found, names] });
            }
            found = Some(names);
        }
        Ok(found.map(|names| (names, are_for_all)))
    }

    /// Tells corpora apart.
    pub(crate) fn identity(&self) -> String {
        format!("{:?}", self.origin)
    }

    /// Text that changes whenever the list of files may change for another reason than the files themselves; `None` if only the file
    /// system can tell.
    pub(crate) fn stable_identity(&self) -> Option<String> {
        match &self.origin {
            Origin::Locked { manifest_dir, max_bytes } => locked::identity(manifest_dir, *max_bytes),
            Origin::Sources(_) => None,
        }
    }

    /// The files, in the order in which they are read.
    pub(crate) fn files(&self) -> Result<Vec<SourceFile>> {
        match &self.origin {
            Origin::Locked { manifest_dir, max_bytes } => locked::files(manifest_dir, *max_bytes),
            Origin::Sources(sources) => source_files(sources, self.timeout),
        }
    }
}

#[cfg(test)]
#[cfg(feature = "parquet")]
mod tests;
