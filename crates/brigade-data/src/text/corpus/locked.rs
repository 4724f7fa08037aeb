//! The Rust sources of a workspace's locked dependencies.

use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::MetadataCommand;

use super::files::{Compression, Format, SourceFile, text};
use crate::{Error, Result};

/// The platform that this program was built for.
const TARGET: &str = env!("BRIGADE_DATA_TARGET");

/// Larger files are generated tables and bindings.
const MAX_FILE_BYTES: u64 = 256 << 10;

/// A dependency's name and version, and the folder of its sources.
struct Package {
    name: String,
    root: PathBuf,
}

/// What the choice of files depends on: the lock file, the platform and the size.
pub(super) fn identity(manifest_dir: &Path, max_bytes: u64) -> Option<String> {
    let lock = fs::read(lock_file(manifest_dir)?).ok()?;
    Some(format!("{} {TARGET} {max_bytes} {}", manifest_dir.display(), blake3::hash(&lock)))
}

/// The files, in the order of a hash of package and path, up to `max_bytes`.
pub(super) fn files(manifest_dir: &Path, max_bytes: u64) -> Result<Vec<SourceFile>> {
    let mut candidates = Vec::new();
    for package in packages(manifest_dir)? {
        collect(&package, &package.root, &mut candidates)?;
    }
    candidates.sort_unstable();
    let mut files = Vec::new();
    let mut total = 0;
    for (_, path) in candidates {
        let content = fs::read(&path).map_err(|source| Error::io("read", &path, source))?;
        if std::str::from_utf8(&content).is_err() {
            continue;
        }
        total += content.len() as u64;
        if total > max_bytes {
            break;
        }
        files.push(SourceFile { path, format: Format::Text, compression: Compression::None, object: None });
    }
    if files.is_empty() {
        return Err(missing(manifest_dir, format!("no Rust file fits in {max_bytes} bytes")));
    }
    Ok(files)
}

/// Adds the Rust files in `folder` and below it, each behind the hash that orders it.
fn collect(package: &Package, folder: &Path, candidates: &mut Vec<([u8; 16], PathBuf)>) -> Result<()> {
    let failed = |source| Error::io("list", folder, source);
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (path, kind) = (entry.path(), entry.file_type().map_err(failed)?);
        if kind.is_dir() {
            collect(package, &path, candidates)?;
        } else if kind.is_file() && path.extension().is_some_and(|extension| extension == "rs") {
            let size = entry.metadata().map_err(failed)?.len();
            if (1..=MAX_FILE_BYTES).contains(&size) {
                candidates.push((order(package, &path), path));
            }
        }
    }
    Ok(())
}

fn order(package: &Package, path: &Path) -> [u8; 16] {
    let relative = path.strip_prefix(&package.root).unwrap_or(path);
    let hash = blake3::hash(format!("{}/{}", package.name, text(relative)).as_bytes());
    std::array::from_fn(|index| hash.as_bytes()[index])
}

/// The dependencies that cargo names or, if it cannot, those in the lock file whose sources are on this machine.
///
/// Offline, cargo gives no answer if any package was never downloaded, and a build downloads only what it builds: no development
/// dependencies, for example.
fn packages(manifest_dir: &Path) -> Result<Vec<Package>> {
    let manifest = manifest_dir.join("Cargo.toml");
    if !manifest.is_file() {
        return Err(missing(manifest_dir, "there is no Cargo.toml".into()));
    }
    let options = ["--offline", "--locked", "--filter-platform", TARGET].map(String::from).to_vec();
    let metadata = MetadataCommand::new().manifest_path(&manifest).other_options(options).exec();
    let packages = match metadata {
        Ok(metadata) => dependencies(metadata),
        Err(error) => {
            tracing::debug!("cargo metadata: {error}; reading Cargo.lock instead");
            downloaded(manifest_dir)?
        }
    };
    if packages.is_empty() {
        return Err(missing(manifest_dir, "it has no dependencies whose sources are on this machine".into()));
    }
    Ok(packages)
}

/// The packages that come from outside the workspace.
fn dependencies(metadata: cargo_metadata::Metadata) -> Vec<Package> {
    let outside = metadata.packages.into_iter().filter(|package| package.source.is_some());
    outside
        .filter_map(|package| {
            let root = package.manifest_path.parent()?.as_std_path().to_path_buf();
            Some(Package { name: format!("{}-{}", package.name, package.version), root })
        })
        .collect()
}

/// The packages of the lock file that cargo has unpacked in its registry folder.
fn downloaded(manifest_dir: &Path) -> Result<Vec<Package>> {
    let lock =
        lock_file(manifest_dir).ok_or_else(|| missing(manifest_dir, "there is no Cargo.lock".into()))?;
    let content = fs::read_to_string(&lock).map_err(|source| Error::io("read", &lock, source))?;
    let broken = |message: String| missing(manifest_dir, format!("{}: {message}", lock.display()));
    let table: toml::Table =
        content.parse().map_err(|error: toml::de::Error| broken(error.message().into()))?;
    let locked = table.get("package").and_then(toml::Value::as_array).cloned().unwrap_or_default();
    let sources = registry_folders();
    let mut packages = Vec::new();
    for package in locked.iter().filter(|package| package.get("source").is_some()) {
        let field = |key| package.get(key).and_then(toml::Value::as_str).map(String::from);
        let (Some(name), Some(version)) = (field("name"), field("version")) else { continue };
        let name = format!("{name}-{version}");
        let root = sources.iter().map(|folder| folder.join(&name)).find(|folder| folder.is_dir());
        packages.extend(root.map(|root| Package { name, root }));
    }
    Ok(packages)
}

/// Where cargo unpacks the packages of registries, sorted.
fn registry_folders() -> Vec<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo"))).unwrap_or_default();
    let entries = fs::read_dir(home.join("registry/src")).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    folders.sort_unstable();
    folders
}

/// The lock file of the workspace that contains `manifest_dir`.
fn lock_file(manifest_dir: &Path) -> Option<PathBuf> {
    let folder = fs::canonicalize(manifest_dir).ok()?;
    folder.ancestors().map(|folder| folder.join("Cargo.lock")).find(|lock| lock.is_file())
}

fn missing(manifest_dir: &Path, message: String) -> Error {
    Error::Dependencies { manifest_dir: manifest_dir.into(), message }
}
