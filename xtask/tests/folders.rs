//! Folders of a crate are in layers: none imports, directly or through others, a folder that imports it.

#![allow(clippy::unwrap_used, reason = "all of this is tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The folders that each folder imports.
type Imports = BTreeMap<String, BTreeSet<String>>;

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let below = |path: PathBuf| match path.is_dir() {
        true => sources(&path),
        false => Vec::from_iter(path.extension().is_some_and(|end| end == "rs").then_some(path)),
    };
    entries(folder).into_iter().flat_map(below).collect()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// The code of a file, without comments and without its tests, which come last.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    code.lines().map(|line| line.split("//").next().unwrap()).collect::<Vec<_>>().join("\n")
}

/// The first name of each path from the crate's root, of `use crate::{a::…, b}` as well.
fn imported(code: &str) -> BTreeSet<String> {
    let word = |text: &str| -> String {
        text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
    };
    let mut names = BTreeSet::new();
    for after in code.split("crate::").skip(1) {
        let Some(list) = after.strip_prefix('{') else {
            names.insert(word(after));
            continue;
        };
        let (mut depth, mut begins) = (0, true);
        for (at, c) in list.char_indices() {
            match c {
                '}' if depth == 0 => break,
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => begins = true,
                c if begins && !c.is_whitespace() => {
                    names.insert(word(&list[at..]));
                    begins = false;
                }
                _ => {}
            }
        }
    }
    names
}

/// Tests are not a part of the layers.
fn imports(src: &Path) -> Imports {
    let folders: Vec<PathBuf> = entries(src).into_iter().filter(|path| path.is_dir()).collect();
    let names: BTreeSet<String> = folders.iter().map(|folder| name(folder)).collect();
    let of = |folder: &PathBuf| {
        let is_test = |path: &PathBuf| path.components().any(|part| part.as_os_str() == "tests");
        let files = sources(folder).into_iter().filter(|path| name(path) != "tests.rs" && !is_test(path));
        let mut found: BTreeSet<String> = files.flat_map(|file| imported(&code(&file))).collect();
        found.retain(|other| names.contains(other) && *other != name(folder));
        (name(folder), found)
    };
    folders.iter().map(of).collect()
}

/// Some folders that lead from one of them back to itself.
fn circle(imports: &Imports) -> Option<Vec<String>> {
    fn back(imports: &Imports, way: &mut Vec<String>) -> bool {
        let next = &imports[way.last().unwrap()];
        if next.contains(&way[0]) {
            return true;
        }
        next.iter().any(|folder| {
            !way.contains(folder) && {
                way.push(folder.clone());
                let is_back = back(imports, way);
                if !is_back {
                    way.pop();
                }
                is_back
            }
        })
    }
    imports.keys().find_map(|folder| {
        let mut way = vec![folder.clone()];
        back(imports, &mut way).then_some(way)
    })
}

#[test]
fn no_folders_import_each_other() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let crates = entries(&root.join("crates")).into_iter().chain([root.to_owned(), root.join("xtask")]);
    for src in crates.map(|folder| folder.join("src")).filter(|src| src.is_dir()) {
        let imports = imports(&src);
        assert_eq!(circle(&imports), None, "{}: {imports:?}", src.display());
    }
}

#[test]
fn circles_are_found() {
    let of = |pairs: &[(&str, &[&str])]| -> Imports {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        pairs.iter().map(|(folder, names)| ((*folder).to_owned(), set(names))).collect()
    };
    assert_eq!(circle(&of(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])])), None);
    let found = circle(&of(&[("a", &["b"]), ("b", &["c", "d"]), ("c", &[]), ("d", &["b"])])).unwrap();
    assert_eq!(found, ["b", "d"]);
}

#[test]
fn imports_are_read() {
    let code = "use crate::{a::b::{c, d}, e};\nfn f() -> crate::g::H { crate::i() }";
    assert_eq!(Vec::from_iter(imported(code)), ["a", "e", "g", "i"]);
}
