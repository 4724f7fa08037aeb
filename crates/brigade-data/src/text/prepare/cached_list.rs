//! What is found in the records of all sources, kept in the cache.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::cache::{CacheEntry, write_synced};
use super::options::PrepareOptions;
use super::parallel::Workers;
use super::sources::SourceFiles;
use crate::{Error, Progress, Result};

const LIST_FILE: &str = "list.json";

#[derive(Serialize, Deserialize)]
struct Stored {
    hash: String,
    list: Vec<String>,
}

/// A list that follows from the files to train on alone, such as their labels: from the cache, or else as `find` makes it, which is called by one of several
/// processes that ask at once, and calls its argument from time to time, to show the others that it works. `what` says what the list is.
///
/// # Errors
/// Those of `find`; what is wrong with the sources; [`Error::Io`]; [`Error::LockTimeout`]; [`Error::ChangedWhileReading`] where a file is written to meanwhile.
pub fn cached_list<E: From<Error>>(
    settings: &PrepareOptions,
    what: &str,
    progress: &dyn Progress,
    find: impl FnOnce(&dyn Fn()) -> Result<Vec<String>, E>,
) -> Result<Vec<String>, E> {
    let cache = &settings.cache_dir;
    std::fs::create_dir_all(cache).map_err(|source| {
        Error::io("create the token cache (data.cache_dir, or BRIGADE_CACHE_DIR)", cache, source)
    })?;
    let workers = Workers::start(settings.threads)?;
    let mut hasher = settings.hasher();
    hasher.update(format!("{what}\n").as_bytes());
    let mut sources = Vec::new();
    for source in &settings.sources {
        let files = SourceFiles::of(&source.corpus, source, settings, &workers, progress)?;
        files.hash_into(&mut hasher);
        sources.push(files);
    }
    let place = CacheEntry::named(cache, &hasher);
    if let Ok(list) = open(&place.folder()) {
        return Ok(list);
    }
    let lock = place.lock(settings.lock_timeout, progress)?;
    if let Ok(list) = open(&place.folder()) {
        return Ok(list);
    }
    let list = find(&|| lock.show_progress())?;
    // The entry is named by what was in the files.
    if let Some(changed) = sources.iter().flat_map(|source| &source.files).find(|file| !file.is_unchanged()) {
        return Err(Error::ChangedWhileReading { path: changed.file.path.clone() }.into());
    }
    place.build(|folder| write(&folder.join(LIST_FILE), &list))?;
    Ok(list)
}

fn open(folder: &Path) -> Result<Vec<String>> {
    let path = folder.join(LIST_FILE);
    let damaged = |message| Error::TokenFile { path: path.clone(), message };
    let stored = std::fs::read(&path).map_err(|source| Error::io("read", &path, source))?;
    let stored: Stored = serde_json::from_slice(&stored).map_err(|error| damaged(error.to_string()))?;
    match hash(&stored.list) == stored.hash {
        true => Ok(stored.list),
        false => Err(damaged("the list does not match its checksum".into())),
    }
}

fn write(path: &Path, list: &[String]) -> Result<()> {
    let stored = serde_json::to_vec(&Stored { hash: hash(list), list: list.to_vec() });
    write_synced(path, &stored.map_err(|error| Error::io("write", path, error.into()))?)
}

fn hash(list: &[String]) -> String {
    blake3::hash(format!("{list:?}").as_bytes()).to_hex().to_string()
}
