//! The example, run as a user runs it.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::process::Command;

/// Examples are built beside the tests.
fn example() -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.join("examples").join("own_model")
}

#[test]
fn the_example_ends_with_the_weights_of_plain_burn_on_any_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = Vec::new();
    for (ranks, transport) in [("1", "auto"), ("2", "shared_memory"), ("2", "tcp")] {
        let out = folder.path().join(format!("{ranks}-{transport}"));
        let output = Command::new(example())
            .args(["--nproc-per-node", ranks, "--dp", ranks, "--transport", transport, "--quiet", "--out"])
            .arg(&out)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("rank 0: the weights of plain Burn: true"), "{text}");
        for rank in 0..ranks.parse::<usize>().unwrap() {
            let log = std::fs::read_to_string(out.join("logs").join(format!("rank-{rank}.log"))).unwrap();
            assert!(log.contains(&format!("rank {rank}: the weights of plain Burn: true")), "{log}");
        }
        files.push(std::fs::read(out.join("model.safetensors")).unwrap());
    }
    for (number, mesh) in ["--nproc-per-node 2 --pp 2", "--nproc-per-node 2 --zero 3"].into_iter().enumerate()
    {
        let out = folder.path().join(format!("mesh-{number}"));
        let output = Command::new(example())
            .args(mesh.split(' '))
            .args(["--quiet", "--out"])
            .arg(&out)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("rank 0: this rank holds a part of the model"), "{text}");
        files.push(std::fs::read(out.join("model.safetensors")).unwrap());
    }
    assert!(files.iter().all(|file| *file == files[0]), "the files of weights have the same bytes");
}

#[test]
fn more_stages_than_blocks_are_refused_once_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let output = Command::new(example())
        .args(["--nproc-per-node", "3", "--pp", "3", "--quiet", "--out"])
        .arg(&out)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert_eq!(text.matches("the model has 2 blocks").count(), 1, "{text}");
    assert!(!out.join("metrics.jsonl").exists() && !out.join("config.toml").exists());
}

#[test]
fn a_dry_run_describes_and_trains_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let output = Command::new(example())
        .args(["--nproc-per-node", "2", "--dry-run", "--out"])
        .arg(&out)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("# mesh: pp 1 x dp 2 = 2 ranks"), "{text}");
    assert!(text.contains("# block hidden                     96 parameters"), "{text}");
    assert!(text.contains("saved activations ") && !text.contains("unknown"), "{text}");
    assert!(text.contains("# the run will need about "), "{text}");
    assert!(!out.exists());
}

/// Of each of two micro-batches, 32 samples of 32 numbers and what describes them go to the second stage, and as much comes back.
#[test]
fn a_dry_run_of_a_pipeline_counts_what_its_stages_send() {
    let output =
        Command::new(example()).args(["--nproc-per-node", "2", "--pp", "2", "--dry-run"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("# mesh: pp 2 x dp 1 = 2 ranks"), "{text}");
    assert!(text.contains("# gradient accumulation: 2 micro-batches per rank and step"), "{text}");
    assert_eq!(text.matches("send 8.0 KiB in 2 calls").count(), 2, "{text}");
}
