//! libdevice: NVIDIA's mathematical functions, which Burn's compiler links into kernels with exponentials, logarithms and the like.

use std::path::{Path, PathBuf};

use crate::error::Error;

/// Its place in a folder of CUDA's toolkit.
pub const LIBDEVICE: &str = "nvvm/libdevice/libdevice.10.bc";

/// The variable that names the folder.
const CUDA_PATH: &str = "CUDA_PATH";

/// Where Burn's compiler looks without the variable.
const FOLDERS: [&str; 4] = ["/usr/local/cuda", "/opt/cuda", "/usr/lib/cuda", "/usr"];

/// The file, where Burn's compiler (CubeCL 0.11) looks for it.
///
/// # Errors
/// [`Error::NoLibdevice`].
pub fn libdevice() -> Result<PathBuf, Error> {
    find(std::env::var_os(CUDA_PATH).map(PathBuf::from), &FOLDERS)
}

fn find(given: Option<PathBuf>, folders: &[&str]) -> Result<PathBuf, Error> {
    let is_there = |folder: &Path| {
        let file = folder.join(LIBDEVICE);
        file.is_file().then_some(file)
    };
    if let Some(folder) = given {
        let found = format!("{CUDA_PATH}={} has no {LIBDEVICE}", folder.display());
        return is_there(&folder).ok_or(Error::NoLibdevice { found });
    }
    let found = || Error::NoLibdevice { found: format!("no {LIBDEVICE} in {}", folders.join(", ")) };
    folders.iter().find_map(|folder| is_there(Path::new(folder))).ok_or_else(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_found_where_the_variable_or_a_toolkit_is() {
        let folder = std::env::temp_dir().join(format!("brigade-libdevice-{}", std::process::id()));
        let file = folder.join(LIBDEVICE);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let folders = ["/nowhere", folder.to_str().unwrap()];
        let error = find(None, &folders).unwrap_err().to_string();
        assert!(error.contains("/nowhere, ") && error.contains("CUDA_PATH"), "{error}");
        std::fs::write(&file, "BC").unwrap();
        assert_eq!(find(None, &folders).unwrap(), file);
        assert_eq!(find(Some(folder.clone()), &["/nowhere"]).unwrap(), file);
        // A folder that is named is to be the one.
        let error = find(Some("/elsewhere".into()), &folders).unwrap_err().to_string();
        assert!(error.contains("CUDA_PATH=/elsewhere has no nvvm/libdevice"), "{error}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
