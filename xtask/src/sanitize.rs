//! `cargo xtask sanitize`.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::cargo;

/// The crates with `unsafe` code that needs neither Burn nor a GPU.
const CRATES: [&str; 3] = ["brigade-comm", "brigade-launch", "brigade-simd"];

/// Those that take Burn, on the CPU.
const WITH_BURN: [&str; 2] = ["brigade-host", "brigade-kernels"];

/// Flags of `cargo xtask sanitize`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The crates on Burn instead, with their integration tests; Burn takes a quarter of an hour to build for it.
    #[arg(long)]
    burn: bool,
}

/// Runs the tests of these crates under AddressSanitizer.
pub fn run(args: &Args) -> Result<()> {
    let on_glibc = cfg!(all(target_os = "linux", target_env = "gnu"));
    ensure!(on_glibc, "sanitize needs Linux with glibc, where Rust's own sanitizer runtime works");
    cargo::run(&mut match args.burn {
        true => command(&WITH_BURN, &["--lib", "--tests"]),
        false => command(&CRATES, &["--lib"]),
    })
}

fn command(crates: &[&str], tests: &[&str]) -> Command {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut command = cargo::command(&["test", "--no-fail-fast", "--target-dir", "target/sanitize"]);
    // With a target, build scripts and macros are built without the sanitizer.
    command.args(["--target", &target]).args(tests);
    command.args(crates.iter().flat_map(|name| ["-p", name]));
    // The stable compiler contains sanitizers, but allows them only with this variable.
    command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address");
    // Memory that lives as long as the process is no leak, and some tests ask for more memory than there is.
    command.env("ASAN_OPTIONS", "detect_leaks=0:allocator_may_return_null=1");
    command
}
