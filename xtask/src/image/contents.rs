//! The files of an image.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::archive::{Entries, Entry, archive};
use super::nvidia::{self, Library};
use crate::cargo;
use crate::dist;

/// The folder of the program in the image.
pub const PROGRAMS: &str = "usr/local/bin";

/// The user that it runs as, and its group.
pub const USER: u32 = 65_532;

/// Certificates of authorities in the image.
const CERTIFICATES: &str = "etc/ssl/certs/ca-certificates.crt";

/// Where distributions have them.
const CERTIFICATES_HERE: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Files whose names begin so are licences.
const LICENCES: [&str; 4] = ["LICENSE", "LICENCE", "COPYING", "NOTICE"];

/// NVIDIA's mathematical functions, which kernels are linked with: the path in a folder of CUDA's toolkit, and such folders, of which the image has the first.
const LIBDEVICE: &str = "nvvm/libdevice/libdevice.10.bc";
const TOOLKITS: [&str; 4] = ["usr/local/cuda", "opt/cuda", "usr/lib/cuda", "usr"];

/// Where libdevice is on this machine.
pub fn libdevice() -> Result<PathBuf> {
    let given = std::env::var_os("CUDA_PATH").map(PathBuf::from);
    let folders =
        given.map_or_else(|| TOOLKITS.map(|folder| Path::new("/").join(folder)).to_vec(), |one| vec![one]);
    let found = folders.iter().map(|folder| folder.join(LIBDEVICE)).find(|file| file.is_file());
    let looked: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
    found.with_context(|| {
        format!(
            "kernels for NVIDIA's GPUs are linked with {LIBDEVICE}, which is not in {}: install CUDA's toolkit (or its part cuda-nvvm, or pip install nvidia-nvvm), and set CUDA_PATH to \
             the folder that has it",
            looked.join(", ")
        )
    })
}

/// The files so far.
pub struct Contents {
    entries: Entries,
}

/// Those of this machine, without which the image reaches no store by https.
fn certificates() -> Result<Vec<u8>> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let places = named.into_iter().chain(CERTIFICATES_HERE.map(PathBuf::from));
    let found = places.filter(|path| path.is_file()).find_map(|path| fs::read(path).ok());
    found.with_context(|| {
        format!(
            "this machine has no certificates of authorities for the image, neither in SSL_CERT_FILE nor in {}",
            CERTIFICATES_HERE.join(", ")
        )
    })
}

impl Contents {
    /// What every program expects.
    pub fn new() -> Self {
        let mut contents = Self { entries: Entries::new() };
        let user = format!("root:x:0:0:root:/:/none\nnonroot:x:{USER}:{USER}:nonroot:/tmp:/none\n");
        contents.file("etc/passwd", user.into_bytes(), 0o644);
        contents.file("etc/group", format!("root:x:0:\nnonroot:x:{USER}:\n").into_bytes(), 0o644);
        contents.entries.insert("tmp".into(), Entry::Folder { mode: 0o1777 });
        contents
    }

    /// A file, and the folders that it is in.
    fn file(&mut self, path: &str, bytes: Vec<u8>, mode: u32) {
        for (at, _) in path.match_indices('/') {
            self.entries.entry(path[..at].to_owned()).or_insert(Entry::Folder { mode: 0o755 });
        }
        self.entries.insert(path.to_owned(), Entry::File { bytes, mode });
    }

    /// The program, under a name, and what it is linked with.
    pub fn program(&mut self, program: &Path, name: &str) -> Result<()> {
        let read = |path: &Path| fs::read(path).with_context(|| path.display().to_string());
        dist::check(program)?;
        self.linked(libraries(program, None)?)?;
        self.file(&format!("{PROGRAMS}/{name}"), read(program)?, 0o755);
        self.file(CERTIFICATES, certificates()?, 0o644);
        Ok(())
    }

    /// Libraries that are linked, at the paths by which the loader looks for them, whatever links lead there.
    fn linked(&mut self, libraries: Vec<PathBuf>) -> Result<()> {
        for library in libraries {
            let bytes = fs::read(&library).with_context(|| library.display().to_string())?;
            self.file(library.display().to_string().trim_start_matches('/'), bytes, 0o755);
            self.licence_of_package(&library)?;
        }
        Ok(())
    }

