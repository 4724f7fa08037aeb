//! Without object stores.

use std::convert::Infallible;
use std::path::Path;

use anyhow::bail;

/// Why no URL can be used.
const MISSING: &str = "this build has no object stores (cargo's feature object-store); give a folder";

/// Refuses every URL, and says why.
pub(crate) fn check_url(_url: &str) -> Result<(), String> {
    Err(MISSING.into())
}

/// There is none.
#[derive(Debug, Clone)]
pub(crate) struct ObjectResults(Infallible);

impl ObjectResults {
    pub(crate) fn open(url: &str) -> anyhow::Result<Self> {
        bail!("--out {url}: {MISSING}")
    }

    pub(crate) fn url(&self) -> &str {
        match self.0 {}
    }

    pub(crate) fn names(&self, _folders: &[&str]) -> anyhow::Result<Vec<String>> {
        match self.0 {}
    }

    pub(super) fn times(&self, _folder: &str) -> anyhow::Result<Vec<(String, std::time::SystemTime)>> {
        match self.0 {}
    }

    pub(crate) fn fetch(&self, _folder: &Path, _names: &[&str]) -> anyhow::Result<()> {
        match self.0 {}
    }

    pub(super) fn upload(&self, _name: &str, _file: &std::fs::File, _bytes: u64) -> anyhow::Result<()> {
        match self.0 {}
    }

    pub(super) fn remove(&self, _name: &str) -> anyhow::Result<()> {
        match self.0 {}
    }
}
