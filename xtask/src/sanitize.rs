//! `cargo xtask sanitize`.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::cargo;

/// The crates whose code is `unsafe` and needs neither Burn nor a GPU.
const CRATES: [&str; 3] = ["brigade-comm", "brigade-launch", "brigade-simd"];

/// Runs the unit tests of these crates under AddressSanitizer.
pub fn run() -> Result<()> {
    let on_glibc = cfg!(all(target_os = "linux", target_env = "gnu"));
    ensure!(on_glibc, "sanitize needs Linux with glibc, where Rust's own sanitizer runtime works");
    cargo::run(&mut command())
}

fn command() -> Command {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut command = cargo::command(&["test", "--lib", "--target-dir", "target/sanitize"]);
    // With a target, build scripts and macros are built without the sanitizer.
    command.args(["--target", &target]);
    command.args(CRATES.iter().flat_map(|name| ["-p", name]));
    // The stable compiler contains sanitizers, but allows them only with this variable.
    command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address");
    // Memory that lives as long as the process is no leak, and some tests ask for more memory than there is.
    command.env("ASAN_OPTIONS", "detect_leaks=0:allocator_may_return_null=1");
    command
}
