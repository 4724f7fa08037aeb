//! The examples, run as their users run them: on any mesh, the program for Brigade ends with the weights of its plain Burn twin,
//! and its hooks have reported the same as often.

#![allow(clippy::unwrap_used)]

mod book;
mod programs;

use std::path::Path;

use book::BOOK;
use programs::{Ended, brigade, plain};

/// How the program for Brigade ends on two ranks, by the book's command, and as well on every other mesh.
fn ended_on_every_mesh(name: &str, four_ranks: &str, folder: &Path) -> Ended {
    let in_the_book = BOOK.command(name);
    assert!(in_the_book.flags.starts_with("--nproc-per-node 2 --out "), "{in_the_book:?}");
    let ended = brigade(&in_the_book, folder);
    let meshes = [
        "--nproc-per-node 1",
        four_ranks,
        "--nproc-per-node 2 --pp 2",
        "--nproc-per-node 2 --zero 3",
        "--nproc-per-node 2 --transport tcp",
    ];
    for (number, mesh) in meshes.into_iter().enumerate() {
        let command = in_the_book.with(format!("{mesh} --quiet --out mesh-{number}"));
        let other = brigade(&command, folder);
        assert!(other.weights == ended.weights, "the weights of {command:?}");
        assert_eq!(other.reports, ended.reports, "{command:?}");
    }
    ended
}

fn ends_as_its_twin(name: &str, models: usize, reports: usize) {
    let folder = tempfile::tempdir().unwrap();
    let twin = plain(&BOOK.command(&format!("{name}_burn")), folder.path());
    assert_eq!((twin.weights.len(), twin.reports.len()), (models, reports), "{name}");
    let ended = ended_on_every_mesh(name, "--nproc-per-node 4", folder.path());
    assert!(ended.weights == twin.weights, "{name}: the weights of plain Burn");
    assert_eq!(ended.reports, twin.reports, "{name}");
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
fn frozen_backbone() {
    ends_as_its_twin("frozen_backbone", 1, 6);
}

#[test]
fn own_loop() {
    ends_as_its_twin("own_loop", 2, 8);
}

/// Its twin needs another build of Burn: `cargo xtask check-burn-train` compares the two.
#[test]
fn from_burn_train() {
    let folder = tempfile::tempdir().unwrap();
    // Its global batch has two micro-batches.
    let ended = ended_on_every_mesh("from_burn_train", "--nproc-per-node 4 --dp 2 --pp 2", folder.path());
    assert_eq!((ended.weights.len(), ended.reports.len()), (1, 25));
}

#[test]
fn in_bf16_as_well_on_any_mesh() {
    for name in ["text_classification", "images"] {
        let folder = tempfile::tempdir().unwrap();
        let command = BOOK.command(name);
        let ended = |out: &str, mesh: &str| {
            let flags = format!("{mesh} --set compute.dtype=bf16 --quiet --out {out}");
            brigade(&command.with(flags), folder.path())
        };
        let alone = ended("alone", "--nproc-per-node 1");
        for (number, mesh) in ["--nproc-per-node 2 --zero 3", "--nproc-per-node 2 --pp 2"].iter().enumerate()
        {
            let other = ended(&format!("mesh-{number}"), mesh);
            assert!(other.weights == alone.weights, "{name} {mesh}");
            assert_eq!(other.reports, alone.reports, "{name} {mesh}");
        }
    }
}
