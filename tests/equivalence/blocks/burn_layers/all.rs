//! That no module of `burn-nn` is missing here.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{activations, layers, losses};

/// The folder of the locked version's source, as cargo unpacks it.
fn burn_nn() -> Option<PathBuf> {
    let lock = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.lock")).ok()?;
    let lock: toml::Table = lock.parse().unwrap();
    let package =
        lock["package"].as_array()?.iter().find(|package| package["name"].as_str() == Some("burn-nn"));
    let folder = format!("burn-nn-{}/src", package?["version"].as_str()?);
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo")))?;
    let registries = std::fs::read_dir(home.join("registry").join("src")).ok()?;
    registries.map(|registry| registry.unwrap().path().join(&folder)).find(|folder| folder.is_dir())
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => rust_files(&path, files),
            false if path.extension().is_some_and(|extension| extension == "rs") => files.push(path),
            false => {}
        }
    }
}

/// The public types that derive `Module` in a file, apart from those of its tests.
fn modules(source: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut derives = false;
    for line in source.lines().map(str::trim_start).take_while(|line| !line.starts_with("mod test")) {
        let words: Vec<&str> = line.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        match words[..] {
            _ if line.starts_with("#[derive(") => derives = words.contains(&"Module"),
            ["pub", "struct" | "enum", name, ..] if derives => {
                names.push(name.to_owned());
                derives = false;
            }
            ["struct" | "enum", ..] => derives = false,
            _ => {}
        }
    }
    names
}

#[test]
fn all_modules_are_here() {
    let Some(folder) = burn_nn() else {
        assert!(std::env::var_os("CI").is_none(), "the source of burn-nn is not in cargo's home");
        eprintln!(
            "the source of burn-nn is not in cargo's home, so nothing says whether all of its modules are tested"
        );
        return;
    };
    let mut files = Vec::new();
    rust_files(&folder, &mut files);
    let read = |file: &PathBuf| modules(&std::fs::read_to_string(file).unwrap());
    let all: BTreeSet<String> = files.iter().flat_map(read).collect();
    assert!(all.len() > 90, "{all:?}");
    let types = [layers::TYPES, activations::TYPES, losses::TYPES].concat();
    let tested: BTreeSet<String> = types.into_iter().map(str::to_owned).collect();
    assert_eq!(tested, all);
}

#[test]
fn modules_are_found_in_a_source() {
    let source = "
        #[derive(Config, Debug)]
        pub struct AConfig {}
        #[derive(Debug, Module)]
        #[module(custom_display)]
        /// A struct or an enum.
        pub enum A {}
        #[derive(Module, Default)]
        pub struct B;
        #[derive(Module)]
        struct Hidden;
        pub struct Other;
        #[cfg(test)]
        mod tests {
            #[derive(Module)]
            pub struct C;
        }";
    assert_eq!(modules(source), ["A", "B"]);
}
