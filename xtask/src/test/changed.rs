//! What changed since a commit, as git sees it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::workspace::Workspace;
use crate::cargo;

/// What may be called the main line of work, the most authoritative first.
const MAIN: [&str; 3] = ["origin/HEAD", "origin/main", "main"];

/// Every crate is built by what these say.
const OF_ALL: [&str; 6] =
    ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml", ".cargo", ".config", "clippy.toml"];

/// Files outside the crates that read them in tests.
const READ_BY: [(&str, &str); 14] = [
    ("ARCHITECTURE.md", "xtask"),
    ("CONTRIBUTING.md", "xtask"),
    ("README.md", "brigade"),
    ("README.md", "brigade-book"),
    ("README.md", "brigade-cli"),
    ("README.md", "xtask"),
    ("benches", "xtask"),
    ("configs", "brigade-cli"),
    ("configs", "brigade-plan"),
    ("configs", "xtask"),
    ("docs", "brigade"),
    ("docs", "brigade-cli"),
    ("docs", "xtask"),
    ("examples", "xtask"),
];

/// The crate whose tests read all code: how files import one another, and how long they are.
const READS_CODE: &str = "xtask";

/// Folders of the crate in the workspace's root; it owns nothing else there.
const OF_ROOT: [&str; 3] = ["src", "tests", "examples"];

/// The crates that a change touches.
#[derive(Debug, PartialEq, Eq)]
pub enum Changed<'a> {
    /// This file is read for all of them.
    All(PathBuf),
    Crates(BTreeSet<&'a str>),
}

/// Files that differ from a commit, or from where this branch left the main line, with those that git does not know yet.
pub fn files(base: Option<&str>) -> Result<Vec<PathBuf>> {
    let base = match base {
        Some(base) => base.to_owned(),
        None => fork_point(),
    };
    let differ = git(&["diff", "--name-only", "-z", "--no-renames", &base, "--"])
        .with_context(|| format!("cannot compare with --changed {base}"))?;
    let unknown = git(&["ls-files", "--others", "--exclude-standard", "-z"])?;
    let names = differ.split('\0').chain(unknown.split('\0'));
    Ok(names.filter(|name| !name.is_empty()).map(PathBuf::from).collect())
}

/// The last commit that this branch shares with the main line.
fn fork_point() -> String {
    let shared = MAIN.iter().find_map(|main| git(&["merge-base", "HEAD", main]).ok());
    shared.map_or_else(|| "HEAD".to_owned(), |commit| commit.trim().to_owned())
}

/// What git prints in the workspace's root.
fn git(args: &[&str]) -> Result<String> {
    let output = Command::new("git").args(args).current_dir(cargo::root()).output();
    let output = output.context("cannot start git")?;
    ensure!(
        output.status.success(),
        "git {} failed: {}",
        args.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The crates to which files belong, or which read them in tests.
pub fn crates<'a>(workspace: &'a Workspace, root: &Path, files: &[PathBuf]) -> Changed<'a> {
    let mut changed = BTreeSet::new();
    for file in files {
        if OF_ALL.iter().any(|path| file.starts_with(path)) {
            return Changed::All(file.clone());
        }
        let readers = READ_BY.iter().filter(|(path, _)| file.starts_with(path)).map(|(_, name)| *name);
        let readers = readers.chain(file.extension().filter(|it| *it == "rs").map(|_| READS_CODE));
        let readers = readers.filter_map(|name| workspace.find(name).ok());
        let owner = workspace
            .owner(root, file)
            .filter(|owner| owner.folder != root || OF_ROOT.iter().any(|folder| file.starts_with(folder)));
        changed.extend(readers.chain(owner).map(|it| it.name.as_str()));
    }
    Changed::Crates(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_belong_to_crates() {
        let workspace = Workspace::read().unwrap();
        let changed = |files: &[&str]| {
            let files: Vec<_> = files.iter().map(PathBuf::from).collect();
            crates(&workspace, cargo::root(), &files)
        };
        let these = |names: &[&'static str]| Changed::Crates(names.iter().copied().collect());
        assert_eq!(
            changed(&["crates/brigade-comm/src/lib.rs", "fuzz/src/main.rs"]),
            these(&["brigade-comm", "brigade-fuzz", "xtask"])
        );
        assert_eq!(changed(&["src/lib.rs", "tests/equivalence/main.rs"]), these(&["brigade", "xtask"]));
        assert_eq!(changed(&["configs/gpt-tiny.toml"]), these(&["brigade-cli", "brigade-plan", "xtask"]));
        assert_eq!(
            changed(&["docs/book/src/failures.md"]),
            these(&["brigade", "brigade-book", "brigade-cli", "xtask"])
        );
        assert_eq!(changed(&["LICENSE-MIT", ".gitignore"]), these(&[]));
        assert_eq!(changed(&["ARCHITECTURE.md", "benches/gpu/README.md"]), these(&["xtask"]));
        assert_eq!(changed(&["src/lib.rs", "Cargo.lock"]), Changed::All("Cargo.lock".into()));
        // Manifests of crates are their own.
        assert_eq!(changed(&["crates/brigade-plan/Cargo.toml"]), these(&["brigade-plan"]));
    }

    #[test]
    fn a_base_that_git_does_not_know_is_named() {
        let error = format!("{:#}", files(Some("no-such-commit")).unwrap_err());
        assert!(error.starts_with("cannot compare with --changed no-such-commit: git diff"), "{error}");
    }
}
