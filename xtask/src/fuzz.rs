//! `cargo xtask fuzz`.

use std::ffi::OsString;

use anyhow::Result;

use crate::cargo;

/// Builds and runs the fuzz targets, with the given flags.
pub fn run(args: &[OsString]) -> Result<()> {
    cargo::run(cargo::command(&["run", "--release", "-p", "brigade-fuzz", "--"]).args(args))
}
