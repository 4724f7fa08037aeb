//! The MPIs of this machine, and the tests of the feature `mpi` with each of them.

use std::ffi::OsString;
use std::process::Command;

use anyhow::{Result, bail};

use crate::cargo;
use crate::test::Runner;

/// An MPI: its compiler and its launcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mpi {
    compiler: String,
    launcher: String,
}

impl Mpi {
    fn named(suffix: &str) -> Self {
        Self { compiler: format!("mpicc{suffix}"), launcher: format!("mpirun{suffix}") }
    }

    /// Adds it to the environment of a command.
    pub fn choose(&self, command: &mut Command) {
        command.env("MPICC", &self.compiler).env("MPIRUN", &self.launcher);
    }
}

/// The MPIs that are installed: the one that `MPICC` and `MPIRUN` name; or Open MPI and MPICH, which Debian lets be beside each other; or
/// what `mpicc` is.
pub fn installed() -> Vec<Mpi> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let given = variable("MPICC").map(|compiler| {
        vec![Mpi { compiler, launcher: variable("MPIRUN").unwrap_or_else(|| "mpirun".into()) }]
    });
    let both = given.unwrap_or_else(|| [".openmpi", ".mpich"].map(Mpi::named).into());
    let there = |mpis: Vec<Mpi>| -> Vec<Mpi> {
        mpis.into_iter().filter(|mpi| starts(&mpi.compiler) && starts(&mpi.launcher)).collect()
    };
    let found = there(both);
    if found.is_empty() { there(vec![Mpi::named("")]) } else { found }
}

/// Whether a program is there.
fn starts(program: &str) -> bool {
    let version = Command::new(program).arg("--version").output();
    version.is_ok_and(|output| output.status.success())
}

/// Tests the engine, ten meshes and the command with every MPI that is installed.
///
/// # Errors
/// If there is none, or a test fails.
pub fn test(args: &[OsString]) -> Result<()> {
    let mpis = installed();
    if mpis.is_empty() {
        bail!(
            "no MPI is installed: neither mpicc and mpirun are there, nor what MPICC and MPIRUN name; install one (Debian: \
             openmpi-bin and libopenmpi-dev, or mpich and libmpich-dev)"
        );
    }
    for mpi in mpis {
        eprintln!("\nwith {} and {}", mpi.compiler, mpi.launcher);
        for mut command in commands(Runner::installed()) {
            mpi.choose(&mut command);
            cargo::run(command.args(args))?;
        }
    }
    Ok(())
}

/// The tests of the engine alone, which need no Burn.
pub fn engine() -> [&'static str; 4] {
    ["-p", "brigade-mpi", "--features", "brigade-mpi/mpi"]
}

fn commands(runner: Runner) -> [Command; 2] {
    let mut engine_tests = runner.command();
    engine_tests.args(engine());
    let features = format!("{},brigade-cli/mpi", cargo::FEATURES);
    let mut others = runner.command();
    others.args(["-p", "brigade", "-p", "brigade-cli", "--features", &features]);
    others.args(["--test", "equivalence", "--test", "command", "mpi::"]);
    [engine_tests, others]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_comes_before_what_needs_burn() {
        let shown = commands(Runner::Cargo).map(|command| cargo::shown(&command));
        assert_eq!(
            shown,
            [
                "cargo test -p brigade-mpi --features brigade-mpi/mpi",
                "cargo test -p brigade -p brigade-cli --features brigade-cli/object-store,brigade-cli/mpi --test equivalence \
                 --test command mpi::"
            ]
        );
    }

    #[test]
    fn a_program_that_is_not_there_does_not_start() {
        assert!(!starts("no-such-mpicc") && starts("true"));
    }
}
