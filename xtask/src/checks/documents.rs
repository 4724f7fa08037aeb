//! Whether the documents show what is there.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cargo;

/// Folders of the repository that documents name files in.
const FOLDERS: [&str; 9] =
    ["benches/", "configs/", "crates/", "docs/", "examples/", "fuzz/", "src/", "tests/", "xtask/"];

/// README.md and its siblings, and the pages of the book.
fn documents() -> Vec<PathBuf> {
    let root = cargo::root();
    let folders = [root.to_owned(), root.join("docs/book/src"), root.join("benches/gpu")];
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let paths = files.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

/// An example without its first lines, which say what it is.
fn example(name: &str) -> String {
    let path = cargo::root().join("examples").join(name);
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().skip_while(|line| line.starts_with("//!")).skip_while(|line| line.is_empty());
    lines.map(|line| format!("{line}\n")).collect()
}

/// The lines of a diff on one side: those marked by `side`, and those without a mark.
fn side(diff: &str, side: char) -> String {
    let lines = diff.lines().filter(|line| line.starts_with([side, ' ']) || line.is_empty());
    lines.map(|line| format!("{}\n", line.get(1..).unwrap_or_default())).collect()
}

#[test]
fn the_readme_shows_the_examples() {
    let readme = fs::read_to_string(cargo::root().join("README.md")).unwrap();
    let (_, rest) = readme.split_once("```diff\n").unwrap();
    let (diff, _) = rest.split_once("```").unwrap();
    assert_eq!(side(diff, '-'), example("sine_burn.rs"));
    assert_eq!(side(diff, '+'), example("sine_brigade.rs"));
}

#[test]
fn the_first_documents_stay_short() {
    for (name, most) in [("README.md", 150), ("ARCHITECTURE.md", 200)] {
        let lines = fs::read_to_string(cargo::root().join(name)).unwrap().lines().count();
        assert!(lines <= most, "{name} has {lines} lines");
    }
}

#[test]
fn files_that_documents_name_exist() {
    let mut count = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        let quoted = text.split('`').skip(1).step_by(2);
        for name in quoted.filter(|name| FOLDERS.iter().any(|folder| name.starts_with(folder))) {
            assert!(cargo::root().join(name).exists(), "{}: there is no {name}", document.display());
            count += 1;
        }
    }
    assert!(count > 20, "{count}");
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut count = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.contains("://")) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let folder = document.parent().unwrap_or(Path::new("."));
            let path = if file.is_empty() { document.clone() } else { folder.join(file) };
            assert!(path.exists(), "{}: there is no {target}", document.display());
            if !heading.is_empty() {
                let page = fs::read_to_string(&path).unwrap();
                let known = page.lines().filter(|line| line.starts_with('#')).map(anchor);
                assert!(known.into_iter().any(|known| known == heading), "{}: {target}", document.display());
            }
            count += 1;
        }
    }
    assert!(count > 50, "{count}");
}

#[test]
fn the_summary_names_each_page_once() {
    let folder = cargo::root().join("docs/book/src");
    let summary = fs::read_to_string(folder.join("SUMMARY.md")).unwrap();
    let mut named: Vec<_> = summary.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    named.sort_unstable();
    let is_page = |path: &Path| path.parent() == Some(&*folder) && !path.ends_with("SUMMARY.md");
    let pages = documents().into_iter().filter(|path| is_page(path));
    let mut pages: Vec<_> =
        pages.map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect();
    pages.sort_unstable();
    assert_eq!(named, pages);
}

/// The name under which a heading can be linked to.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}
