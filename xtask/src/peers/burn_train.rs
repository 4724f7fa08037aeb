//! `cargo xtask check-burn-train`.
//!
//! burn-train turns on features of Burn that the workspace builds without, so its program is a package of its own, and Burn is
//! built a second time for it. With it Brigade is built as a program has it that asks for no features, without a warning.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cargo;

/// The package with the program for burn-train.
const PACKAGE: &str = "tests/from_burn_train";

/// The global batch has two micro-batches, so four ranks are two pipeline stages of two.
const MESHES: [&str; 3] = ["--nproc-per-node 1", "--nproc-per-node 2", "--nproc-per-node 4 --dp 2 --pp 2"];

/// What a program has left behind: the bytes of its file of weights, and what its hook has reported.
struct Ended {
    weights: Vec<u8>,
    reports: Vec<String>,
}

/// Trains with both programs of `examples/from_burn_train`, that for Brigade on one, two and four ranks, and compares the bytes of
/// their weights and the reports of their hooks.
pub fn run() -> Result<()> {
    let package = cargo::root().join(PACKAGE);
    let (theirs, ours) = (package.join("Cargo.lock"), cargo::root().join("Cargo.lock"));
    std::fs::copy(&ours, &theirs).with_context(|| format!("{}: cannot write it", theirs.display()))?;
    let manifest = format!("{PACKAGE}/Cargo.toml");
    let mut twin = cargo::command(&["build", "--manifest-path", &manifest]);
    // Nothing else builds Brigade with its default features alone.
    twin.env("RUSTFLAGS", "-D warnings");
    let twin = cargo::build_by(twin)?;
    // With the packages and features of the tests, which have built it.
    let moved = [&["build"], cargo::WORKSPACE.as_slice(), &["--example", "from_burn_train"]].concat();
    let moved = cargo::build(&moved)?;

    let folder = tempfile::tempdir()?;
    let place = folder.path();
    let weights = place.join("twin.safetensors");
    let plain = ended(Command::new(twin).arg(&weights).current_dir(place), &weights)?;
    ensure!(!plain.reports.is_empty(), "examples/from_burn_train/burn.rs: its hook has reported nothing");
    for (number, mesh) in MESHES.into_iter().enumerate() {
        let out = place.join(format!("run-{number}"));
        let mut command = Command::new(&moved);
        command.args(mesh.split(' ')).arg("--out").arg(&out).current_dir(place);
        let ended = ended(&mut command, &out.join("model.safetensors"))?;
        ensure!(
            ended.weights == plain.weights,
            "examples/from_burn_train: the weights of brigade.rs with {mesh} and of burn.rs differ"
        );
        ensure!(
            ended.reports == plain.reports,
            "examples/from_burn_train: the hook of brigade.rs with {mesh} has reported {:?}, that of burn.rs {:?}",
            ended.reports,
            plain.reports
        );
        println!(
            "{mesh}: the weights of both programs have the same bytes, and their hooks have reported the same."
        );
    }
    Ok(())
}

fn ended(command: &mut Command, weights: &Path) -> Result<Ended> {
    let output = command.output().with_context(|| format!("{command:?} cannot be started"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed:\n{said}{errors}");
    let reports = said.lines().filter(|line| line.starts_with("step ")).map(str::to_owned).collect();
    let weights = std::fs::read(weights).with_context(|| format!("{}: cannot read it", weights.display()))?;
    Ok(Ended { weights, reports })
}
