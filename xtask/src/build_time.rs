//! `cargo xtask build-time`: what Brigade adds to the time in which a program on Burn builds.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::cargo;

/// How much longer a program may take to build with Brigade than without, on two cores.
const MAX_ADDED: Duration = Duration::from_secs(90);

/// Builds a program for plain Burn and the same one for Brigade, each as a package of its own, from nothing and after a change of the
/// program alone, and prints how long that took. Needs an idle machine.
pub fn run() -> Result<()> {
    let lock = fs::read_to_string(cargo::root().join("Cargo.lock")).context("Cargo.lock")?;
    let burn = cargo::locked(&lock, "burn").context("Cargo.lock has no burn")?;
    let mut took = Vec::new();
    for (name, with_brigade) in [("sine_burn", false), ("sine_brigade", true)] {
        let package = Package::create(name, &manifest(name, burn, with_brigade), &lock)?;
        let (crates, time, again) = (package.crates()?, package.build()?, package.build_again()?);
        println!(
            "{name}: {crates} crates, {:.0} s, and {:.1} s after a change of the program; {}",
            time.as_secs_f64(),
            again.as_secs_f64(),
            package.timings().display()
        );
        took.push(time);
    }
    let added = took[1].saturating_sub(took[0]);
    println!("Brigade adds {:.0} s", added.as_secs_f64());
    ensure!(added <= MAX_ADDED, "at most {} s are allowed on two cores", MAX_ADDED.as_secs());
    Ok(())
}

/// A package as a newcomer has it.
fn manifest(name: &str, burn: &str, with_brigade: bool) -> String {
    let mut text = format!(
        "[package]\nname = \"{name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n\
         burn = {{ version = \"={burn}\", features = [\"flex\", \"autodiff\"] }}\n"
    );
    if with_brigade {
        text += &format!("brigade = {{ path = {:?} }}\n", cargo::root());
    }
    text
}

/// A package below the target folder.
struct Package {
    folder: PathBuf,
}

impl Package {
    /// A new package with an example as its program, and the versions of this workspace.
    fn create(example: &str, manifest: &str, lock: &str) -> Result<Self> {
        let folder = cargo::root().join("target/build-time").join(example);
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
        let source = cargo::root().join("examples").join(example).with_extension("rs");
        let write = || {
            fs::create_dir_all(folder.join("src"))?;
            fs::write(folder.join("Cargo.toml"), manifest)?;
            fs::write(folder.join("Cargo.lock"), lock)?;
            fs::copy(&source, folder.join("src/main.rs"))
        };
        write().with_context(|| format!("{} from {}", folder.display(), source.display()))?;
        let package = Self { folder };
        // Downloads do not count.
        cargo::run(&mut package.cargo(&["fetch"]))?;
        Ok(package)
    }

    fn cargo(&self, args: &[&str]) -> Command {
        let mut command = cargo::command(args);
        command.current_dir(&self.folder).env("CARGO_TARGET_DIR", self.folder.join("target"));
        command
    }

    /// The crates that are built.
    fn crates(&self) -> Result<usize> {
        let tree = ["tree", "--edges", "normal,build", "--prefix", "none", "--format", "{p}"];
        let output = self.cargo(&tree).output().context("cannot start cargo")?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(text.lines().map(name_and_version).collect::<BTreeSet<_>>().len())
    }

    /// Builds it for release.
    fn build(&self) -> Result<Duration> {
        let begin = Instant::now();
        cargo::run(&mut self.cargo(&["build", "--release", "--timings"]))?;
        Ok(begin.elapsed())
    }

    /// Builds it after the program has changed, and nothing that it uses.
    fn build_again(&self) -> Result<Duration> {
        let path = self.folder.join("src/main.rs");
        let change = || fs::write(&path, fs::read_to_string(&path)? + "\n");
        change().with_context(|| path.display().to_string())?;
        let begin = Instant::now();
        cargo::run(&mut self.cargo(&["build", "--release"]))?;
        Ok(begin.elapsed())
    }

    /// What each crate took.
    fn timings(&self) -> PathBuf {
        self.folder.join(Path::new("target/cargo-timings/cargo-timing.html"))
    }
}

/// Of a line of `cargo tree`, which marks macros and repetitions.
fn name_and_version(line: &str) -> String {
    line.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_differ_only_in_brigade() {
        let [burn, brigade] = [false, true].map(|with| manifest("a", "0.22.1", with));
        let added = brigade.strip_prefix(&burn).unwrap();
        assert!(added.starts_with("brigade = { path = \"/") && added.lines().count() == 1, "{added}");
        assert!(burn.contains("burn = { version = \"=0.22.1\""), "{burn}");
    }

    /// What a classifier does not use.
    const NOT_BY_DEFAULT: [&str; 6] =
        ["tokenizers", "parquet", "arrow-array", "zstd", "object_store", "reqwest"];

    #[test]
    fn a_program_does_not_build_what_it_does_not_use() {
        let tree = [
            "tree",
            "--locked",
            "-p",
            "brigade",
            "--edges",
            "normal,build",
            "--prefix",
            "none",
            "--format",
            "{p} {f}",
        ];
        let output = cargo::command(&tree).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let names: BTreeSet<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
        let launcher = text.lines().find(|line| line.starts_with("brigade-launch ")).unwrap();
        assert!(!launcher.contains("clusters"), "{launcher}");
        assert!(names.contains("burn") && names.contains("brigade-core"), "{text}");
        let found: Vec<_> = NOT_BY_DEFAULT.iter().filter(|name| names.contains(**name)).collect();
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn a_crate_counts_once() {
        let lines = ["syn v2.0.119", "syn v2.0.119 (*)", "serde_derive v1.0.0 (proc-macro)", "syn v1.0.109"];
        let crates: BTreeSet<_> = lines.into_iter().map(name_and_version).collect();
        assert_eq!(crates.len(), 3);
    }
}
