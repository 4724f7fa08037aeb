//! `cargo xtask ci`: every check that a change must pass.

mod adapter;
#[cfg(test)]
mod documents;
mod list;
#[cfg(test)]
mod promises;
mod table;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::test::{Reports, Runner, Workspace, mpi, show_slowest};
use crate::{cargo, stores};
use list::Machine;
use table::Outcome;

/// One check: its name in the table, and what it does.
struct Check {
    name: &'static str,
    work: Work,
}

enum Work {
    Run(Command),
    /// Why it cannot run here.
    Skip(&'static str),
}

/// Runs the checks in order, until one fails, and prints what passed.
pub fn run() -> Result<()> {
    for (subcommand, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        ensure!(
            cargo::has(subcommand),
            "cargo {subcommand} does not run; install it with `rustup component add {component}`"
        );
    }
    // Vulkan's drivers print warnings without one.
    let folder = match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(_) => None,
        None => Some(tempfile::tempdir().context("cannot make a temporary folder")?),
    };
    let target = Workspace::read()?.target;
    let stores = stores::install(Path::new("python3"), &target);
    let no_mpi = mpi::install();
    let machine = Machine {
        runner: Runner::installed(),
        software_adapter: adapter::is_installed(),
        mpis: mpi::installed(),
        no_mpi,
        stores: stores.inspect_err(|error| eprintln!("object stores are not tested: {error:#}")).ok(),
        runtime_dir: folder.as_ref().map(|folder| folder.path()),
    };
    let reports = Reports::of(&target);
    let (mut result, mut tests) = (Ok(()), Vec::new());
    let outcomes: Vec<_> = list::checks(&machine)
        .into_iter()
        .map(|Check { name, work }| {
            let outcome = match work {
                _ if result.is_err() => Outcome::NotRun,
                Work::Skip(why) => Outcome::Skipped(why),
                Work::Run(mut command) => {
                    reports.clear(&command);
                    let start = Instant::now();
                    result = cargo::run(&mut command);
                    tests.extend(reports.tests(&command));
                    let seconds = start.elapsed().as_secs_f64();
                    if result.is_ok() { Outcome::Passed(seconds) } else { Outcome::Failed(seconds) }
                }
            };
            (name, outcome)
        })
        .collect();
    eprint!("\n{}\n{}", show_slowest(machine.runner, tests), table::table(&outcomes));
    result
}
