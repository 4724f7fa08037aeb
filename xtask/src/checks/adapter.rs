//! Whether wgpu can be tested without a GPU: on lavapipe, the Vulkan driver in software of Mesa.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Variables that name the only drivers to use; the first one that is set counts.
const VARIABLES: [&str; 2] = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"];

/// Where the Vulkan loader finds manifests of drivers otherwise.
const FOLDERS: [&str; 3] = ["/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/usr/share/vulkan/icd.d"];

/// Whether the Vulkan loader would find a manifest of lavapipe.
///
/// Source: "Driver interface to the Vulkan loader" of the Khronos loader's documentation, on Linux; folders below the
/// user's home are left out.
pub fn is_installed() -> bool {
    let named = VARIABLES.iter().find_map(std::env::var_os);
    is_found(named, FOLDERS.map(Path::new).as_slice())
}

fn is_found(named: Option<OsString>, folders: &[&Path]) -> bool {
    let places: Vec<PathBuf> = match &named {
        Some(list) => std::env::split_paths(list).collect(),
        None => folders.iter().map(|folder| folder.to_path_buf()).collect(),
    };
    places.iter().any(|place| match std::fs::read_dir(place) {
        Ok(entries) => entries.flatten().any(|entry| is_lavapipe(&entry.file_name())),
        Err(_) => place.is_file() && place.file_name().is_some_and(is_lavapipe),
    })
}

/// `lvp_icd.x86_64.json`
fn is_lavapipe(manifest: &OsStr) -> bool {
    let name = manifest.to_string_lossy();
    name.starts_with("lvp_icd") && name.ends_with(".json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_manifest_is_found_where_the_loader_looks() {
        let folder = tempfile::tempdir().unwrap();
        let (none, empty, full) =
            (folder.path().join("none"), folder.path().join("empty"), folder.path().join("full"));
        std::fs::create_dir(&empty).unwrap();
        std::fs::create_dir(&full).unwrap();
        let (lavapipe, other) = (full.join("lvp_icd.x86_64.json"), full.join("radeon_icd.x86_64.json"));
        std::fs::write(&other, "{}").unwrap();
        assert!(!is_found(None, &[&none, &empty, &full]));
        std::fs::write(&lavapipe, "{}").unwrap();
        assert!(is_found(None, &[&none, &empty, &full]));
        assert!(!is_found(None, &[&none, &empty]));

        let named = |places: &[&Path]| Some(std::env::join_paths(places).unwrap());
        assert!(is_found(named(&[&other, &lavapipe]), &[]));
        assert!(is_found(named(&[&full]), &[]));
        // What is named replaces the folders.
        assert!(!is_found(named(&[&other]), &[&full]));
        assert!(!is_found(named(&[&none.join("lvp_icd.json")]), &[&full]));
    }
}
