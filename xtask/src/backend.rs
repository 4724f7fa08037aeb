//! The `brigade` program, built for a backend.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::ValueEnum;

use crate::cargo;

/// What `brigade` is built for. The CPU is always in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// Needs nothing.
    Cpu,
    /// Needs LLVM to build, and NVIDIA's driver to run.
    Cuda,
    /// Needs a driver of Vulkan to run.
    Wgpu,
}

/// The package of Burn's CUDA backend that brings LLVM, with LLVM's version.
const LLVM: &str = "tracel-llvm-bundler";

impl Backend {
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Wgpu => "wgpu",
        }
    }

    /// The backend that flags of `brigade train` ask for. With an unknown value the program is built for the CPU, and refuses
    /// the value itself.
    pub fn asked_for(args: &[OsString]) -> Self {
        let mut own = args.iter().take_while(|arg| *arg != "--").map(|arg| arg.to_string_lossy());
        let flag = own.find(|arg| arg == "--backend" || arg.starts_with("--backend="));
        let value = flag.and_then(|flag| match flag.split_once('=') {
            Some((_, value)) => Some(value.to_owned()),
            None => own.next().map(String::from),
        });
        value.and_then(|value| Self::from_str(&value, false).ok()).unwrap_or(Self::Cpu)
    }

    /// Builds the program and gives its path.
    ///
    /// # Errors
    /// [`cargo::Failed`] if it does not compile.
    pub fn build(self, profile: &str) -> Result<PathBuf> {
        self.build_with(profile, &[])
    }

    /// Builds the program with further features.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn build_with(self, profile: &str, features: &[&str]) -> Result<PathBuf> {
        let own = format!("brigade-cli/{}", self.name());
        let mut args = vec!["build", "--profile", profile, "-p", "brigade-cli"];
        if self != Self::Cpu {
            args.extend(["--features", &own]);
        }
        features.iter().for_each(|feature| args.extend(["--features", feature]));
        cargo::build(&args).inspect_err(|_| {
            if let Some(advice) = self.advice() {
                eprintln!("{advice}");
            }
        })
    }

    /// Why a build may have failed.
    fn advice(self) -> Option<String> {
        let lock = std::fs::read_to_string(cargo::root().join("Cargo.lock")).ok()?;
        let folder = llvm(
            cargo::locked(&lock, LLVM)?,
            std::env::var_os("XDG_DATA_HOME").map(PathBuf::from),
            std::env::var_os("HOME").map(PathBuf::from),
        )?;
        (self == Self::Cuda && !folder.join(".tracel-llvm-installed").exists()).then(|| missing(&folder))
    }
}

/// Where LLVM is looked for; an `XDG_DATA_HOME` that is not absolute does not count.
fn llvm(version: &str, data: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    let data = data.filter(|data| data.is_absolute());
    let data = data.or_else(|| Some(home?.join(".local/share")))?;
    Some(data.join(format!("tracel/tracel-llvm-{version}")))
}

fn missing(folder: &Path) -> String {
    format!(
        "\nBurn's CUDA backend links LLVM, which is not in {}. The build of {LLVM} downloads it to there, from github.com, \
         unless it is in place; lines above that name {LLVM} or cubecl-llvm say what went wrong with it.",
        folder.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_ask_for_a_backend() {
        let asked =
            |line: &str| Backend::asked_for(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>());
        for (line, backend) in [
            ("", Backend::Cpu),
            ("--steps 20 --backend cuda --out a", Backend::Cuda),
            ("--backend=wgpu --out a", Backend::Wgpu),
            ("--backend cpu", Backend::Cpu),
            // Not the flag.
            ("--backends cuda", Backend::Cpu),
            ("--data cuda", Backend::Cpu),
            ("-- --backend cuda", Backend::Cpu),
            // Left to the program.
            ("--backend rocm", Backend::Cpu),
            ("--backend auto", Backend::Cpu),
            ("--backend= cuda", Backend::Cpu),
            ("--backend", Backend::Cpu),
        ] {
            assert_eq!(asked(line), backend, "{line}");
        }
    }

    #[test]
    fn names_are_those_of_flags_and_features() {
        for backend in Backend::value_variants() {
            assert_eq!(backend.to_possible_value().unwrap().get_name(), backend.name());
        }
    }

    #[test]
    fn llvm_is_looked_for_in_the_user_s_data() {
        let path = |text: &str| Some(PathBuf::from(text));
        let expected = path("/data/tracel/tracel-llvm-23.1.0-4");
        assert_eq!(llvm("23.1.0-4", path("/data"), path("/home/a")), expected);
        let at_home = path("/home/a/.local/share/tracel/tracel-llvm-1");
        assert_eq!(llvm("1", None, path("/home/a")), at_home);
        assert_eq!(llvm("1", path("data"), path("/home/a")), at_home);
        assert_eq!(llvm("1", None, None), None);
        assert!(
            missing(&at_home.unwrap()).contains("which is not in /home/a/.local/share/tracel/tracel-llvm-1.")
        );
    }

    /// Burn may bring LLVM another way in another version.
    #[test]
    fn the_lock_file_names_llvm() {
        let lock = std::fs::read_to_string(cargo::root().join("Cargo.lock")).unwrap();
        assert!(cargo::locked(&lock, LLVM).is_some());
    }
}
