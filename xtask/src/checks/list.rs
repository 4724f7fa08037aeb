//! What is checked, in order.

use std::path::{Path, PathBuf};

use super::{Check, Work};
use crate::cargo;
use crate::stores;
use crate::test::Runner;
use crate::test::mpi::{self, Mpi};

/// Everything there is, for what needs no linking. One set of features for all of it, so that Burn is checked once.
const EVERYTHING: [&str; 3] = [
    "--workspace",
    "--features",
    "brigade-cli/object-store,brigade-cli/cuda,brigade-cli/wgpu,brigade-cli/mpi",
];

/// What has documentation. With an example, whichever, cargo gives dependencies the features that they have for tests, so that it takes
/// those that clippy has checked.
const DOCUMENTED: [&str; 6] = ["--no-deps", "--lib", "--example", "sine_brigade", "--bin", "xtask"];

/// Tests of brigade-wgpu, of kernels, and of training. One command, so that Burn is built once for them.
const WGPU_TESTS: &str = "-p brigade-wgpu -p brigade -p brigade-kernels --features brigade/wgpu,brigade-kernels/wgpu --lib \
                          --test collectives --test devices --test processes --test backends --test device_memory \
                          --test gradients --test injected --test optimizers";

/// What the checks depend on.
pub struct Machine<'a> {
    pub runner: Runner,
    /// Whether there is a Vulkan adapter without a GPU.
    pub software_adapter: bool,
    /// The MPIs that are there.
    pub mpis: Vec<Mpi>,
    /// Why others are not, where they could not be installed.
    pub no_mpi: Option<&'static str>,
    /// A Python that has servers for object stores, if they could be installed.
    pub stores: Option<PathBuf>,
    /// A folder for `XDG_RUNTIME_DIR`, if the environment has none.
    pub runtime_dir: Option<&'a Path>,
}

/// Every check.
pub fn checks(machine: &Machine<'_>) -> Vec<Check> {
    let mut checks = vec![
        Check::new("format", &[&["fmt", "--all", "--check"]]),
        // DOCS_RS leaves LLVM out, which CUDA's backend links, and MPI.
        Check::new("clippy", &[&["clippy"], &EVERYTHING, &["--all-targets", "--", "-D", "warnings"]])
            .env("DOCS_RS", "1"),
        Check::new("documentation", &[&["doc"], &EVERYTHING, &DOCUMENTED])
            .env("DOCS_RS", "1")
            .env("RUSTDOCFLAGS", "-D warnings"),
        machine.tests("tests", &[&cargo::WORKSPACE]),
    ];
    if machine.runner == Runner::Nextest {
        let args: [&[&str]; 3] = [&["test", "--doc"], &cargo::WORKSPACE, &["--no-fail-fast"]];
        checks.push(Check::new("tests in documentation", &args));
    }
    // Its twin is a package of its own, whose Burn has other features. It has Brigade with its default features alone, without a warning.
    checks.push(Check::new("burn-train's program", &[&["xtask", "check-burn-train"]]));
    if machine.software_adapter {
        checks.push(machine.wgpu());
    } else {
        checks.push(Check::skipped("wgpu", "no software adapter (mesa-vulkan-drivers)"));
    }
    checks.extend(machine.mpis.iter().map(|mpi| machine.mpi(mpi.name(), &mpi::engine(), mpi)));
    // With each MPI, and the command: cargo xtask test --mpi.
    let first = machine.mpis.first();
    checks.extend(first.map(|mpi| machine.mpi("meshes over MPI", &mpi::meshes(), mpi)));
    checks.extend(machine.no_mpi.map(|why| Check::skipped("mpi", why)));
    if !machine.mpis.is_empty() {
        checks.push(Check::skipped("MPI: command", "cargo xtask test --mpi"));
    }
    checks.push(match &machine.stores {
        Some(python) => {
            // With the packages and features of the other tests, so that nothing is built again.
            let args = stores::tests(machine.runner, &cargo::WORKSPACE);
            let profile: &[&str] = match machine.runner {
                Runner::Nextest => &["--profile", "ci"],
                Runner::Cargo => &[],
            };
            Check::new("tests of object stores", &[&args, profile])
                .env(stores::PYTHON, &python.to_string_lossy())
        }
        None => Check::skipped("object stores", "no Python 3.10 with venv, or no package index; see above"),
    });
    checks.push(Check::skipped("Slurm", "cargo xtask test-slurm starts a cluster of two nodes"));
    // Without building them once more from what would be published.
    let publish = "publish --dry-run --workspace --no-verify --allow-dirty --quiet";
    checks.push(Check::new("packages", &[&publish.split(' ').collect::<Vec<_>>()]));
    checks
}

