//! Where the choices of kernels are kept for later processes.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::Gpu;

/// A file of choices: `name` in `folder`, without its ending.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub folder: PathBuf,
    pub name: String,
}

/// Of a host's GPU, in `BRIGADE_CACHE_DIR` or `brigade` in the user's cache folder; none where the environment names no such
/// folder.
///
/// Each host has a folder of its own: processes share a file through memory mapped from it, which file systems of a network
/// cannot do. Each GPU has a file of its own: in it CubeCL tells GPUs apart by their number alone, not by their model.
pub(crate) fn place(variable: impl Fn(&str) -> Option<OsString>, host: &str, gpu: &Gpu) -> Option<Place> {
    let folder = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = folder("BRIGADE_CACHE_DIR").or_else(|| {
        let user = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
        Some(user.join("brigade"))
    })?;
    let (major, minor) = gpu.compute_capability;
    let name = format!("{} {major}.{minor} {}", gpu.name, gpu.index).replace([' ', '/'], "-");
    Some(Place { folder: cache.join("kernels").join(host.replace('/', "-")), name })
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
        Some(place(variable, HOST, &gpu("NVIDIA H200", 0))?.folder)
    }

    #[test]
    fn the_environment_says_in_which_folder() {
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
        let at =
            |host: &str, name: &str, index| place(|_| Some("/b".into()), host, &gpu(name, index)).unwrap();
        let one = at(HOST, "NVIDIA H100 80GB HBM3", 0);
        assert_eq!(one.name, "NVIDIA-H100-80GB-HBM3-9.0-0");
        assert_ne!(at(HOST, "NVIDIA H100 80GB HBM3", 1), one);
        assert_ne!(at(HOST, "NVIDIA H200", 0), one);
        assert_ne!(at("node-4", "NVIDIA H100 80GB HBM3", 0), one);
        assert_eq!(at(HOST, "NVIDIA H100 80GB HBM3", 0), one);
    }
}
