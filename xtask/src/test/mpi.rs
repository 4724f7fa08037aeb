//! The MPIs of this machine, and the tests of the feature `mpi` with each of them.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::commands::Runner;
use crate::cargo;

/// An MPI: its compiler and its launcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mpi {
    compiler: String,
    launcher: String,
}

impl Mpi {
    /// The one whose programs have this suffix, as Debian names them.
    pub fn named(suffix: &str) -> Self {
        Self { compiler: format!("mpicc{suffix}"), launcher: format!("mpirun{suffix}") }
    }

    /// What its tests are called.
    pub fn name(&self) -> &'static str {
        match self.compiler.rsplit_once('.') {
            Some((_, "openmpi")) => "tests of Open MPI",
            Some((_, "mpich")) => "tests of MPICH",
            _ => "tests of MPI",
        }
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

/// Debian's packages of Open MPI and MPICH.
const PACKAGES: [&str; 4] = ["openmpi-bin", "libopenmpi-dev", "mpich", "libmpich-dev"];

/// The longest that an installation may take.
const INSTALLATION: Duration = Duration::from_secs(300);

/// Installs Open MPI and MPICH where they are missing and this may be done: in CI, by root, with `apt-get`. Gives why one of them is not there
/// afterwards.
pub fn install() -> Option<&'static str> {
    let lacks = || [".openmpi", ".mpich"].iter().any(|suffix| !starts(&Mpi::named(suffix).compiler));
    if std::env::var_os("MPICC").is_some() || !lacks() {
        return None;
    }
    let why = match () {
        () if std::env::var_os("CI").is_none() => {
            "not both MPIs (openmpi-bin, libopenmpi-dev, mpich, libmpich-dev); CI=true installs them"
        }
        () if !rustix::process::geteuid().is_root() => "not both MPIs, and only root may install them",
        () if !starts("apt-get") => "not both MPIs, and there is no apt-get to install them",
        () => match apt_get() {
            Ok(()) => "not both MPIs, although their packages are installed",
            Err(error) => {
                eprintln!("Open MPI and MPICH are not installed: {error:#}");
                "not both MPIs, which could not be installed; see above"
            }
        },
    };
    lacks().then_some(why)
}

fn apt_get() -> Result<()> {
    let install = [&["install", "--yes", "--no-install-recommends"], &PACKAGES[..]].concat();
    // The lists of packages may be old, or none may be there.
    apt_get_with(&install).or_else(|_| {
        apt_get_with(&["update"])?;
        apt_get_with(&install)
    })
}

/// Runs `apt-get`, silently, and ends it at the deadline.
fn apt_get_with(args: &[&str]) -> Result<()> {
    let mut child = Command::new("apt-get")
        .args([
            "-qq",
            "-o",
            "Acquire::Retries=1",
            "-o",
            "Acquire::http::Timeout=20",
            "-o",
            "DPkg::Lock::Timeout=60",
        ])
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()?;
    let begin = Instant::now();
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if begin.elapsed() > INSTALLATION => {
                child.kill()?;
                break child.wait()?;
            }
            None => std::thread::sleep(Duration::from_millis(100)),
        }
    };
    ensure!(status.success(), "apt-get {} ended with {status}", args.join(" "));
    Ok(())
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

/// The tests of meshes and collectives over it. With the packages and features of the other tests, so that Burn is not built again.
pub fn meshes() -> Vec<&'static str> {
    [&cargo::WORKSPACE[..], &["--features", "brigade-cli/mpi", "--test", "equivalence", "mpi::"]].concat()
}

/// The same, and those of the command.
fn training() -> Vec<&'static str> {
    let over_mpi = ["--features", "brigade-cli/mpi", "--test", "equivalence", "--test", "command", "mpi::"];
    [&cargo::WORKSPACE[..], &over_mpi].concat()
}

fn commands(runner: Runner) -> [Command; 2] {
    [engine().to_vec(), training()].map(|args| {
        let mut command = runner.command();
        command.args(args);
        command
    })
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
                "cargo test --workspace --exclude brigade-wgpu --features brigade-cli/object-store --features brigade-cli/mpi \
                 --test equivalence --test command mpi::"
            ]
        );
    }

    #[test]
    fn an_mpi_has_a_name() {
        let names = [".openmpi", ".mpich", ""].map(|suffix| Mpi::named(suffix).name());
        assert_eq!(names, ["tests of Open MPI", "tests of MPICH", "tests of MPI"]);
    }

    #[test]
    fn a_program_that_is_not_there_does_not_start() {
        assert!(!starts("no-such-mpicc") && starts("true"));
    }
}