impl Machine<'_> {
    fn wgpu(&self) -> Check {
        let args: Vec<&str> = WGPU_TESTS.split_whitespace().collect();
        let tests = self.tests("tests of wgpu", &[&args]).env("BRIGADE_REQUIRE_WGPU", "1");
        match self.runtime_dir {
            Some(folder) => tests.env("XDG_RUNTIME_DIR", &folder.to_string_lossy()),
            None => tests,
        }
    }

    fn mpi(&self, name: &'static str, args: &[&str], mpi: &Mpi) -> Check {
        let mut tests = self.tests(name, &[args]);
        if let Work::Run(command) = &mut tests.work {
            mpi.choose(command);
        }
        tests
    }

    fn tests(&self, name: &'static str, args: &[&[&str]]) -> Check {
        let (runner, options): (&[&str], &[&str]) = match self.runner {
            Runner::Nextest => (&["nextest", "run"], &["--profile", "ci"]),
            Runner::Cargo => (&["test"], &["--no-fail-fast"]),
        };
        Check::new(name, &[&[runner], args, &[options]].concat())
    }
}

impl Check {
    fn new(name: &'static str, args: &[&[&str]]) -> Self {
        Self { name, work: Work::Run(cargo::command(&args.concat())) }
    }

    fn skipped(name: &'static str, why: &'static str) -> Self {
        Self { name, work: Work::Skip(why) }
    }

