//! The cache that Hugging Face's libraries share: `models--ORGANIZATION--NAME` with `refs/REVISION` (a commit), `snapshots/COMMIT/FILE`
//! (links) and `blobs/ETAG` (contents).

use std::fs;
use std::path::{Path, PathBuf};

use brigade_sorted::SortedSet;
use serde_json::Value;

use super::name::ModelName;
use super::{Hub, name};
use crate::config::read_object;
use crate::weights::ADAPTERS;

pub(super) const CONFIG: &str = "config.json";
pub(super) const WEIGHTS: &str = "model.safetensors";
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// What adapters have in place of a configuration.
pub(super) const ADAPTERS_CONFIG: &str = "adapter_config.json";

/// How long the name of a commit or of a content is, in hexadecimal digits.
const GIT_ID_LENGTH: usize = 40;

/// A model's part of the cache.
pub(super) struct Cache {
    pub folder: PathBuf,
    revision: String,
}

impl Cache {
    pub fn of(hub: &Hub, name: &ModelName) -> Self {
        let folder = format!("models--{}", name.repository().replace('/', "--"));
        Self { folder: hub.cache.join(folder), revision: name.revision().to_owned() }
    }

    /// The folder of the revision, if all is there that a model needs.
    pub fn whole_snapshot(&self) -> Option<PathBuf> {
        let snapshot = self.snapshot(&self.commit()?);
        first_missing(&snapshot).is_none().then_some(snapshot)
    }

    /// The folder of the revision, if its configuration is there.
    pub fn configured_snapshot(&self) -> Option<PathBuf> {
        let snapshot = self.snapshot(&self.commit()?);
        let configured = [CONFIG, ADAPTERS_CONFIG].into_iter().any(|name| snapshot.join(name).is_file());
        configured.then_some(snapshot)
    }

    /// What the revision lacks, if parts of it are there.
    pub fn missing(&self) -> Option<String> {
        let snapshot = self.snapshot(&self.commit()?);
        snapshot.is_dir().then(|| first_missing(&snapshot)).flatten()
    }

    /// The folder of a commit.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// Where the revision's commit is noted.
    pub fn reference(&self) -> PathBuf {
        self.folder.join("refs").join(&self.revision)
    }

    /// Revisions of which something is there.
    pub fn revisions(&self) -> Vec<String> {
        let mut found = SortedSet::new();
        collect(&self.folder.join("refs"), "", &mut found);
        found.extend(entries(&self.folder.join("snapshots")));
        found.into_iter().collect()
    }

    /// The commit that the revision is in the cache.
    fn commit(&self) -> Option<String> {
        if is_git_id(&self.revision) {
            return Some(self.revision.clone());
        }
        let commit = fs::read_to_string(self.reference()).ok()?.trim().to_owned();
        is_git_id(&commit).then_some(commit)
    }
}

/// Whether this is the full name of a commit or of a content.
pub(super) fn is_git_id(name: &str) -> bool {
    name.len() == GIT_ID_LENGTH && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The files of weights that an index lists; none if it lists what cannot be one.
pub(super) fn indexed_files(index: &serde_json::Map<String, Value>) -> Option<SortedSet<String>> {
    let files = index.get("weight_map")?.as_object()?.values();
    files.map(|file| file.as_str().filter(|file| name::is_part(file)).map(str::to_owned)).collect()
}

/// The first file that a folder lacks of those that every model needs, or adapters without their model.
fn first_missing(folder: &Path) -> Option<String> {
    let there = |name: &str| folder.join(name).is_file();
    if there(ADAPTERS_CONFIG) && !there(WEIGHTS) && !there(INDEX) {
        return (!there(ADAPTERS)).then(|| ADAPTERS.to_owned());
    }
    if !there(CONFIG) {
        return Some(CONFIG.to_owned());
    }
    if there(WEIGHTS) {
        return None;
    }
    let index = read_object(&folder.join(INDEX)).ok().flatten();
    let Some(files) = index.as_ref().and_then(indexed_files) else { return Some(WEIGHTS.to_owned()) };
    files.into_iter().find(|file| !there(file))
}

fn entries(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Adds the files below a folder, with their paths.
fn collect(folder: &Path, prefix: &str, found: &mut SortedSet<String>) {
    for name in entries(folder) {
        let (path, name) = (folder.join(&name), format!("{prefix}{name}"));
        if path.is_dir() { collect(&path, &format!("{name}/"), found) } else { _ = found.insert(name) }
    }
}
