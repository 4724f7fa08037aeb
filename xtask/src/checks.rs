//! `cargo xtask ci`: every check that a change must pass.

use std::fmt::Write;
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::cargo;

/// What is off by default and checked, too.
const FEATURES: &str = "brigade-cli/object-store";

/// One check: its name in the table, and what it runs.
struct Check {
    name: &'static str,
    command: Command,
}

/// Runs the checks in order, until one fails, and prints what passed.
pub fn run() -> Result<()> {
    for (subcommand, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        ensure!(
            cargo::has(subcommand),
            "cargo {subcommand} does not run; install it with `rustup component add {component}`"
        );
    }
    let checks = checks(cargo::has("nextest"));
    let names: Vec<_> = checks.iter().map(|check| check.name).collect();
    let mut seconds = Vec::new();
    let mut result = Ok(());
    for mut check in checks {
        let start = Instant::now();
        result = cargo::run(&mut check.command);
        seconds.push(start.elapsed().as_secs_f64());
        if result.is_err() {
            break;
        }
    }
    eprint!("\n{}", table(&names, &seconds, result.is_ok()));
    result
}

fn checks(nextest: bool) -> Vec<Check> {
    let check = |name, args: &[&str]| Check { name, command: cargo::command(args) };
    let mut checks = vec![
        check("format", &["fmt", "--all", "--check"]),
        check(
            "clippy",
            &["clippy", "--workspace", "--all-targets", "--features", FEATURES, "--", "-D", "warnings"],
        ),
        check("documentation", &["doc", "--workspace", "--features", FEATURES, "--no-deps"]),
    ];
    checks[2].command.env("RUSTDOCFLAGS", "-D warnings");
    if nextest {
        checks.push(check(
            "tests",
            &["nextest", "run", "--workspace", "--features", FEATURES, "--profile", "ci"],
        ));
        checks.push(check(
            "tests in documentation",
            &["test", "--doc", "--workspace", "--features", FEATURES, "--no-fail-fast"],
        ));
    } else {
        checks.push(check("tests", &["test", "--workspace", "--features", FEATURES, "--no-fail-fast"]));
    }
    checks
}

/// What passed. `seconds` holds those that ran; the last of them failed unless all `passed`.
fn table(names: &[&str], seconds: &[f64], passed: bool) -> String {
    let mut table = String::new();
    for (i, name) in names.iter().enumerate() {
        let _ = match seconds.get(i) {
            None => writeln!(table, "{name:<24} not run"),
            Some(time) if passed || i + 1 < seconds.len() => {
                writeln!(table, "{name:<24} passed  {time:>8.1} s")
            }
            Some(time) => writeln!(table, "{name:<24} FAILED  {time:>8.1} s"),
        };
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_shown_as_typed() {
        let checks = checks(true);
        let lines: Vec<_> = checks.iter().map(|check| cargo::shown(&check.command)).collect();
        assert_eq!(
            lines,
            [
                "cargo fmt --all --check",
                "cargo clippy --workspace --all-targets --features brigade-cli/object-store -- -D warnings",
                "RUSTDOCFLAGS=\"-D warnings\" cargo doc --workspace --features brigade-cli/object-store --no-deps",
                "cargo nextest run --workspace --features brigade-cli/object-store --profile ci",
                "cargo test --doc --workspace --features brigade-cli/object-store --no-fail-fast",
            ]
        );
    }

    #[test]
    fn the_table_tells_failed_from_not_run() {
        assert_eq!(
            table(&["format", "clippy", "tests"], &[0.5, 81.25], false),
            "format                   passed       0.5 s\n\
             clippy                   FAILED      81.2 s\n\
             tests                    not run\n"
        );
        assert!(!table(&["format"], &[0.5], true).contains("FAILED"));
    }
}
