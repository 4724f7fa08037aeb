//! The examples, run as their users run them: on any mesh, the program for Brigade ends with the weights of its plain Burn twin,
//! and its hooks have reported the same as often.

#![allow(clippy::unwrap_used)]

mod book;
mod programs;

use book::BOOK;
use programs::{brigade, plain};

/// Beside the mesh of the book's command.
const MESHES: [&str; 4] =
    ["--nproc-per-node 1", "--nproc-per-node 4", "--nproc-per-node 2 --pp 2", "--nproc-per-node 2 --zero 3"];

/// Both commands of the book end with the same weights, and all meshes with these.
fn ends_as_its_twin(name: &str, models: usize, reports: usize) {
    let folder = tempfile::tempdir().unwrap();
    let expected = plain(&BOOK.command(&format!("{name}_burn")), folder.path());
    assert_eq!((expected.weights.len(), expected.reports.len()), (models, reports), "{name}");
    let in_the_book = BOOK.command(name);
    assert!(in_the_book.flags.starts_with("--nproc-per-node 2 --out "), "{name} runs on two ranks");
    let others = MESHES.into_iter().enumerate();
    let others = others.map(|(number, mesh)| in_the_book.with(format!("{mesh} --quiet --out mesh-{number}")));
    for command in others.chain([in_the_book.clone()]) {
        let ended = brigade(&command, folder.path());
        assert!(ended.weights == expected.weights, "the weights of {command:?}");
        assert_eq!(ended.reports, expected.reports, "{command:?}");
    }
}

#[test]
fn text_classification() {
    ends_as_its_twin("text_classification", 1, 8);
}

#[test]
fn images() {
    ends_as_its_twin("images", 1, 6);
}

#[test]
fn own_loop() {
    ends_as_its_twin("own_loop", 2, 8);
}
