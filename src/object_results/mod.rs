//! Results in a bucket: a run whose folder is a URL works in a folder on this machine, whose files are copied to the URL while it runs.
//!
//! The bucket is what counts. A run that resumes on another machine begins with the files that are there; its checkpoints are below the URL
//! in any case, so nothing that training continues from depends on the copies.

mod copies;
#[cfg_attr(not(feature = "object-store"), path = "unsupported.rs")]
mod place;

use std::path::{Component, Path, PathBuf};

use anyhow::{Context, anyhow};

pub(crate) use copies::{Copied, Copies};
pub(crate) use place::{ObjectResults, check_url};

use crate::launched::launcher_folder;

/// Whether a run's folder is a URL.
pub(crate) fn is_url(dir: &Path) -> bool {
    dir.to_string_lossy().contains("://")
}

/// Where the files of a run with this URL are on this machine: below `runs` in the cache, by scheme, bucket and path.
///
/// # Errors
/// If the environment names no folder for caches.
pub(crate) fn local_folder(url: &str) -> Result<PathBuf, &'static str> {
    let cache = brigade_files::cache_folder(|name| std::env::var_os(name)).ok_or(
        "a run with a URL works in the cache folder of its machine, and there is none: set BRIGADE_CACHE_DIR, XDG_CACHE_HOME or HOME",
    )?;
    Ok(cache.join("runs").join(below_cache(url)))
}

/// The folder on this machine of the run in `dir`. If that is a URL, these of its files are as they are in the bucket, or newer.
///
/// # Errors
/// If the bucket does not answer, or the files cannot be written.
pub(crate) fn with_files(dir: &Path, names: &[&str]) -> anyhow::Result<PathBuf> {
    if !is_url(dir) {
        return Ok(dir.to_owned());
    }
    let url = dir.to_string_lossy();
    check_url(&url).map_err(|why| anyhow!(why))?;
    let folder = local_folder(&url).map_err(|why| anyhow!(why))?;
    // For ranks, their launcher has done it.
    if launcher_folder().is_none() {
        ObjectResults::open(&url)
            .and_then(|results| results.fetch(&folder, names))
            .context("the run's files")?;
    }
    Ok(folder)
}

fn below_cache(url: &str) -> PathBuf {
    let parts = Path::new(url).components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_string_lossy().trim_end_matches(':').to_owned()),
        _ => None,
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_url_has_its_folder() {
        let of = |url| below_cache(url).to_string_lossy().into_owned();
        assert_eq!(of("gs://bucket/runs/a/"), "gs/bucket/runs/a");
        assert_eq!(of("s3://bucket/runs/../a"), "s3/bucket/runs/a");
        assert_eq!(of("file:///data/a"), "file/data/a");
        assert!(is_url(Path::new("gs://bucket/a")) && !is_url(Path::new("runs/a:b")));
    }
}
