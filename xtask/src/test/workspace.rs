//! The crates of the workspace and how they depend on each other.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::cargo;

/// What Burn's crates are called.
const BURN: &str = "burn";

/// A crate of the workspace.
#[derive(Debug, Default)]
pub struct Crate {
    pub name: String,
    /// Its folder.
    pub folder: PathBuf,
    pub has_library: bool,
    pub has_program: bool,
    /// Files of integration tests, without extension.
    pub tests: Vec<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Debug)]
struct Dependency {
    name: String,
    /// Used by tests and benchmarks alone.
    dev: bool,
    optional: bool,
}

/// All crates.
#[derive(Debug)]
pub struct Workspace {
    pub crates: Vec<Crate>,
    /// Where cargo builds.
    pub target: PathBuf,
}

impl Workspace {
    /// Asks cargo.
    pub fn read() -> Result<Self> {
        let output = cargo::command(&["metadata", "--no-deps", "--format-version", "1"]).output();
        let output = output.context("cannot start cargo")?;
        ensure!(
            output.status.success(),
            "cargo metadata failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Self::parse(&String::from_utf8_lossy(&output.stdout)).context("cargo metadata printed something else")
    }

    fn parse(json: &str) -> Result<Self> {
        let metadata: Value = serde_json::from_str(json)?;
        let packages = metadata["packages"].as_array().context("no packages")?;
        let target = metadata["target_directory"].as_str().context("no target_directory")?;
        let crates =
            packages.iter().map(Crate::parse).collect::<Option<_>>().context("incomplete packages")?;
        Ok(Self { crates, target: target.into() })
    }

    /// The crate of this name, with or without `brigade-` before it.
    ///
    /// # Errors
    /// If there is none; the message names the nearest one.
    pub fn find(&self, name: &str) -> Result<&Crate> {
        let full = format!("brigade-{name}");
        if let Some(found) = self.crates.iter().find(|it| it.name == name || it.name == full) {
            return Ok(found);
        }
        let distance = |known: &str| {
            let short = known.strip_prefix("brigade-").unwrap_or(known);
            strsim::damerau_levenshtein(name, short).min(strsim::damerau_levenshtein(name, known))
        };
        let nearest = self.crates.iter().map(|it| it.name.as_str()).min_by_key(|known| distance(known));
        let mut known: Vec<_> = self.crates.iter().map(|it| it.name.as_str()).collect();
        known.sort_unstable();
        match nearest.filter(|known| distance(known) <= 2) {
            Some(nearest) => bail!("no crate is called {name}; did you mean {nearest}?"),
            None => bail!(
                "no crate is called {name}; there are {} (brigade- may be left out; what comes after -- chooses tests by their names)",
                known.join(", ")
            ),
        }
    }

    /// The crates whose tests these crates can break, without themselves: those that depend on them, directly or through others.
    pub fn dependents<'a>(&'a self, names: &BTreeSet<&'a str>) -> BTreeSet<&'a str> {
        let uses = |it: &Crate, of: &BTreeSet<&str>, dev: bool| {
            it.dependencies.iter().any(|on| on.dev == dev && of.contains(on.name.as_str()))
        };
        let mut reached = names.clone();
        loop {
            let more: Vec<_> = self.crates.iter().filter(|it| uses(it, &reached, false)).collect();
            let before = reached.len();
            reached.extend(more.iter().map(|it| it.name.as_str()));
            if reached.len() == before {
                break;
            }
        }
        // Nothing is built on what only the tests of a crate use.
        let by_tests = self.crates.iter().filter(|it| uses(it, &reached, true));
        let by_tests: Vec<_> = by_tests.map(|it| it.name.as_str()).collect();
        reached.extend(by_tests);
        reached.difference(names).copied().collect()
    }

    /// Whether the tests of a crate build Burn, which takes minutes the first time.
    pub fn needs_burn(&self, name: &str) -> bool {
        let mut waiting = vec![(name, true)];
        let mut seen = BTreeSet::new();
        while let Some((name, with_tests)) = waiting.pop() {
            if name == BURN {
                return true;
            }
            let Some(it) = self.crates.iter().find(|it| it.name == name).filter(|_| seen.insert(name)) else {
                continue;
            };
            let used = it.dependencies.iter().filter(|on| !on.optional && (with_tests || !on.dev));
            waiting.extend(used.map(|on| (on.name.as_str(), false)));
        }
        false
    }

    /// The crate to which a file belongs, given by its path from the root.
    pub fn owner(&self, root: &Path, file: &Path) -> Option<&Crate> {
        let file = root.join(file);
        let owners = self.crates.iter().filter(|it| file.starts_with(&it.folder));
        owners.max_by_key(|it| it.folder.components().count())
    }
}

impl Crate {
    fn parse(package: &Value) -> Option<Self> {
        let targets = package["targets"].as_array()?;
        let has_kind = |target: &Value, kind: &str| {
            target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|it| it == kind))
        };
        let tests = targets.iter().filter(|target| has_kind(target, "test"));
        let dependencies = package["dependencies"].as_array()?.iter().map(|on| {
            Some(Dependency {
                name: on["name"].as_str()?.to_owned(),
                dev: on["kind"] == "dev",
                optional: on["optional"] == true,
            })
        });
        Some(Self {
            name: package["name"].as_str()?.to_owned(),
            folder: Path::new(package["manifest_path"].as_str()?).parent()?.to_owned(),
            has_library: targets.iter().any(|target| has_kind(target, "lib")),
            has_program: targets.iter().any(|target| has_kind(target, "bin")),
            tests: tests.map(|target| target["name"].as_str().map(str::to_owned)).collect::<Option<_>>()?,
            dependencies: dependencies.collect::<Option<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace() -> Workspace {
        Workspace::read().unwrap()
    }

    #[test]
    fn crates_are_found_by_short_and_full_names() {
        let workspace = workspace();
        for (name, full) in [
            ("comm", "brigade-comm"),
            ("brigade-comm", "brigade-comm"),
            ("brigade", "brigade"),
            ("fuzz", "brigade-fuzz"),
            ("xtask", "xtask"),
        ] {
            assert_eq!(workspace.find(name).unwrap().name, full);
        }
        let message = |name: &str| workspace.find(name).unwrap_err().to_string();
        assert_eq!(message("com"), "no crate is called com; did you mean brigade-comm?");
        assert_eq!(message("brigade-plam"), "no crate is called brigade-plam; did you mean brigade-plan?");
        let other = message("transports");
        assert!(other.contains("brigade-checkpoint, brigade-cli, brigade-comm"), "{other}");
    }

    #[test]
    fn dependents_are_followed_to_the_top() {
        let workspace = workspace();
        let dependents = |name: &'static str| workspace.dependents(&BTreeSet::from([name]));
        let of_data = dependents("brigade-data");
        assert!(["brigade", "brigade-cli", "brigade-fuzz"].iter().all(|name| of_data.contains(name)));
        assert!(!of_data.contains("brigade-data") && !of_data.contains("brigade-comm"), "{of_data:?}");
        // The models' tests alone use the CPU's crate.
        assert!(dependents("brigade-host").contains("brigade-models"));
        assert!(dependents("brigade-cli").is_empty());
    }

    #[test]
    fn burn_is_found_below_crates() {
        let workspace = workspace();
        for name in ["brigade-core", "brigade-cli", "brigade-host", "brigade-models"] {
            assert!(workspace.needs_burn(name), "{name}");
        }
        for name in ["brigade-comm", "brigade-plan", "brigade-data", "brigade-launch", "xtask"] {
            assert!(!workspace.needs_burn(name), "{name}");
        }
    }

    #[test]
    fn what_only_tests_of_a_dependency_use_is_not_built() {
        let json = r#"{"target_directory": "/t", "packages": [
            {"name": "a", "manifest_path": "/w/a/Cargo.toml", "targets": [{"kind": ["lib"], "name": "a"}],
             "dependencies": [{"name": "b", "kind": null, "optional": false}]},
            {"name": "b", "manifest_path": "/w/b/Cargo.toml", "targets": [{"kind": ["test"], "name": "suite"}],
             "dependencies": [{"name": "burn", "kind": "dev", "optional": false}]},
            {"name": "c", "manifest_path": "/w/Cargo.toml", "targets": [],
             "dependencies": [{"name": "burn", "kind": null, "optional": true}]}]}"#;
        let workspace = Workspace::parse(json).unwrap();
        assert!(!workspace.needs_burn("a") && workspace.needs_burn("b") && !workspace.needs_burn("c"));
        assert_eq!(workspace.crates[1].tests, ["suite"]);
        assert!(workspace.crates[0].has_library && !workspace.crates[1].has_library);
        let owner = |file: &str| workspace.owner(Path::new("/w"), Path::new(file)).map(|it| it.name.as_str());
        assert_eq!(owner("a/src/lib.rs"), Some("a"));
        assert_eq!(owner("abc/src/lib.rs"), Some("c"));
    }
}
