//! Models by name: in the cache that Hugging Face's libraries share, and (cargo feature `hub`) on the hub.
//!
//! A model that is whole in the cache is taken from there without asking the network. What is missing is downloaded from the commit
//! that the revision names: with ranges, so that an interrupted download continues where it ended, compared with the size
//! and the hash that the hub states (SHA-256, or Git's SHA-1 of small files), and under its name only once it is whole.

mod cache;
#[cfg(feature = "hub")]
mod checksum;
#[cfg(feature = "hub")]
mod download;
#[cfg(feature = "hub")]
mod http;
mod name;

use std::path::PathBuf;
use std::time::Duration;

pub use name::ModelName;

use crate::error::HfError;
use cache::Cache;

/// The hub.
const ENDPOINT: &str = "https://huggingface.co";

/// A file without which a cached model is asked for again.
const TOKENIZER: &str = "tokenizer.json";

/// Where models are, and how they are downloaded.
#[derive(Debug, Clone)]
pub struct Hub {
    /// The folder of the cache.
    pub cache: PathBuf,
    /// Address of the hub, without a slash at its end.
    pub endpoint: String,
    /// The secret that opens private and gated models.
    pub token: Option<String>,
    /// Whether nothing may be downloaded.
    pub offline: bool,
    /// How long the hub may be silent.
    pub timeout: Duration,
    /// How often a request is repeated that failed for a reason that may pass, with a pause that begins with `retry_pause` and doubles.
    pub retries: u32,
    /// The first pause.
    pub retry_pause: Duration,
}

/// How far the download of a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'f> {
    /// Its name in the repository.
    pub file: &'f str,
    /// Bytes that are there.
    pub bytes: u64,
    /// Bytes that it has.
    pub of: u64,
}

/// The folder of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFolder {
    /// Where it is.
    pub path: PathBuf,
    /// What it lacks, perhaps, because the hub could not be asked.
    pub note: Option<String>,
}

/// What is needed of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Configuration,
    /// And all files that accompany the weights.
    AllButWeights,
    Model,
}

/// How long the hub may be silent where it is asked for what a model can do without.
const OPTIONAL_TIMEOUT: Duration = Duration::from_secs(5);

/// A path in a variable that no shell has expanded: with a leading `~` and with `$NAME` and `${NAME}`, as Hugging Face's libraries read it. Unknown names stay.
fn expanded(text: &str, variable: &impl Fn(&str) -> Option<String>) -> PathBuf {
    let mut path = String::new();
    let mut rest = text;
    if let Some(below) = text.strip_prefix('~').filter(|below| below.is_empty() || below.starts_with('/'))
        && let Some(home) = variable("HOME")
    {
        path.push_str(home.trim_end_matches('/'));
        rest = below;
    }
    while let Some((before, after)) = rest.split_once('$') {
        path.push_str(before);
        let braced = after.strip_prefix('{').and_then(|inner| inner.split_once('}'));
        let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len());
        let (name, left) = braced.unwrap_or_else(|| after.split_at(end));
        match variable(name).filter(|_| !name.is_empty()) {
            Some(value) => path.push_str(&value),
            None => path.push_str(&rest[before.len()..rest.len() - left.len()]),
        }
        rest = left;
    }
    path.push_str(rest);
    PathBuf::from(path)
}

impl Hub {
    /// As the environment says, by the names of Hugging Face's libraries: `HF_HUB_CACHE`, or else `hub` in `HF_HOME`, or else in
    /// `huggingface` in `XDG_CACHE_HOME` or `~/.cache`; `HF_ENDPOINT`; `HF_TOKEN`, or else what is in the file that `HF_TOKEN_PATH` names, or in `token` in `HF_HOME`;
    /// `HF_HUB_OFFLINE`. In paths, a leading `~` and `$NAME` or `${NAME}` are expanded.
    ///
    /// # Errors
    /// If none of them says where the cache is.
    pub fn from_env() -> Result<Self, HfError> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// As these variables say.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self, HfError> {
        let set = |name: &str| {
            variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
        };
        let path = |name: &str| set(name).map(|text| expanded(&text, &variable));
        let home = path("HF_HOME").or_else(|| {
            let caches = path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
            Some(caches?.join("huggingface"))
        });
        let cache = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE"));
        let cache = cache.or_else(|| Some(home.clone()?.join("hub"))).ok_or(HfError::NoCache)?;
        let file = || {
            let file = path("HF_TOKEN_PATH").or_else(|| Some(home?.join("token")))?;
            std::fs::read_to_string(file).ok()
        };
        let token = set("HF_TOKEN").or_else(file).map(|token| token.trim().to_owned());
        let offline = set("HF_HUB_OFFLINE").map(|value| value.to_uppercase());
        Ok(Self {
            cache,
            endpoint: set("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.into()).trim_end_matches('/').to_owned(),
            token: token.filter(|token| !token.is_empty()),
            offline: offline.is_some_and(|value| ["1", "ON", "YES", "TRUE"].contains(&value.as_str())),
            timeout: Duration::from_secs(30),
            retries: 4,
            retry_pause: Duration::from_secs(1),
        })
    }

