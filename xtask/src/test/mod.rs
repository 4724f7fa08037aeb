//! `cargo xtask test`.

mod changed;
mod commands;
pub mod mpi;
mod slowest;
mod workspace;

use std::collections::BTreeSet;
use std::ffi::OsString;

use anyhow::Result;

use crate::cargo;
use changed::Changed;
use commands::Selection;

pub use commands::Runner;
pub use slowest::{Reports, show as show_slowest};
pub use workspace::Workspace;

/// Flags of `cargo xtask test`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask test                      everything but the tests of GPUs
  cargo xtask test comm plan            brigade-comm and brigade-plan
  cargo xtask test --changed            what the work since main can have broken
  cargo xtask test --changed HEAD~2     the same, including the last two commits
  cargo xtask test comm -- ring         the tests of brigade-comm with `ring` in their names
  cargo xtask test --mpi                what needs an MPI, with each that is installed")]
pub struct Args {
    /// Crates to test; `brigade-` may be left out [default: all but the GPU backends].
    #[arg(value_name = "CRATE")]
    crates: Vec<String>,
    /// The same, as for cargo.
    #[arg(short, long = "package", value_name = "CRATE", hide = true)]
    packages: Vec<String>,
    /// The tests of crates with files that differ from the commit BASE, and the short tests of all crates that depend on
    /// them (`profile.quick` in .config/nextest.toml says which are not short) [default BASE: where this branch left main].
    #[arg(long, value_name = "BASE", num_args = 0..=1, conflicts_with_all = ["crates", "packages"])]
    changed: Option<Option<String>>,
    /// The tests of the feature `mpi`, with each installed MPI, or the one in MPICC and MPIRUN.
    #[arg(long, conflicts_with_all = ["crates", "packages", "changed"])]
    mpi: bool,
    /// Passed on to `cargo nextest run`, or to `cargo test` if nextest is not installed. Doc tests only run without any.
    #[arg(last = true)]
    args: Vec<OsString>,
}

/// Runs the chosen tests, and names the slowest.
pub fn run(args: &Args) -> Result<()> {
    if args.mpi {
        return mpi::test(&args.args);
    }
    let workspace = Workspace::read()?;
    let Some(selection) = select(args, &workspace)? else { return Ok(()) };
    let runner = Runner::installed();
    let reports = Reports::of(&workspace.target);
    let (mut result, mut tests) = (Ok(()), Vec::new());
    for mut command in commands::commands(runner, &workspace, &selection, &args.args) {
        reports.clear(&command);
        result = cargo::run(&mut command);
        tests.extend(reports.tests(&command));
        if result.is_err() {
            break;
        }
    }
    eprint!("\n{}", show_slowest(runner, tests));
    result
}

/// None if nothing needs to be tested, which is then said.
fn select<'a>(args: &Args, workspace: &'a Workspace) -> Result<Option<Selection<'a>>> {
    let Some(base) = &args.changed else {
        let names = args.crates.iter().chain(&args.packages);
        let whole: BTreeSet<_> =
            names.map(|name| workspace.find(name).map(|it| it.name.as_str())).collect::<Result<_>>()?;
        return Ok(Some(match whole.is_empty() {
            true => Selection::All,
            false => Selection::Crates { whole, dependents: BTreeSet::new() },
        }));
    };
    let files = changed::files(base.as_deref())?;
    Ok(match changed::crates(workspace, cargo::root(), &files) {
        Changed::All(file) => {
            eprintln!("{} changed, which every crate is built by: all tests run", file.display());
            Some(Selection::All)
        }
        Changed::Crates(whole) if whole.is_empty() => {
            eprintln!("no crate has changed");
            None
        }
        Changed::Crates(whole) => {
            let dependents = workspace.dependents(&whole);
            eprintln!("changed: {}", shown(&whole));
            if !dependents.is_empty() {
                eprintln!("depending on them: {}", shown(&dependents));
            }
            Some(Selection::Crates { whole, dependents })
        }
    })
}

fn shown(names: &BTreeSet<&str>) -> String {
    names.iter().copied().collect::<Vec<_>>().join(", ")
}
