//! Whether `README.md` shows the examples as they are, and stays short.

use std::fs;

use crate::cargo;

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
    assert!(readme.lines().count() <= 150);
}
