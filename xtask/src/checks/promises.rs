//! Whether the tests that `docs/book/src/failures.md` names exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::cargo;

/// Names of functions in all Rust files of a folder.
fn functions(folder: &Path, into: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            functions(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let names =
                text.split("fn ").skip(1).map(|rest| rest.split(['(', '<']).next().unwrap_or_default());
            into.extend(names.map(str::to_owned));
        }
    }
}

#[test]
fn every_promise_has_its_tests() {
    let root = cargo::root();
    let mut known = BTreeSet::new();
    for folder in ["crates", "src", "tests", "fuzz"] {
        functions(&root.join(folder), &mut known);
    }
    let page = fs::read_to_string(root.join("docs/book/src/failures.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| failure |"));
    let mut count = 0;
    for row in rows {
        let tests = row.trim_end_matches('|').rsplit('|').next().unwrap();
        let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "no test: {row}");
        for name in names.into_iter().filter(|name| !name.starts_with("cargo ")) {
            assert!(known.contains(name), "there is no test `{name}`: {row}");
            count += 1;
        }
    }
    assert!(count > 20, "{count}");
}
