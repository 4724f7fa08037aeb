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

/// Re-exports that are followed, one after the other.
const MAX_EXPORTS: usize = 10;

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

/// The paths that a text begins with, one or those of a group in braces, each with the name that it is imported as; and how long it is.
fn paths(text: &str, before: &[String], found: &mut Vec<(Module, String)>) -> usize {
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
                path.pop_if(|last| last == "self" && !before.is_empty());
                // A renamed import, up to the next one.
                let renamed = text[at..]
                    .strip_prefix(" as ")
                    .and_then(|text| text.split([',', ';', '}', ' ', '\n']).next());
                let name = renamed.or(path.last().map(String::as_str)).unwrap_or_default().to_owned();
                found.push((path, name));
                return (at + renamed.map_or(0, |name| " as ".len() + name.len())).max(1);
            }
        }
    }
}

/// A file without its tests and comments. A declaration of tests in another file is not the end of it.
fn own_code(text: &str) -> String {
    let mut lines = text.lines().peekable();
    let mut code = String::new();
    while let Some(line) = lines.next() {
        let is_inline = |next: &&str| next.starts_with("mod ") && next.ends_with('{');
        if ["#[cfg(test)]", "#[cfg(all(test,"].iter().any(|begin| line.starts_with(begin))
            && lines.peek().is_some_and(is_inline)
        {
            break;
        }
        if !line.trim_start().starts_with("//") {
            code += line;
            code.push('\n');
        }
    }
    code
}

/// What a file names: by `use`, and whether others may name it there; and elsewhere.
struct Names {
    imported: Vec<(bool, Module, String)>,
    elsewhere: Vec<Module>,
}

fn names(text: &str) -> Names {
    let code = own_code(text);
    let is_visibility = |before: &str| {
        before.is_empty() || before == "pub " || (before.starts_with("pub(") && before.ends_with(") "))
    };
    let (mut imported, mut rest, mut lines) = (Vec::new(), String::new(), code.lines());
    while let Some(line) = lines.next() {
        let line = line.trim_start();
        let Some((visibility, begin)) = line.split_once("use ").filter(|(before, _)| is_visibility(before))
        else {
            rest += line;
            rest.push('\n');
            continue;
        };
        let mut declaration = begin.to_owned();
        while !declaration.contains(';') {
            let Some(line) = lines.next() else { break };
            declaration.push('\n');
            declaration += line;
        }
        let mut found = Vec::new();
        paths(&declaration, &[], &mut found);
        imported.extend(found.into_iter().map(|(path, name)| (!visibility.is_empty(), path, name)));
    }
    let mut elsewhere = Vec::new();
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in rest.match_indices(start) {
            let before = rest[..at].chars().next_back();
            if !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':' || c == '$') {
                paths(&rest[at..], &[], &mut elsewhere);
            }
        }
    }
    Names { imported, elsewhere: elsewhere.into_iter().map(|(path, _)| path).collect() }
}

/// The path from the crate's root; none for one of another crate. `super` and `self` are meant from the file's own module, as inline modules are only
/// for tests.
fn absolute(own: &Module, path: &Module, is_module: impl Fn(&Module) -> bool) -> Option<Module> {
    let supers = path.iter().take_while(|part| *part == "super").count();
    let child = [own.as_slice(), &path[..1]].concat();
    match path[0].as_str() {
        "crate" => Some(path[1..].to_vec()),
        "self" => Some([own.as_slice(), &path[1..]].concat()),
        "super" => Some([&own[..own.len().saturating_sub(supers)], &path[supers..]].concat()),
        _ => is_module(&child).then(|| [own.as_slice(), path].concat()),
    }
}

