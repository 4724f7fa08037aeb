//! The commands that run tests.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::process::Command;

use super::workspace::{Crate, Workspace};
use crate::cargo;

/// The program. With it chosen beside others, cargo gives shared dependencies the features that they have when the whole
/// workspace is built: Burn is not built a second time for the tests of one crate.
const PROGRAM: &str = "brigade-cli";

/// The crate whose tests need other features of Burn than all others, and a driver of Vulkan: it is tested alone, and when
/// it is named or has changed.
const WGPU: &str = "brigade-wgpu";

/// Which tests run.
#[derive(Debug, PartialEq, Eq)]
pub enum Selection<'a> {
    /// All but those of wgpu and of GPUs.
    All,
    Crates {
        /// All tests of these.
        whole: BTreeSet<&'a str>,
        /// Of these the short ones.
        dependents: BTreeSet<&'a str>,
    },
}

/// What runs tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runner {
    Nextest,
    Cargo,
}

impl Runner {
    /// nextest where it is installed.
    pub fn installed() -> Self {
        if cargo::has("nextest") { Self::Nextest } else { Self::Cargo }
    }

    /// Cargo with its subcommand.
    pub fn command(self) -> Command {
        cargo::command(match self {
            Self::Nextest => &["nextest", "run"],
            Self::Cargo => &["test"],
        })
    }
}

/// The commands for a selection. nextest does not run the examples in the documentation: they come after it, unless
/// arguments choose other tests.
pub fn commands(
    runner: Runner,
    workspace: &Workspace,
    selection: &Selection<'_>,
    args: &[OsString],
) -> Vec<Command> {
    let mut commands = match selection {
        Selection::All => all(runner, args.is_empty()),
        Selection::Crates { whole, dependents } => {
            some(runner, workspace, whole, dependents, args.is_empty())
        }
    };
    for command in commands.iter_mut().filter(|_| !args.is_empty()) {
        command.args(args);
    }
    commands
}

fn all(runner: Runner, with_documentation: bool) -> Vec<Command> {
    let mut tests = runner.command();
    tests.args(cargo::WORKSPACE);
    let mut commands = vec![tests];
    if runner == Runner::Nextest && with_documentation {
        let mut documentation = cargo::command(&["test", "--doc"]);
        documentation.args(cargo::WORKSPACE);
        commands.push(documentation);
    }
    commands
}

fn some(
    runner: Runner,
    workspace: &Workspace,
    whole: &BTreeSet<&str>,
    dependents: &BTreeSet<&str>,
    with_documentation: bool,
) -> Vec<Command> {
    let chosen = |names: &BTreeSet<&str>| -> Vec<&Crate> {
        let crates = workspace.crates.iter().filter(|it| names.contains(it.name.as_str()));
        crates.filter(|it| it.name != WGPU).collect()
    };
    let (whole_crates, dependent_crates) = (chosen(whole), chosen(dependents));
    let mut commands = Vec::new();
    if !whole_crates.is_empty() || !dependent_crates.is_empty() {
        let crates: Vec<_> = whole_crates.iter().chain(&dependent_crates).copied().collect();
        let with_burn = crates.iter().any(|it| workspace.needs_burn(&it.name));
        let mut tests = runner.command();
        tests.args(packages(&crates, with_burn));
        if with_burn {
            tests.args(targets(&crates));
        }
        if runner == Runner::Nextest && !dependent_crates.is_empty() {
            let filter = filter(&whole_crates, &dependent_crates);
            tests.args(["--profile", "quick", "--ignore-default-filter", "--filterset", &filter]);
        }
        commands.push(tests);
        let libraries: Vec<_> = whole_crates.iter().filter(|it| it.has_library).copied().collect();
        // With targets chosen, `cargo test` leaves the documentation out, too.
        if with_documentation && !libraries.is_empty() && (runner == Runner::Nextest || with_burn) {
            let mut documentation = cargo::command(&["test", "--doc"]);
            documentation.args(packages(&libraries, with_burn));
            commands.push(documentation);
        }
    }
    if whole.contains(WGPU) {
        let mut tests = runner.command();
        tests.args(["-p", WGPU]);
        commands.push(tests);
    }
    commands
}

fn packages(crates: &[&Crate], with_burn: bool) -> Vec<String> {
    let mut names: Vec<_> = crates.iter().map(|it| it.name.as_str()).collect();
    if with_burn && !names.contains(&PROGRAM) {
        names.push(PROGRAM);
    }
    let mut arguments: Vec<_> =
        names.into_iter().flat_map(|name| ["-p".to_owned(), name.to_owned()]).collect();
    if with_burn {
        arguments.extend(["--features", cargo::FEATURES].map(str::to_owned));
    }
    arguments
}

