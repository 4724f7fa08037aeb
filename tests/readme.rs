//! The program of `README.md`, run with the commands given there.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::process::Command;

/// Examples are built beside the tests.
fn example() -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.join("examples").join("sine_brigade")
}

#[test]
fn the_commands_of_the_readme_train_to_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let commands: Vec<&str> = include_str!("../README.md")
        .lines()
        .filter_map(|line| line.strip_prefix("cargo run --release --example sine_brigade -- "))
        .collect();
    assert_eq!(commands.len(), 3);
    let weights: Vec<Vec<u8>> = commands
        .into_iter()
        .map(|flags| {
            let output =
                Command::new(example()).args(flags.split(' ')).current_dir(&folder).output().unwrap();
            assert!(output.status.success(), "{flags}: {}", String::from_utf8_lossy(&output.stderr));
            let (_, out) = flags.split_once("--out ").unwrap();
            std::fs::read(folder.path().join(out).join("model.safetensors")).unwrap()
        })
        .collect();
    assert!(weights.iter().all(|bytes| *bytes == weights[0]), "the files of weights have the same bytes");
}