    /// The folder of a model that is whole in the cache: it has its configuration and all files of its weights. None if it is not.
    pub fn cached(&self, name: &ModelName) -> Option<PathBuf> {
        Cache::of(self, name).whole_snapshot()
    }

    /// The folder of a model: from the cache, or else from the hub. `progress` is told what is downloaded. For a cached model without a tokenizer, as programs leave it
    /// that wanted only the model, the hub is asked once.
    ///
    /// # Errors
    /// If it is not in the cache and nothing may be downloaded; if the hub has no such model or revision, or does not give it to
    /// this token; if it has no safetensors; if the network fails more often than it may; or if a file is other than the hub says.
    pub fn folder(
        &self,
        name: &ModelName,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<ModelFolder, HfError> {
        match self.cached(name) {
            None => Ok(self.downloaded(name, Wanted::Model, progress)?.into()),
            Some(folder) => Ok(self.with_tokenizer(folder, name, progress)),
        }
    }

    /// The folder of a model whose weights need not be there: from the cache, or else from the hub.
    ///
    /// # Errors
    /// As those of [`folder`](Self::folder).
    pub fn folder_without_weights(
        &self,
        name: &ModelName,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<ModelFolder, HfError> {
        match Cache::of(self, name).configured_snapshot() {
            None => Ok(self.downloaded(name, Wanted::AllButWeights, progress)?.into()),
            Some(folder) => Ok(self.with_tokenizer(folder, name, progress)),
        }
    }

    /// Completes a folder in the cache that has no tokenizer. What the hub does not have of the folder's commit, or cannot be asked for, is done without.
    fn with_tokenizer(
        &self,
        folder: PathBuf,
        name: &ModelName,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> ModelFolder {
        let commit = folder.file_name().and_then(|commit| commit.to_str());
        let (Some(commit), false) = (commit, folder.join(TOKENIZER).is_file() || !self.can_download()) else {
            return folder.into();
        };
        let once = Self { timeout: self.timeout.min(OPTIONAL_TIMEOUT), retries: 0, ..self.clone() };
        let asked = once.downloaded(&name.at(commit), Wanted::AllButWeights, progress);
        let note = asked.err().map(|error| {
            format!("{name} has no {TOKENIZER} in the cache, and the hub could not be asked for it: {error}")
        });
        ModelFolder { path: folder, note }
    }

    fn can_download(&self) -> bool {
        cfg!(feature = "hub") && !self.offline
    }

    /// The folder of a model's configuration, where nothing else need be: from the cache, or else from the hub.
    ///
    /// # Errors
    /// As those of [`folder`](Self::folder).
    pub fn configuration(
        &self,
        name: &ModelName,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<PathBuf, HfError> {
        match Cache::of(self, name).configured_snapshot() {
            Some(folder) => Ok(folder),
            None => self.downloaded(name, Wanted::Configuration, progress),
        }
    }

    fn downloaded(
        &self,
        name: &ModelName,
        wanted: Wanted,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<PathBuf, HfError> {
        let cache = Cache::of(self, name);
        if self.offline {
            return Err(self.not_cached(name, &cache, "HF_HUB_OFFLINE forbids downloading it"));
        }
        #[cfg(feature = "hub")]
        return download::files(self, name, &cache, wanted, progress);
        #[cfg(not(feature = "hub"))]
        {
            _ = (wanted, progress);
            Err(self.not_cached(
                name,
                &cache,
                "this program was built without the feature `hub`, so it cannot download it",
            ))
        }
    }

    fn not_cached(&self, name: &ModelName, cache: &Cache, why: &str) -> HfError {
        let there = match cache.revisions() {
            revisions if revisions.is_empty() => "no revision is cached".to_owned(),
            revisions => format!("it has {}", revisions.join(", ")),
        };
        let missing = cache.missing().map(|file| format!(" without `{file}`")).unwrap_or_default();
        let problem =
            format!("it is not complete in the cache {}{missing} ({there}), and {why}", self.cache.display());
        HfError::Hub { model: name.to_string(), problem }
    }
}

impl From<PathBuf> for ModelFolder {
    fn from(path: PathBuf) -> Self {
        Self { path, note: None }
    }
}