/// Every target with tests of these crates, and so none of the program where it is not among them.
fn targets(crates: &[&Crate]) -> Vec<String> {
    let mut arguments = Vec::new();
    if crates.iter().any(|it| it.has_library) {
        arguments.push("--lib".to_owned());
    }
    if crates.iter().any(|it| it.has_program) {
        arguments.push("--bins".to_owned());
    }
    let tests: BTreeSet<_> = crates.iter().flat_map(|it| &it.tests).collect();
    arguments.extend(tests.into_iter().flat_map(|test| ["--test".to_owned(), test.clone()]));
    arguments
}

/// All tests of some crates, and those of others that the profile's filter takes for short.
fn filter(whole: &[&Crate], dependents: &[&Crate]) -> String {
    let of = |crates: &[&Crate]| {
        let names: Vec<_> = crates.iter().map(|it| format!("package(={})", it.name)).collect();
        names.join(" | ")
    };
    match whole {
        [] => format!("default() & ({})", of(dependents)),
        _ => format!("{} | default() & ({})", of(whole), of(dependents)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every package but those of GPUs.
    const EACH: &str = "--workspace --exclude brigade-wgpu --features brigade-cli/object-store";

    fn shown(runner: Runner, whole: &[&str], dependents: &[&str], args: &[&str]) -> Vec<String> {
        let workspace = Workspace::read().unwrap();
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        let selection = match whole {
            [] => Selection::All,
            _ => Selection::Crates {
                whole: whole.iter().copied().collect(),
                dependents: dependents.iter().copied().collect(),
            },
        };
        commands(runner, &workspace, &selection, &args).iter().map(cargo::shown).collect()
    }

    #[test]
    fn documentation_comes_after_nextest() {
        assert_eq!(
            shown(Runner::Nextest, &[], &[], &[]),
            [format!("cargo nextest run {EACH}"), format!("cargo test --doc {EACH}")]
        );
        assert_eq!(shown(Runner::Cargo, &[], &[], &[]), [format!("cargo test {EACH}")]);
        assert_eq!(shown(Runner::Nextest, &[], &[], &["ring"]), [format!("cargo nextest run {EACH} ring")]);
    }

    #[test]
    fn crates_without_burn_are_built_alone() {
        assert_eq!(
            shown(Runner::Nextest, &["brigade-comm", "brigade-plan"], &[], &[]),
            [
                "cargo nextest run -p brigade-comm -p brigade-plan",
                "cargo test --doc -p brigade-comm -p brigade-plan"
            ]
        );
        assert_eq!(
            shown(Runner::Cargo, &["brigade-comm"], &[], &["ring"]),
            ["cargo test -p brigade-comm ring"]
        );
        assert_eq!(shown(Runner::Nextest, &["xtask"], &[], &[]), ["cargo nextest run -p xtask"]);
        assert_eq!(
            shown(Runner::Nextest, &["brigade-cuda"], &[], &[]),
            ["cargo nextest run -p brigade-cuda", "cargo test --doc -p brigade-cuda"]
        );
        assert_eq!(
            shown(Runner::Nextest, &["brigade-wgpu"], &[], &[]),
            ["cargo nextest run -p brigade-wgpu"]
        );
    }

    #[test]
    fn crates_with_burn_are_built_as_in_the_workspace() {
        let packages = "-p brigade-models -p brigade-cli --features brigade-cli/object-store";
        let workspace = Workspace::read().unwrap();
        let models = workspace.find("models").unwrap();
        assert!(models.tests.contains(&"weights".to_owned()), "{:?}", models.tests);
        let targets = targets(&[models]).join(" ");
        assert!(targets.starts_with("--lib --test "), "{targets}");
        assert_eq!(
            shown(Runner::Nextest, &["brigade-models"], &[], &[]),
            [format!("cargo nextest run {packages} {targets}"), format!("cargo test --doc {packages}")]
        );
        assert_eq!(
            shown(Runner::Cargo, &["brigade-cli"], &[], &[]),
            ["cargo test -p brigade-cli --features brigade-cli/object-store --bins --test command"]
        );
    }

    #[test]
    fn of_dependents_the_short_tests_run() {
        let lines = shown(Runner::Nextest, &["brigade-report"], &["brigade-cli"], &["-v"]);
        assert_eq!(
            lines,
            [
                "cargo nextest run -p brigade-report -p brigade-cli --features brigade-cli/object-store --lib --bins --test command \
              --profile quick --ignore-default-filter --filterset \
              \"package(=brigade-report) | default() & (package(=brigade-cli))\" -v"
            ]
        );
    }
}
