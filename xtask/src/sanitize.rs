//! `cargo xtask sanitize`.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::cargo;

/// The crates whose code is `unsafe` and needs neither Burn nor a GPU.
const CRATES: [&str; 2] = ["brigade-comm", "brigade-launch"];

/// Runs the unit tests of these crates, in which memory is used wrongly if anywhere, under AddressSanitizer.
pub fn run() -> Result<()> {
    let on_glibc = cfg!(all(target_os = "linux", target_env = "gnu"));
    ensure!(on_glibc, "sanitize needs Linux with glibc, where Rust's own sanitizer runtime works");
    cargo::run(&mut command())
}

fn command() -> Command {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut command = cargo::command(&["test", "--lib", "--target-dir", "target/sanitize"]);
    // With a target, build scripts and macros are built as always.
    command.args(["--target", &target]);
    command.args(CRATES.iter().flat_map(|name| ["-p", name]));
    // The stable compiler has sanitizers, but lets only itself ask for them.
    command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address");
    // What lives as long as the process is no leak, and tests ask for memory that there is not.
    command.env("ASAN_OPTIONS", "detect_leaks=0:allocator_may_return_null=1");
    command
}
