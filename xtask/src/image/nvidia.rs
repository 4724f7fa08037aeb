//! Libraries of NVIDIA's that the program loads when it runs, which NVIDIA's container toolkit does not mount: it mounts the driver's alone.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Where the image has them, which is in its path of libraries.
pub const FOLDER: &str = "usr/local/cuda/lib64";

/// Folders of libraries, besides those in `LD_LIBRARY_PATH` and `CUDA_PATH`.
const FOLDERS: [&str; 6] = [
    "/usr/local/cuda/lib64",
    "/opt/cuda/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
];

/// A library that the program loads, and what for.
pub struct Kind {
    /// Its option.
    option: &'static str,
    /// How its file's name begins.
    stem: &'static str,
    /// The versions in the names under which the program looks for it, the preferred one first.
    versions: &'static [&'static str],
    /// What a run does without it.
    without: &'static str,
}

/// The communication of several GPUs.
pub const NCCL: Kind = Kind {
    option: "--nccl",
    stem: "libnccl",
    versions: &["2"],
    without: "GPUs need it to communicate, unless --collectives host is given",
};

/// Products of matrices.
pub const CUBLAS: Kind = Kind {
    option: "--cublas",
    stem: "libcublas",
    versions: &["13", "12"],
    without: "products of matrices are slower without it",
};

/// A library's file, and its name in the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Library {
    pub file: PathBuf,
    pub name: String,
}

impl Kind {
    /// The files that a library consists of: that of `given`, or else what this machine has.
    pub fn find(&self, given: Option<&Path>) -> Result<Vec<Library>> {
        let Self { option, stem, versions, .. } = self;
        let names = || versions.iter().map(|version| format!("{stem}.so.{version}"));
        let file = match given {
            Some(file) => file.to_owned(),
            None => {
                let folders = folders();
                let files = names().flat_map(|name| folders.iter().map(move |folder| folder.join(&name)));
                files.into_iter().find(|file| file.is_file()).with_context(|| {
                    let looked: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
                    let names = names().collect::<Vec<_>>().join(" or ");
                    format!("there is no {names} in {}; give its file: {option}=FILE", looked.join(", "))
                })?
            }
        };
        let of_file = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // `libcublas.so.12.4.5` is looked for as `libcublas.so.12`.
        let version = of_file.strip_prefix(&format!("{stem}.so.")).and_then(|rest| rest.split('.').next());
        let version = version.filter(|version| versions.contains(version)).with_context(|| {
            let names = names().collect::<Vec<_>>().join(" or ");
            format!("{option} {}: its name must begin with {names}", file.display())
        })?;
        let mut all = vec![Library { name: format!("{stem}.so.{version}"), file: file.clone() }];
        if *stem == CUBLAS.stem {
            // It is in two parts.
            let name = format!("{stem}Lt.so.{version}");
            let whole = of_file.replace(stem, &format!("{stem}Lt"));
            let beside = [&name, &whole].map(|name| file.with_file_name(name));
            let found = beside.into_iter().find(|file| file.is_file());
            let file = found
                .with_context(|| format!("{option} {}: there is no {name} beside it", file.display()))?;
            all.push(Library { file, name });
        }
        Ok(all)
    }

    /// A line on the absence of the library from an image.
    pub fn absent(&self) -> String {
        let names: Vec<_> =
            self.versions.iter().map(|version| format!("{}.so.{version}", self.stem)).collect();
        format!(
            "the image has no {} ({}): the host must mount it at /{FOLDER} or /usr/local/nvidia/lib64, or {} puts it in",
            names.join(" or "),
            self.without,
            self.option
        )
    }
}

fn folders() -> Vec<PathBuf> {
    let paths = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let given = std::env::split_paths(&paths).filter(|path| path.is_absolute()).collect::<Vec<_>>();
    let toolkit = std::env::var_os("CUDA_PATH").map(|path| PathBuf::from(path).join("lib64"));
    given.into_iter().chain(toolkit).chain(FOLDERS.map(PathBuf::from)).collect()
}

/// The folders of a wheel that say what it is, of the library in it.
pub fn about_wheel(library: &Path) -> Vec<PathBuf> {
    // site-packages/nvidia/nccl/lib/libnccl.so.2, beside site-packages/nvidia_nccl_cu12-2.27.5.dist-info
    let Some(packages) = library.ancestors().find(|folder| folder.ends_with("nvidia")).and_then(Path::parent)
    else {
        return Vec::new();
    };
    let stem = if library.to_string_lossy().contains(NCCL.stem) { "nvidia_nccl" } else { "nvidia_cublas" };
    let entries = std::fs::read_dir(packages).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_about = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(stem) && name.ends_with(".dist-info")
    };
    let mut found: Vec<_> =
        entries.filter(is_about).flat_map(|path| [path.clone(), path.join("licenses")]).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_library_has_the_name_that_the_program_looks_for() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        for name in
            ["libnccl.so.2.27.5", "libcublas.so.12", "libcublasLt.so.12", "libcublas.so.13.1", "libother.so"]
        {
            fs::write(file(name), "").unwrap();
        }
        let names = |kind: &Kind, name: &str| -> Result<Vec<String>> {
            Ok(kind.find(Some(&file(name)))?.into_iter().map(|library| library.name).collect())
        };
        assert_eq!(names(&NCCL, "libnccl.so.2.27.5").unwrap(), ["libnccl.so.2"]);
        assert_eq!(names(&CUBLAS, "libcublas.so.12").unwrap(), ["libcublas.so.12", "libcublasLt.so.12"]);
        let message = |kind, name| names(kind, name).unwrap_err().to_string();
        assert!(message(&CUBLAS, "libcublas.so.13.1").ends_with("there is no libcublasLt.so.13 beside it"));
        let said = "its name must begin with libcublas.so.13 or libcublas.so.12";
        assert!(message(&CUBLAS, "libother.so").ends_with(said));
        fs::write(file("libcublasLt.so.13.1"), "").unwrap();
        assert_eq!(names(&CUBLAS, "libcublas.so.13.1").unwrap(), ["libcublas.so.13", "libcublasLt.so.13"]);
    }
}
