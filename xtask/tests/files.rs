//! Whether the code can be found and read: folders that one can look through, and no circles among the folders or the files of a crate.

#![allow(clippy::unwrap_used, reason = "all of this is tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// More files side by side than this are parted into folders.
const MAX_FILES: usize = 12;

/// More lines than this are parted into files; tests may have more.
const MAX_LINES: usize = 400;

/// Files that import one another: a type and what is done with it may be two.
const MAX_CIRCLE: usize = 2;

const TESTS: &str = "#[cfg(test)]\nmod ";

type Module = Vec<String>;

/// The folders with the code of each crate.
fn sources() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let crates = fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path().join("src"));
    let mut all: Vec<_> = crates.chain(["src", "xtask/src"].map(|name| root.join(name))).collect();
    all.sort();
    all
}

fn rust_files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

fn module(source: &Path, file: &Path) -> Module {
    let path = file.strip_prefix(source).unwrap().with_extension("");
    let mut parts: Module = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    parts.pop_if(|last| ["mod", "lib", "main"].contains(&last.as_str()));
    parts
}

/// The paths that a text begins with: one, or those of a group in braces; and how long it is.
fn paths(text: &str, before: &[String], found: &mut Vec<Module>) -> usize {
    let mut path = before.to_vec();
    let mut at = 0;
    loop {
        let rest = &text[at..];
        if rest.starts_with('{') {
            at += 1;
            at += text[at..].find(|c: char| !c.is_whitespace()).unwrap_or_default();
            while !text[at..].starts_with('}') {
                at += paths(&text[at..], &path, found);
                at += text[at..].find(|c: char| !(c.is_whitespace() || c == ',')).unwrap_or(text.len() - at);
                if at >= text.len() {
                    return at;
                }
            }
            return at + 1;
        }
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '*')).unwrap_or(rest.len());
        path.push(rest[..end].to_owned());
        at += end;
        match text[at..].strip_prefix("::") {
            Some(_) => at += 2,
            None => {
                // A renamed import, up to the next one.
                let after =
                    text[at..].starts_with(" as ").then(|| text[at..].find([',', ';', '}'])).flatten();
                found.push(path);
                return (at + after.unwrap_or(0)).max(1);
            }
        }
    }
}

/// A file without its tests. A declaration of tests in another file is not the end of it.
fn own_code(text: &str) -> &str {
    let is_inline =
        |at: &usize| text[at + TESTS.len()..].lines().next().is_some_and(|line| line.contains('{'));
    let end = text.match_indices(TESTS).map(|(at, _)| at).find(is_inline);
    &text[..end.unwrap_or(text.len())]
}

/// The modules of this crate that a file names, outside of its tests.
fn named(own: &Module, text: &str) -> Vec<Module> {
    let text = own_code(text);
    let code: String = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .fold(String::new(), |all, line| all + line + "\n");
    let mut found = Vec::new();
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            if !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':' || c == '$') {
                paths(&code[at..], &[], &mut found);
            }
        }
    }
    // `super` and `self` are meant from the file's own module, as inline modules are only for tests.
    let absolute = |path: Module| {
        let supers = path.iter().take_while(|part| *part == "super").count();
        match path[0].as_str() {
            "crate" => path[1..].to_vec(),
            "self" => [own.as_slice(), &path[1..]].concat(),
            _ => [&own[..own.len().saturating_sub(supers)], &path[supers..]].concat(),
        }
    };
    found.into_iter().map(absolute).collect()
}

/// Which files of a crate each of them imports something of.
fn imports(source: &Path) -> BTreeMap<Module, BTreeSet<Module>> {
    let mut files = Vec::new();
    rust_files(source, &mut files);
    files.retain(|file| !["lib.rs", "main.rs", "tests.rs"].iter().any(|name| file.ends_with(name)));
    let modules: BTreeMap<Module, PathBuf> =
        files.into_iter().map(|file| (module(source, &file), file)).collect();
    let of = |(own, file): (&Module, &PathBuf)| {
        let text = fs::read_to_string(file).unwrap();
        let longest = |path: Module| {
            let known = (1..=path.len()).rev().map(|length| path[..length].to_vec());
            known
                .into_iter()
                .find(|path| path == own || modules.contains_key(path))
                .filter(|path| path != own)
        };
        (own.clone(), named(own, &text).into_iter().filter_map(longest).collect())
    };
    modules.iter().map(of).collect()
}

