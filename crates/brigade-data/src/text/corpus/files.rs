//! Files, folders and globs.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::remote::{Object, is_url, remote_files};
use crate::{Error, Result};

/// The extensions of files that are read as one document of text.
pub const TEXT_EXTENSIONS: &[&str] = &[
    "txt", "text", "md", "rst", "tex", "org", "adoc", "html", "htm", "css", "xml", "rs", "py", "pyi", "c",
    "h", "cc", "cpp", "cxx", "hh", "hpp", "cu", "cuh", "go", "js", "jsx", "mjs", "ts", "tsx", "java", "kt",
    "scala", "swift", "cs", "rb", "php", "pl", "lua", "jl", "r", "hs", "ml", "mli", "clj", "ex", "exs",
    "erl", "zig", "nim", "sql", "sh", "bash", "zsh", "ps1", "toml", "yaml", "yml", "ini", "cfg", "cmake",
    "proto", "wgsl", "glsl",
];

/// How a file contains documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Format {
    /// The file is one document.
    Text,
    /// Every line is a document.
    Jsonl,
    /// Every element of an array is a document, or every object of several.
    Json,
    /// Every row is a document.
    Parquet,
    /// Every row is a document; a stream or a file of Arrow's.
    Arrow,
}

/// How a file of text or JSONL is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
}

/// One file of a corpus.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SourceFile {
    /// Of an object its URL.
    pub(crate) path: PathBuf,
    pub(crate) format: Format,
    pub(crate) compression: Compression,
    /// The object, if it is not a file of this host.
    #[serde(skip)]
    pub(crate) object: Option<Object>,
}

impl SourceFile {
    /// The file if its extension is known. As folders have settings in JSON beside their data, such a file must be asked for.
    fn found(path: PathBuf) -> Option<Self> {
        Self::known(path).filter(Self::is_data)
    }

    /// Whether it is data where nobody has named it.
    fn is_data(&self) -> bool {
        self.format != Format::Json || self.compression != Compression::None
    }

    /// The file if its extension is known.
    fn known(path: PathBuf) -> Option<Self> {
        let lower = path.file_name()?.to_str()?.to_ascii_lowercase();
        let (rest, extension) = lower.rsplit_once('.')?;
        let compression = match extension {
            "gz" => Compression::Gzip,
            "zst" => Compression::Zstd,
            _ => Compression::None,
        };
        let extension = match compression {
            Compression::None => extension,
            Compression::Gzip | Compression::Zstd => rest.rsplit_once('.')?.1,
        };
        let format = match extension {
            "jsonl" => Format::Jsonl,
            "json" => Format::Json,
            "parquet" if compression == Compression::None => Format::Parquet,
            "arrow" if compression == Compression::None => Format::Arrow,
            text if TEXT_EXTENSIONS.contains(&text) => Format::Text,
            _ => return None,
        };
        Some(Self { path, format, compression, object: None })
    }

    /// The object if its extension is known; of JSON only if it `is_named`.
    #[cfg(feature = "object-store")]
    pub(super) fn remote(object: Object, is_named: bool) -> Option<Self> {
        let file = Self::known(object.url().into()).filter(|file| is_named || file.is_data())?;
        Some(Self { object: Some(object), ..file })
    }

    fn identity(&self) -> Result<Identity> {
        match &self.object {
            Some(object) => Ok(Identity::Url(object.url().into())),
            None => identity(&self.path),
        }
    }
}

/// Identifies a file or folder under any of its names.
#[derive(PartialEq, Eq, Hash)]
enum Identity {
    /// Device and inode.
    Inode(u64, u64),
    Url(String),
}

/// How often a pattern may find files again, for each new one that it finds: links that form a circle are followed 40 times, and
/// several of them in all orders.
const MAX_REPEATED: usize = 1000;

fn identity(path: &Path) -> Result<Identity> {
    let metadata = fs::metadata(path).map_err(|source| Error::io("read", path, source))?;
    Ok(Identity::Inode(metadata.dev(), metadata.ino()))
}

/// The files of `sources`, each once, however many links lead to it.
pub(super) fn source_files(sources: &[String], timeout: Duration) -> Result<Vec<SourceFile>> {
    let mut files = Vec::new();
    for source in sources {
        if is_url(source) {
            files.extend(remote_files(source, timeout)?);
            continue;
        }
        let path = Path::new(source);
        // An existing name means that file, even if it looks like a pattern.
        match path.exists() {
            true => named(path, &mut files)?,
            false if is_glob(source) => globbed(source, &mut files)?,
            false => return Err(Error::NotFound { path: path.into() }),
        }
    }
    let mut seen = HashSet::new();
    let mut each_once = Vec::with_capacity(files.len());
    for file in files {
        if seen.insert(file.identity()?) {
            each_once.push(file);
        }
    }
    let files = each_once;
    if files.is_empty() {
        return Err(Error::EmptyCorpus { corpus: "an empty list of sources".into(), files: 0 });
    }
    Ok(files)
}

fn named(path: &Path, files: &mut Vec<SourceFile>) -> Result<()> {
    if path.is_dir() {
        let before = files.len();
        walk(path, files)?;
        return if files.len() > before { Ok(()) } else { Err(no_files(&text(path))) };
    }
    if !path.is_file() {
        let source = std::io::Error::other("it is neither a regular file nor a folder");
        return Err(Error::io("read", path, source));
    }
    files.push(SourceFile::known(path.into()).ok_or_else(|| unknown_extension(path))?);
    Ok(())
}

