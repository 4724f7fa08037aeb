//! Where a user's caches are.

use std::ffi::OsString;
use std::path::PathBuf;

/// Brigade's folder of what can be made again: `BRIGADE_CACHE_DIR`, or `brigade` in the user's cache folder (`XDG_CACHE_HOME`, or
/// `.cache` in `HOME`); none if the environment names no such folder. `variable` gives the environment's variables.
pub fn cache_folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    folder("BRIGADE_CACHE_DIR").or_else(|| {
        let user = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
        Some(user.join("brigade"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(variables: &[(&str, &str)]) -> Option<PathBuf> {
        cache_folder(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn the_environment_names_the_folder() {
        let (home, user, own) =
            (("HOME", "/home/a"), ("XDG_CACHE_HOME", "/cache"), ("BRIGADE_CACHE_DIR", "/b"));
        assert_eq!(folder(&[home]), Some("/home/a/.cache/brigade".into()));
        assert_eq!(folder(&[home, user]), Some("/cache/brigade".into()));
        assert_eq!(folder(&[home, user, own]), Some("/b".into()));
        assert_eq!(folder(&[home, ("XDG_CACHE_HOME", "")]), folder(&[home]));
        assert_eq!(folder(&[]), None);
    }
}
