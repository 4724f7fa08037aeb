//! `cargo xtask check-burn-train`.
//!
//! burn-train turns on features of Burn that the workspace builds without, so its program is a package of its own, and Burn is
//! built a second time for it.

use anyhow::{Context, Result, ensure};

use crate::cargo;

/// The package with the program for burn-train.
const PACKAGE: &str = "tests/from_burn_train";

/// Trains with both programs of `examples/from_burn_train`, and compares the bytes of their weights.
pub fn run() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (twin, out) = (folder.path().join("twin.safetensors"), folder.path().join("run"));

    let package = cargo::root().join(PACKAGE);
    let (theirs, ours) = (package.join("Cargo.lock"), cargo::root().join("Cargo.lock"));
    std::fs::copy(&ours, &theirs).with_context(|| format!("{}: cannot write it", theirs.display()))?;
    let manifest = format!("{PACKAGE}/Cargo.toml");
    cargo::run(cargo::command(&["run", "--manifest-path", &manifest, "--"]).arg(&twin))?;

    let example = ["run", "--example", "from_burn_train", "--", "--nproc-per-node", "2", "--out"];
    cargo::run(cargo::command(&example).arg(&out))?;

    let read = |path: &std::path::Path| {
        std::fs::read(path).with_context(|| format!("{}: cannot read it", path.display()))
    };
    ensure!(
        read(&twin)? == read(&out.join("model.safetensors"))?,
        "examples/from_burn_train: the weights of main.rs on two ranks and of burn.rs differ"
    );
    println!("The weights of both programs have the same bytes.");
    Ok(())
}