/// The file that a path leads to, through the names that files on the way import.
fn file_of(
    path: &[String],
    exports: &BTreeMap<Module, BTreeMap<String, Module>>,
    most: usize,
) -> Option<Module> {
    let length = (0..=path.len()).rev().find(|length| exports.contains_key(&path[..*length]))?;
    let (module, rest) = path.split_at(length);
    let exported = rest.first().and_then(|name| exports[module].get(name)).filter(|_| most > 0);
    let found = exported.filter(|target| target[..] != path[..=length]);
    let found = found.and_then(|target| file_of(&[target, &rest[1..]].concat(), exports, most - 1));
    Some(found.unwrap_or_else(|| module.to_vec()))
}

/// Which of these files of a crate each imports something of. What a file passes on of those below it, it does not import.
fn imports_of(texts: &BTreeMap<Module, String>) -> BTreeMap<Module, BTreeSet<Module>> {
    let names: BTreeMap<_, _> = texts.iter().map(|(own, text)| (own, names(text))).collect();
    let absolute = |own: &Module, path: &Module| absolute(own, path, |module| texts.contains_key(module));
    let exports = names.iter().map(|(own, names)| {
        let export = |(_, path, name): &(bool, Module, String)| Some((name.clone(), absolute(own, path)?));
        ((*own).clone(), names.imported.iter().filter_map(export).collect())
    });
    let exports = exports.collect();
    let of = |(own, Names { imported, elsewhere }): (&&Module, &Names)| {
        let imported = imported.iter().map(|(is_exported, path, _)| (*is_exported, path));
        let all = imported.chain(elsewhere.iter().map(|path| (false, path)));
        let files = all.filter_map(|(is_exported, path)| {
            let file = file_of(&absolute(own, path)?, &exports, MAX_EXPORTS)?;
            (!file.is_empty() && file != **own && !(is_exported && file.starts_with(own))).then_some(file)
        });
        ((*own).clone(), files.collect())
    };
    // The root of a crate passes on what is in it, and is not imported.
    names.iter().filter(|(own, _)| !own.is_empty()).map(of).collect()
}

fn imports(source: &Path) -> BTreeMap<Module, BTreeSet<Module>> {
    let mut files = Vec::new();
    rust_files(source, &mut files);
    files.retain(|file| !file.ends_with("tests.rs"));
    let text = |file: PathBuf| (module(source, &file), fs::read_to_string(&file).unwrap());
    imports_of(&files.into_iter().map(text).collect())
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
    let tests = sources().into_iter().map(|source| source.with_file_name("tests"));
    for source in sources().into_iter().chain(tests.filter(|tests| tests.is_dir())) {
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
    let texts = [
        ("", "mod a;\nmod g;\npub use a::c::D as E;"),
        ("a", "mod b;\nmod c;\npub(crate) use b::B;\nuse c::{D, self as e};"),
        (
            "a::b",
            "#[cfg(test)]\nmod tests;\nuse crate::{\n    E,\n    g::H as I,\n};\n// crate::z::no\nlet x = self::j::k();\n#[cfg(test)]\nmod tests {\nuse crate::z::Z;\n}",
        ),
        ("a::b::j", "use super::super::e::D;\nuse serde::z;"),
        ("a::c", ""),
        ("g", "use super::a::B;"),
        ("z", "#[cfg(all(test, unix))]\nmod tests {\nuse super::*;\nuse crate::a::B;\n}"),
    ];
    let module = |path: &str| -> Module {
        path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect()
    };
    let texts = texts.iter().map(|(path, text)| (module(path), (*text).to_owned())).collect();
    let found = imports_of(&texts);
    let of = |path: &str| found[&module(path)].iter().map(|file| file.join("::")).collect::<Vec<_>>();
    assert_eq!(of("a"), ["a::c"], "what is passed on of a folder's own files is no import");
    assert_eq!(of("a::b"), ["a::b::j", "a::c", "g"]);
    assert_eq!(of("a::b::j"), ["a::c"]);
    assert_eq!(of("g"), ["a::b"]);
    assert!(of("z").is_empty());
    assert!(!found.contains_key(&module("")));
}