    /// A library that the program loads when it runs, with what it is linked with outside its own folder.
    pub fn loaded(&mut self, library: &Library) -> Result<()> {
        let Library { file, name } = library;
        let bytes = fs::read(file).with_context(|| file.display().to_string())?;
        let folder = file.parent();
        let mut linked = libraries(file, folder)?;
        linked.retain(|linked| linked.parent() != folder);
        self.linked(linked)?;
        self.file(&format!("{}/{name}", nvidia::FOLDER), bytes, 0o755);
        self.licence_of_package(file)?;
        for folder in nvidia::about_wheel(file) {
            self.licences_in(&folder, name)?;
        }
        Ok(())
    }

    /// libdevice, where kernels' compiler looks for it. NVIDIA's licence of CUDA allows to pass it on.
    pub fn libdevice(&mut self, file: &Path) -> Result<()> {
        let bytes = fs::read(file).with_context(|| file.display().to_string())?;
        self.file(&format!("{}/{LIBDEVICE}", TOOLKITS[0]), bytes, 0o644);
        Ok(())
    }

    /// The licence of the Debian package that a library is from, where Debian it is.
    fn licence_of_package(&mut self, library: &Path) -> Result<()> {
        let real = library.canonicalize()?;
        let owner = [library, &real].into_iter().find_map(|path| {
            let output = Command::new("dpkg-query").arg("--search").arg(path).output().ok()?;
            let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
            Some(text.split(':').next()?.to_owned())
        });
        let Some(package) = owner else { return Ok(()) };
        if let Ok(text) = fs::read(format!("/usr/share/doc/{package}/copyright")) {
            self.file(&format!("licenses/{package}/copyright"), text, 0o644);
        }
        Ok(())
    }

    /// Licences of the workspace of this manifest, under `name`, and of all that its packages are built from.
    pub fn licences(&mut self, manifest: &Path, name: &str) -> Result<()> {
        let metadata = output(
            Command::new(cargo::program())
                .args([
                    "metadata",
                    "--format-version",
                    "1",
                    "--locked",
                    "--offline",
                    "--filter-platform",
                    &dist::host()?,
                    "--manifest-path",
                ])
                .arg(manifest),
        )?;
        let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata")?;
        let root = PathBuf::from(metadata["workspace_root"].as_str().unwrap_or_default());
        self.licences_in(&root, name)?;
        let mut folders = BTreeMap::new();
        for package in metadata["packages"].as_array().into_iter().flatten() {
            let text = |name: &str| package[name].as_str().unwrap_or_default().to_owned();
            let manifest = PathBuf::from(text("manifest_path"));
            let folder = manifest.parent().unwrap_or(&manifest).to_owned();
            folders.insert(format!("{}-{}", text("name"), text("version")), folder);
        }
        ensure!(!folders.is_empty(), "cargo metadata names no packages");
        folders.retain(|_, folder| *folder != root);
        folders.iter().try_for_each(|(name, folder)| self.licences_in(folder, name))
    }

    fn licences_in(&mut self, folder: &Path, name: &str) -> Result<()> {
        // A package that is for another system need not be here.
        let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
        for entry in entries {
            let entry = entry?;
            let file = entry.file_name().to_string_lossy().into_owned();
            let upper = file.to_ascii_uppercase();
            if LICENCES.iter().any(|start| upper.starts_with(start)) && entry.path().is_file() {
                self.file(&format!("licenses/{name}/{file}"), fs::read(entry.path())?, 0o644);
            }
        }
        Ok(())
    }

    /// The one layer of the image.
    pub fn into_layer(self) -> Result<Vec<u8>> {
        archive(&self.entries)
    }
}

/// The libraries that a program needs to start, with those that they need, and the loader; or a library, in whose folder others may be.
pub fn libraries(program: &Path, folder: Option<&Path>) -> Result<Vec<PathBuf>> {
    let mut ldd = Command::new("ldd");
    ldd.env("LC_ALL", "C").arg(program);
    if let Some(folder) = folder {
        ldd.env("LD_LIBRARY_PATH", folder);
    }
    let text = output(&mut ldd)?;
    // `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)`, or `/lib64/ld-linux-x86-64.so.2 (0x…)`
    let path = |line: &str| {
        let found = line.split("=>").last()?.split_whitespace().next()?;
        found.starts_with('/').then(|| PathBuf::from(found))
    };
    ensure!(!text.contains("not found"), "ldd {}: {text}", program.display());
    Ok(text.lines().filter_map(path).collect())
}

/// What a program prints.
fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
