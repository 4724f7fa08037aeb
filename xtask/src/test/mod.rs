//! `cargo xtask test`.

use std::ffi::OsString;
use std::process::Command;

use anyhow::Result;

use crate::cargo;

/// Runs all tests but those of GPUs, or those that `args` choose.
pub fn run(args: &[OsString]) -> Result<()> {
    commands(cargo::has("nextest"), args).iter_mut().try_for_each(cargo::run)
}

/// The commands that run the tests. nextest does not run the examples in the documentation, so they come after
/// it, unless arguments choose other tests.
fn commands(nextest: bool, args: &[OsString]) -> Vec<Command> {
    let mut first = cargo::command(if nextest { &["nextest", "run"] } else { &["test"] });
    if !chooses_packages(args) {
        first.args(cargo::WORKSPACE);
    }
    first.args(args);
    let mut commands = vec![first];
    if nextest && args.is_empty() {
        let mut documentation = cargo::command(&["test", "--doc"]);
        documentation.args(cargo::WORKSPACE);
        commands.push(documentation);
    }
    commands
}

fn chooses_packages(args: &[OsString]) -> bool {
    let own = args.iter().take_while(|arg| *arg != "--");
    own.map(|arg| arg.to_string_lossy()).any(|arg| {
        arg.starts_with("--package")
            || arg == "--manifest-path"
            || (arg.starts_with("-p") && !arg.starts_with("--"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every package but those of GPUs.
    const EACH: &str = "--workspace --exclude brigade-cuda --exclude brigade-wgpu";

    fn shown(nextest: bool, args: &[&str]) -> Vec<String> {
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        commands(nextest, &args).iter().map(cargo::shown).collect()
    }

    #[test]
    fn the_runner_is_nextest_where_it_is_installed() {
        assert_eq!(
            shown(true, &[]),
            [format!("cargo nextest run {EACH}"), format!("cargo test --doc {EACH}")]
        );
        assert_eq!(shown(false, &[]), [format!("cargo test {EACH}")]);
    }

    #[test]
    fn arguments_choose_tests() {
        assert_eq!(shown(true, &["ring"]), [format!("cargo nextest run {EACH} ring")]);
        assert_eq!(shown(true, &["-p", "brigade-comm"]), ["cargo nextest run -p brigade-comm"]);
        assert_eq!(shown(true, &["-p", "brigade-cuda"]), ["cargo nextest run -p brigade-cuda"]);
        assert_eq!(shown(false, &["--package=x"]), ["cargo test --package=x"]);
        assert_eq!(shown(false, &["--", "-p"]), [format!("cargo test {EACH} -- -p")]);
    }
}