    /// The same with a variable of its own.
    fn env(mut self, name: &str, value: &str) -> Self {
        if let Work::Run(command) = &mut self.work {
            command.env(name, value);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name and command of each check, or why it is left out.
    fn shown(machine: &Machine<'_>) -> Vec<(&'static str, String)> {
        let show = |check: &Check| match &check.work {
            Work::Run(command) => cargo::shown(command),
            Work::Skip(why) => format!("({why})"),
        };
        checks(machine).iter().map(|check| (check.name, show(check))).collect()
    }

    const EACH: &str = "--workspace --exclude brigade-wgpu --features brigade-cli/object-store";
    const EVERYTHING: &str =
        "--workspace --features brigade-cli/object-store,brigade-cli/cuda,brigade-cli/wgpu,brigade-cli/mpi";

    #[test]
    fn commands_are_shown_as_typed() {
        let machine = Machine {
            runner: Runner::Nextest,
            software_adapter: false,
            mpis: Vec::new(),
            no_mpi: Some("no MPI"),
            stores: None,
            runtime_dir: None,
        };
        let expected = [
            ("format", "cargo fmt --all --check".to_owned()),
            ("clippy", format!("DOCS_RS=1 cargo clippy {EVERYTHING} --all-targets -- -D warnings")),
            (
                "documentation",
                format!(
                    "DOCS_RS=1 RUSTDOCFLAGS=\"-D warnings\" cargo doc {EVERYTHING} --no-deps --lib --example sine_brigade --bin xtask"
                ),
            ),
            ("tests", format!("cargo nextest run {EACH} --profile ci")),
            ("tests in documentation", format!("cargo test --doc {EACH} --no-fail-fast")),
            ("burn-train's program", "cargo xtask check-burn-train".to_owned()),
            ("wgpu", "(no software adapter (mesa-vulkan-drivers))".to_owned()),
            ("mpi", "(no MPI)".to_owned()),
            ("object stores", "(no Python 3.10 with venv, or no package index; see above)".to_owned()),
            ("Slurm", "(cargo xtask test-slurm starts a cluster of two nodes)".to_owned()),
            ("packages", "cargo publish --dry-run --workspace --no-verify --allow-dirty --quiet".to_owned()),
        ];
        assert_eq!(shown(&machine), expected);
    }

    #[test]
    fn without_nextest_one_command_runs_tests_and_documentation() {
        let machine = Machine {
            runner: Runner::Cargo,
            software_adapter: false,
            mpis: Vec::new(),
            no_mpi: Some("no MPI"),
            stores: None,
            runtime_dir: None,
        };
        let shown = shown(&machine);
        let tests: Vec<_> =
            shown.iter().filter(|(name, _)| name.starts_with("tests")).map(|(_, line)| line).collect();
        assert_eq!(tests, [&format!("cargo test {EACH} --no-fail-fast")]);
    }

    #[test]
    fn every_mpi_is_checked() {
        let machine = Machine {
            runner: Runner::Nextest,
            software_adapter: false,
            mpis: [".openmpi", ".mpich"].map(Mpi::named).into(),
            no_mpi: None,
            stores: None,
            runtime_dir: None,
        };
        let shown = shown(&machine);
        let left_out = ("MPI: command", "(cargo xtask test --mpi)".to_owned());
        let meshes = format!(
            "MPICC=mpicc.openmpi MPIRUN=mpirun.openmpi cargo nextest run {EACH} --features brigade-cli/mpi --test equivalence mpi:: \
             --profile ci"
        );
        assert!(shown.contains(&left_out) && shown.contains(&("meshes over MPI", meshes)), "{shown:?}");
        let of_engine = |(name, _): &&(&str, String)| name.starts_with("tests of ") && name.contains("MPI");
        let tests: Vec<_> = shown.iter().filter(of_engine).collect();
        let line = |suffix: &str| {
            format!(
                "MPICC=mpicc{suffix} MPIRUN=mpirun{suffix} cargo nextest run -p brigade-mpi --features brigade-mpi/mpi --profile ci"
            )
        };
        assert_eq!(tests, [&("tests of Open MPI", line(".openmpi")), &("tests of MPICH", line(".mpich"))]);
    }

    #[test]
    fn wgpu_is_checked_where_it_has_an_adapter() {
        let folder = Path::new("/tmp/a");
        let machine = Machine {
            runner: Runner::Nextest,
            software_adapter: true,
            mpis: Vec::new(),
            no_mpi: Some("no MPI"),
            stores: None,
            runtime_dir: Some(folder),
        };
        let lines = shown(&machine);
        let required = "BRIGADE_REQUIRE_WGPU=1 XDG_RUNTIME_DIR=/tmp/a cargo nextest run";
        let expected = (
            "tests of wgpu",
            format!(
                "{required} -p brigade-wgpu -p brigade -p brigade-kernels --features brigade/wgpu,brigade-kernels/wgpu \
                 --lib --test collectives --test devices --test processes --test backends --test device_memory \
                 --test gradients --test injected --test optimizers --profile ci"
            ),
        );
        assert_eq!(lines[lines.len() - 5], expected);
        let own = Machine { runtime_dir: None, stores: Some("/tmp/python".into()), ..machine };
        let (name, line) = &shown(&own)[lines.len() - 3];
        assert_eq!(*name, "tests of object stores");
        assert!(
            line.starts_with(&format!("BRIGADE_STORES_PYTHON=/tmp/python cargo nextest run {EACH} ")),
            "{line}"
        );
        assert!(shown(&own).iter().all(|(_, line)| !line.contains("XDG_RUNTIME_DIR")));
    }
}