/// All that is reached from a file by imports.
fn reached(from: &Module, imports: &BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<Module> {
    let (mut found, mut next) = (BTreeSet::new(), vec![from.clone()]);
    while let Some(module) = next.pop() {
        for import in &imports[&module] {
            if found.insert(import.clone()) {
                next.push(import.clone());
            }
        }
    }
    found
}

#[test]
fn folders_can_be_looked_through() {
    for source in sources() {
        let mut files = Vec::new();
        rust_files(&source, &mut files);
        let mut counts = BTreeMap::<_, usize>::new();
        for file in &files {
            *counts.entry(file.parent().unwrap()).or_default() += 1;
        }
        for (folder, count) in counts {
            assert!(count <= MAX_FILES, "{} has {count} files side by side", folder.display());
        }
    }
}

#[test]
fn files_stay_short() {
    for source in sources() {
        let mut files = Vec::new();
        rust_files(&source, &mut files);
        let is_test = |file: &PathBuf| {
            file.components().any(|part| part.as_os_str() == "tests") || file.ends_with("tests.rs")
        };
        for file in files.into_iter().filter(|file| !is_test(file)) {
            let lines = fs::read_to_string(&file).unwrap().lines().count();
            assert!(lines <= MAX_LINES, "{} has {lines} lines", file.display());
        }
    }
}

#[test]
fn files_do_not_import_each_other_in_circles() {
    for source in sources() {
        let imports = imports(&source);
        let reached: BTreeMap<_, _> =
            imports.keys().map(|module| (module, reached(module, &imports))).collect();
        for (module, all) in &reached {
            let circle: Vec<_> = all.iter().filter(|other| reached[other].contains(*module)).collect();
            let names: Vec<_> = circle.iter().map(|module| module.join("::")).collect();
            assert!(circle.len() <= MAX_CIRCLE, "{}: {}", source.display(), names.join(", "));
        }
    }
}

/// Which folders import something of which others beside them, at each depth.
fn folder_imports(imports: &BTreeMap<Module, BTreeSet<Module>>) -> BTreeMap<Module, BTreeSet<Module>> {
    let is_folder =
        |module: &Module| imports.keys().any(|other| other.len() > module.len() && other.starts_with(module));
    let folder = |module: &Module| match is_folder(module) {
        true => module.clone(),
        false => module[..module.len() - 1].to_vec(),
    };
    let is_test = |module: &Module| module.iter().any(|part| part == "tests");
    let mut found = BTreeMap::<Module, BTreeSet<Module>>::new();
    for (from, to) in imports.iter().flat_map(|(from, all)| all.iter().map(move |to| (from, to))) {
        let (from, to) = (folder(from), folder(to));
        if is_test(&from) || is_test(&to) || from.starts_with(&to) || to.starts_with(&from) {
            continue;
        }
        let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
        let [from, to] = [from, to].map(|folder| folder[..=common].to_vec());
        found.entry(to.clone()).or_default();
        found.entry(from).or_default().insert(to);
    }
    found
}

/// Folders of a crate are in layers: none imports, directly or through others, a folder beside it that imports it.
#[test]
fn folders_do_not_import_each_other_in_circles() {
    for source in sources() {
        let imports = folder_imports(&imports(&source));
        for folder in imports.keys() {
            let circle: Vec<_> = reached(folder, &imports)
                .into_iter()
                .filter(|other| reached(other, &imports).contains(folder))
                .map(|module| module.join("/"))
                .collect();
            assert!(circle.is_empty(), "{}: {}", source.display(), circle.join(", "));
        }
    }
}

#[test]
fn folders_are_compared_where_they_part() {
    let module = |text: &str| -> Module { text.split("::").map(str::to_owned).collect() };
    let of = |pairs: &[(&str, &str)]| {
        let mut imports = BTreeMap::<Module, BTreeSet<Module>>::new();
        for (from, to) in pairs {
            imports.entry(module(to)).or_default();
            imports.entry(module(from)).or_default().insert(module(to));
        }
        folder_imports(&imports)
    };
    // A folder's own files, and a file beside a folder, are no layers.
    assert!(of(&[("a::b::c", "a::d"), ("a", "a::b::c")]).is_empty());
    let found = of(&[("a::b::c", "a::e::f"), ("a::e::f", "a::b"), ("a::b::c", "g::h")]);
    assert!(
        found[&module("a::b")].contains(&module("a::e")) && found[&module("a::e")].contains(&module("a::b"))
    );
    assert!(found[&module("a")].contains(&module("g")));
}

#[test]
fn imports_are_found() {
    let own: Module = ["a", "b"].map(str::to_owned).into();
    let text = "#[cfg(test)]\nmod tests;\nuse super::{c::{D, self as e}, f};\nuse crate::g::H as I;\n// crate::no\nlet x = self::j::k();\n#[cfg(test)]\nmod tests { use crate::z; }";
    let mut found: Vec<_> = named(&own, text).iter().map(|path| path.join("::")).collect();
    found.sort();
    assert_eq!(found, ["a::b::j::k", "a::c::D", "a::c::self", "a::f", "g::H"]);
}
