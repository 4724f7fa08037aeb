//! Running an example.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::book::ExampleCommand;

/// What a program has left behind.
pub struct Ended {
    /// The bytes of its files of weights: of the first model, and of further ones.
    pub weights: Vec<Vec<u8>>,
    /// What its `report` has printed.
    pub reports: Vec<String>,
}

/// Runs a program for plain Burn, which is told its file of weights.
pub fn plain(command: &ExampleCommand, folder: &Path) -> Ended {
    run(command, folder, &command.flags)
}

/// Runs a program for Brigade, which writes into the folder that its last flag names.
pub fn brigade(command: &ExampleCommand, folder: &Path) -> Ended {
    let (_, out) = command.flags.split_once("--out ").unwrap();
    run(command, folder, &format!("{out}/model.safetensors"))
}

fn run(command: &ExampleCommand, folder: &Path, weights: &str) -> Ended {
    ended(Command::new(program(&command.name)).args(command.flags.split(' ')), folder, weights)
}

fn ended(command: &mut Command, folder: &Path, weights: &str) -> Ended {
    let output = command.current_dir(folder).output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {said}{errors}");
    let reports = said.lines().filter(|line| line.starts_with("step ")).map(str::to_owned).collect();
    Ended { weights: files_of_weights(&folder.join(weights)), reports }
}

/// `model.safetensors`, and every `model-NAME.safetensors` beside it.
fn files_of_weights(path: &Path) -> Vec<Vec<u8>> {
    let stem = path.file_stem().unwrap().to_str().unwrap();
    let entries = std::fs::read_dir(path.parent().unwrap()).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name.starts_with(stem) && name.ends_with(".safetensors"));
    names.sort();
    assert!(names.contains(&path.file_name().unwrap().to_string_lossy().into_owned()), "{names:?}");
    names.iter().map(|name| std::fs::read(path.with_file_name(name)).unwrap()).collect()
}

/// Examples are built beside the tests.
fn program(name: &str) -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.join("examples").join(name)
}
