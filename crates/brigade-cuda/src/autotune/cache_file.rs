//! Where the results of autotuning are stored.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::driver::Gpu;

/// The file `name` in `folder`, without its extension.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CacheFile {
    pub folder: PathBuf,
    pub name: String,
}

/// The cache file of one of a host's GPUs, in `BRIGADE_CACHE_DIR` or `brigade` in the user's cache folder; none if the
/// environment names no such folder.
///
/// Each host has its own folder: processes share a file by mapping it into memory, which does not work across hosts on a network
/// file system. Each GPU has its own file: within a file, CubeCL tells GPUs apart by their index alone, not by their model.
pub(super) fn cache_file(
    variable: impl Fn(&str) -> Option<OsString>,
    host: &str,
    gpu: &Gpu,
) -> Option<CacheFile> {
    let cache = brigade_files::cache_folder(variable)?;
    let (major, minor) = gpu.compute_capability;
    let name = format!("{} {major}.{minor} {}", gpu.name, gpu.index).replace([' ', '/'], "-");
    Some(CacheFile { folder: cache.join("kernels").join(host.replace('/', "-")), name })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "node-3";

    fn gpu(name: &str, index: usize) -> Gpu {
        Gpu {
            index,
            name: name.to_owned(),
            uuid: String::new(),
            pci_bus_id: String::new(),
            total_memory: 0,
            compute_capability: (9, 0),
        }
    }

    fn folder(variables: &[(&str, &str)]) -> Option<PathBuf> {
        let variable = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into());
        Some(cache_file(variable, HOST, &gpu("NVIDIA H200", 0))?.folder)
    }

    #[test]
    fn the_environment_names_the_folder() {
        let (home, user, own) =
            (("HOME", "/home/a"), ("XDG_CACHE_HOME", "/cache"), ("BRIGADE_CACHE_DIR", "/b"));
        assert_eq!(folder(&[home]), Some("/home/a/.cache/brigade/kernels/node-3".into()));
        assert_eq!(folder(&[home, user]), Some("/cache/brigade/kernels/node-3".into()));
        assert_eq!(folder(&[home, user, own]), Some("/b/kernels/node-3".into()));
        assert_eq!(folder(&[home, ("XDG_CACHE_HOME", "")]), folder(&[home]));
        assert_eq!(folder(&[]), None);
    }

    #[test]
    fn each_gpu_and_each_host_has_a_file_of_its_own() {
        let at = |host: &str, name: &str, index| {
            cache_file(|_| Some("/b".into()), host, &gpu(name, index)).unwrap()
        };
        let one = at(HOST, "NVIDIA H100 80GB HBM3", 0);
        assert_eq!(one.name, "NVIDIA-H100-80GB-HBM3-9.0-0");
        assert_ne!(at(HOST, "NVIDIA H100 80GB HBM3", 1), one);
        assert_ne!(at(HOST, "NVIDIA H200", 0), one);
        assert_ne!(at("node-4", "NVIDIA H100 80GB HBM3", 0), one);
        assert_eq!(at(HOST, "NVIDIA H100 80GB HBM3", 0), one);
    }
}
