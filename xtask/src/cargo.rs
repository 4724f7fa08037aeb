//! Cargo commands on this workspace.

use std::ffi::OsString;
use std::fmt;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use anyhow::{Context, Result};

/// What is off by default and built for tests, too.
pub const FEATURES: &str = "brigade-cli/object-store";

/// Everything but tensors on GPUs: their backends take minutes to build, and would turn on what they need of shared
/// dependencies in all that is built beside them. Always with the same features, so that Burn is built once. Of brigade-cuda
/// it builds what lies below its tensors.
pub const WORKSPACE: [&str; 5] = ["--workspace", "--exclude", "brigade-wgpu", "--features", FEATURES];

/// A command failed and has printed why: this program ends with its exit code.
#[derive(Debug)]
pub struct Failed(pub ExitStatus);

impl Failed {
    /// The command's exit code, or 128 plus the signal that ended it, as shells count.
    pub fn code(&self) -> ExitCode {
        use std::os::unix::process::ExitStatusExt;
        let code = self.0.code().or_else(|| self.0.signal().map(|signal| 128 + signal));
        ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cargo failed ({})", self.0)
    }
}

impl std::error::Error for Failed {}

/// The workspace's root folder.
pub fn root() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package)
}

/// The cargo that runs this program.
pub fn program() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Cargo with these arguments, in the workspace's root.
///
/// It does not get what cargo has told this program about itself: some build scripts of dependencies run again when such a variable is another one, and with them everything that
/// depends on them is built again, each time that somebody builds by cargo and then by this program.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(args).current_dir(root());
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_of_this_program) {
            command.env_remove(name);
        }
    }
    command
}

/// Whether cargo sets a variable for the program that it runs.
fn is_of_this_program(name: &str) -> bool {
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_", "CARGO_BIN_", "CARGO_PRIMARY_"]
        .iter()
        .any(|start| name.starts_with(start))
}

/// Whether a subcommand is installed.
pub fn has(subcommand: &str) -> bool {
    let quiet = |command: &mut Command| {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()
    };
    quiet(&mut command(&[subcommand, "--version"])).is_ok_and(|status| status.success())
}

/// Prints a command, runs it on this terminal and waits for it.
///
/// # Errors
/// [`Failed`] if it ends with another exit code than 0.
pub fn run(command: &mut Command) -> Result<()> {
    eprintln!("$ {}", shown(command));
    if std::env::var_os(TEST_THREADS).is_none() {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        command.env(TEST_THREADS, (cores + 2).to_string());
    }
    let status = command.status().context("cannot start cargo")?;
    if status.success() { Ok(()) } else { Err(Failed(status).into()) }
}

/// How many tests nextest runs at once: two more than there are cores, as many of them wait for deadlines.
const TEST_THREADS: &str = "NEXTEST_TEST_THREADS";

/// Builds with cargo's output on the terminal, and gives the path of the executable, wherever cargo is configured to put it.
///
/// # Errors
/// [`Failed`] if it does not compile.
pub fn build(args: &[&str]) -> Result<PathBuf> {
    build_by(command(args))
}

/// [`build`] by a command of one's own.
///
/// # Errors
/// As there.
pub fn build_by(mut command: Command) -> Result<PathBuf> {
    let line = shown(&command);
    command.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    let output = command.output().context("cannot start cargo")?;
    if !output.status.success() {
        return Err(Failed(output.status).into());
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    executable(&messages).with_context(|| format!("`{line}` made no executable"))
}

/// The last executable that cargo's JSON messages name.
fn executable(messages: &str) -> Option<PathBuf> {
    messages.lines().rev().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    })
}

/// The version of a package in the text of `Cargo.lock`.
pub fn locked<'a>(lock: &'a str, package: &str) -> Option<&'a str> {
    let (_, rest) = lock.split_once(&format!("\nname = \"{package}\"\nversion = \""))?;
    rest.split('"').next()
}

/// A cargo command as it would be typed.
pub fn shown(command: &Command) -> String {
    let mut line = String::new();
    for (name, value) in command.get_envs() {
        let Some(value) = value else { continue };
        let value = value.to_string_lossy();
        line += &format!("{}={} ", name.to_string_lossy(), quoted(&value));
    }
    line += "cargo";
    for arg in command.get_args() {
        line += &format!(" {}", quoted(&arg.to_string_lossy()));
    }
    line
}

fn quoted(word: &str) -> String {
    if word.contains(' ') { format!("\"{word}\"") } else { word.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn what_cargo_says_of_this_program_is_kept_from_others() {
        let command = command(&["build"]);
        assert!(command.get_envs().any(|(name, value)| name == "CARGO_MANIFEST_DIR" && value.is_none()));
        assert_eq!(shown(&command), "cargo build");
        assert!(is_of_this_program("CARGO_PKG_NAME") && !is_of_this_program("CARGO_HOME"));
    }

    #[test]
    fn finds_the_executable_among_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"anyhow"},"executable":null}
not a message
{"reason":"compiler-artifact","target":{"name":"brigade"},"executable":"/t/release/brigade"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(messages), Some(PathBuf::from("/t/release/brigade")));
        assert_eq!(executable(r#"{"reason":"build-finished","success":true}"#), None);
    }

    #[test]
    fn reads_the_lock_file() {
        let lock = "[[package]]\nname = \"burn-core\"\nversion = \"1.0.0\"\n\n[[package]]\nname = \"burn\"\nversion = \"0.22.1\"\n";
        assert_eq!(locked(lock, "burn"), Some("0.22.1"));
        assert_eq!(locked(lock, "torch"), None);
    }

    #[test]
    fn the_end_of_a_command_is_passed_on() {
        let code = |raw| Failed(ExitStatus::from_raw(raw)).code();
        assert_eq!(code(101 << 8), ExitCode::from(101));
        assert_eq!(code(15), ExitCode::from(143));
    }

    #[test]
    fn the_root_holds_the_lock_file() {
        assert!(root().join("Cargo.lock").is_file());
        assert!(!has("no-such-subcommand"));
    }
}