fn globbed(pattern: &str, files: &mut Vec<SourceFile>) -> Result<()> {
    let malformed = |message: String| Error::Glob { pattern: pattern.into(), message };
    let matches = glob::glob(pattern).map_err(|error| malformed(error.to_string()))?;
    // Of several paths to a file, the one through the fewest folders.
    let (mut shortest, mut repeated) = (HashMap::<Identity, PathBuf>::new(), 0);
    for path in matches {
        let path = path.map_err(|error| {
            let folder = error.path().to_path_buf();
            Error::io("list", folder, error.into())
        })?;
        let identity = match identity(&path) {
            // A dangling link is not a file.
            Err(_) if path.is_symlink() => continue,
            known => known?,
        };
        match shortest.entry(identity) {
            Entry::Vacant(place) => drop(place.insert(path)),
            Entry::Occupied(mut place) => {
                repeated += 1;
                let folders = |path: &Path| path.components().count();
                if folders(&path) < folders(place.get()) {
                    place.insert(path);
                }
            }
        }
        if repeated > MAX_REPEATED * shortest.len() {
            return Err(malformed("links below it form a loop; name the folders instead".into()));
        }
    }
    let mut paths: Vec<PathBuf> = shortest.into_values().collect();
    paths.sort_unstable();
    let before = files.len();
    for path in paths {
        if path.is_dir() {
            walk(&path, files)?;
        } else if path.is_file() {
            files.extend(SourceFile::known(path).filter(|file| file.is_data() || names_json(pattern)));
        }
    }
    if files.len() > before { Ok(()) } else { Err(no_files(pattern)) }
}

/// The files of known kinds in `folder` and below it, sorted by name in each folder.
fn walk(folder: &Path, files: &mut Vec<SourceFile>) -> Result<()> {
    let failed = |source| Error::io("list", folder, source);
    if let Some(saved) = saved_dataset(folder)? {
        files.extend(saved);
        return Ok(());
    }
    let mut entries =
        fs::read_dir(folder).map_err(failed)?.collect::<std::io::Result<Vec<_>>>().map_err(failed)?;
    entries.sort_unstable_by_key(|entry| entry.file_name());
    for entry in entries {
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let path = entry.path();
        if entry.file_type().map_err(failed)?.is_dir() {
            walk(&path, files)?;
        } else if path.is_file() {
            files.extend(SourceFile::found(path));
        }
    }
    Ok(())
}

/// `state.json` in a folder that `datasets.save_to_disk` wrote.
#[derive(Deserialize)]
struct SavedState {
    #[serde(rename = "_data_files")]
    files: Vec<SavedFile>,
}

#[derive(Deserialize)]
struct SavedFile {
    filename: PathBuf,
}

/// `dataset_dict.json` in a folder of several such folders.
#[derive(Deserialize)]
struct SavedSplits {
    splits: Vec<String>,
}

/// The files of a data set that `datasets.save_to_disk` wrote into `folder`, if it did; other Arrow files there are its caches.
fn saved_dataset(folder: &Path) -> Result<Option<Vec<SourceFile>>> {
    for name in ["dataset_dict.json", "state.json"] {
        let Ok(json) = fs::read(folder.join(name)) else { continue };
        let Some(names) = saved_files(name, &json, &text(folder))? else { continue };
        let known = |name: PathBuf| {
            let path = folder.join(name);
            let there = path.is_file().then(|| path.clone()).and_then(SourceFile::known);
            there.ok_or(Error::NotFound { path })
        };
        return names.into_iter().map(known).collect::<Result<_>>().map(Some);
    }
    Ok(None)
}

/// The names of a saved data set's files, if `json` is the content of its file `name`.
pub(super) fn saved_files(name: &str, json: &[u8], folder: &str) -> Result<Option<Vec<PathBuf>>> {
    if name == "dataset_dict.json" {
        let Ok(SavedSplits { splits }) = serde_json::from_slice(json) else { return Ok(None) };
        let first = splits.first().map_or("train", String::as_str);
        let splits = splits.join(", ");
        let message = format!("it has the splits {splits} of a dataset; give one of them: {folder}/{first}");
        return Err(Error::Record { place: folder.into(), message });
    }
    let Ok(SavedState { files }) = serde_json::from_slice(json) else { return Ok(None) };
    Ok(Some(files.into_iter().filter_map(|file| Some(file.filename.file_name()?.into())).collect()))
}

/// Whether a pattern asks for files of JSON.
pub(super) fn names_json(pattern: &str) -> bool {
    pattern.to_ascii_lowercase().ends_with(".json")
}

fn is_glob(source: &str) -> bool {
    source.contains(['*', '?', '['])
}

pub(super) fn unknown_extension(path: &Path) -> Error {
    Error::UnknownExtension { path: path.into(), allowed: allowed() }
}

pub(super) fn no_files(given: &str) -> Error {
    Error::NoFiles { given: given.into(), allowed: allowed() }
}

fn allowed() -> String {
    let known = TEXT_EXTENSIONS.iter().chain(&["jsonl", "json", "parquet", "arrow"]);
    let known: Vec<String> = known.map(|extension| format!(".{extension}")).collect();
    format!("{}; text, JSONL and JSON also as .gz and .zst", known.join(" "))
}

/// The path in lossless text where it is UTF-8.
pub(super) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
