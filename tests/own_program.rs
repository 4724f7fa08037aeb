//! A program with flags of its own, run as a user runs it.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Examples are built beside the tests.
fn example() -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.join("examples").join("own_program")
}

fn run(folder: &Path, line: &str) -> Output {
    Command::new(example()).args(line.split_whitespace()).current_dir(folder).output().unwrap()
}

/// The output of a run that must succeed.
#[track_caller]
fn succeed(folder: &Path, line: &str) -> String {
    let output = run(folder, line);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {error}");
    format!("{}{error}", String::from_utf8_lossy(&output.stdout))
}

/// The message of a run that must be refused before it starts.
#[track_caller]
fn refused(folder: &Path, line: &str) -> String {
    let output = run(folder, line);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{line}: {error}");
    assert!(!folder.join("refused").exists(), "{line}");
    error
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn help_has_the_name_the_description_and_all_flags() {
    let folder = tempfile::tempdir().unwrap();
    let help = succeed(folder.path(), "--help");
    assert!(help.starts_with("Fits a sum of sines.\n\nUsage: waves"), "{help}");
    let (own, standard) = help.split_once("\nTraining:\n").unwrap();
    for flag in ["--hidden <N>", "--waves <N>...", "--verbose", "[default: 32]", "--version"] {
        assert!(own.contains(flag), "{flag}: {help}");
    }
    for flag in ["--config <FILE>", "--set <SECTION.KEY=VALUE>", "--pp <N>", "--nproc-per-node"] {
        assert!(standard.contains(flag), "{flag}: {help}");
    }
    assert_eq!(succeed(folder.path(), "--version"), "waves 1.2\n");
}

#[test]
fn every_rank_has_the_flags_and_a_resumed_run_keeps_them() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path();
    let ranks = "--nproc-per-node 2 --dp 2";
    succeed(place, &format!("{ranks} --out a --checkpoint-every 10 --waves 1 3 --hidden 16 --verbose"));
    let logs = |run: &str| ["0", "1"].map(|rank| text(&place.join(format!("{run}/logs/rank-{rank}.log"))));
    for (rank, log) in logs("a").iter().enumerate() {
        assert!(log.contains(&format!("rank {rank}: 16 hidden, waves [1, 3]")), "{log}");
    }
    let config = text(&place.join("a/config.toml"));
    let table: toml::Table = config.parse().unwrap();
    assert_eq!(table["flags"].to_string(), "{ hidden = 16, waves = [1, 3], verbose = true }", "{config}");

    // Without flags they are those of the run; a changed one is named.
    let said = succeed(place, "--resume a --steps 30");
    assert!(said.contains("rank 0: 16 hidden, waves [1, 3]"), "{said}");
    assert!(said.contains("changed: train.steps: 20 before, now 30") && !said.contains("flags."), "{said}");
    let said = succeed(place, "--resume a --steps 40 --waves 2 --set flags.hidden=16");
    assert!(said.contains("rank 0: 16 hidden, waves [2]"), "{said}");
    assert!(said.contains("changed: flags.waves: [1,3] before, now 2"), "{said}");

    // A switch is turned off by its setting.
    let said = succeed(place, "--resume a --steps 50 --set flags.verbose=false");
    assert!(!said.contains("hidden, waves"), "{said}");
    assert!(said.contains("changed: flags.verbose: true before, now false"), "{said}");

    // The configuration of a run is a file for another one, which trains to the same weights.
    succeed(place, "--nproc-per-node 1 --dp 1 --config a/config.toml --out b --steps 20 --waves 1 3 --quiet");
    succeed(place, "--nproc-per-node 1 --out c --waves 1 3 --hidden 16 --quiet --checkpoint-every 10");
    let weights = |run: &str| std::fs::read(place.join(run).join("model.safetensors")).unwrap();
    assert!(weights("b") == weights("c"), "the files of weights have the same bytes");
    // Also on two ranks, which draw what the program draws itself.
    succeed(place, &format!("{ranks} --out d --waves 1 3 --hidden 16 --quiet --checkpoint-every 10"));
    assert!(weights("d") == weights("c"), "the ranks have drawn other numbers");
}

#[test]
fn a_file_is_over_the_defaults_and_below_set_and_flags() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path();
    let file = "[train]\nsteps = 7\nseed = 5\nmicro_batch_size = 32\n[flags]\nhidden = 8\nwaves = 2\n";
    std::fs::write(place.join("a.toml"), file).unwrap();
    let shown =
        succeed(place, "--config a.toml --set train.seed=6 --micro-batch-size 16 --hidden 4 --dry-run");
    for line in [
        "steps = 7",
        "seed = 6",
        "micro_batch_size = 16",
        "global_batch_size = 128",
        "hidden = 4",
        "waves = 2",
        "verbose = false",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
    }
}

#[test]
fn mistakes_are_named_with_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path();
    for (file, text) in [
        ("unknown.toml", "[train]\nstepps = 7\n"),
        ("flag.toml", "[flags]\nhiden = 7\n"),
        ("section.toml", "flags = 3\n"),
        ("value.toml", "[flags]\nhidden = \"wide\"\n"),
        ("broken.toml", "[train\n"),
    ] {
        std::fs::write(place.join(file), text).unwrap();
    }
    for (line, said) in [
        ("--config none.toml", "brigade: --config none.toml: No such file"),
        ("--config broken.toml", "brigade: --config broken.toml is not TOML: "),
        (
            "--config unknown.toml",
            "brigade: --config unknown.toml: there is no setting `train.stepps`; did you mean `train.steps`?",
        ),
        (
            "--config flag.toml",
            "brigade: --config flag.toml: there is no setting `flags.hiden`; [flags] has hidden, waves, verbose",
        ),
        (
            "--config section.toml",
            "brigade: --config section.toml: `flags` is a section; set one of its keys",
        ),
        ("--set flags=3", "brigade: --set flags=3: `flags` is a section; set one of its keys"),
        (
            "--set flags.hiden=3",
            "brigade: --set flags.hiden=3: there is no setting `flags.hiden`; [flags] has hidden",
        ),
        ("--config value.toml", "invalid value 'wide' for '--hidden <N>'"),
        ("--hidden wide", "invalid value 'wide' for '--hidden <N>'"),
    ] {
        let message = refused(place, &format!("{line} --waves 1 --out refused"));
        assert!(message.contains(said), "{line}: {message}");
    }
    // Also where it is the last word.
    for (flag, said) in
        [("--hidden wide", "--hidden <N>"), ("--steps abc", "--steps <N>"), ("--pp two", "--pp <N>")]
    {
        let message = refused(place, &format!("--waves 1 --out refused {flag}"));
        assert!(message.contains("invalid value") && message.contains(said), "{flag}: {message}");
    }
    let message = refused(place, "--out refused");
    assert!(message.contains("--waves <N>..."), "{message}");
    let message = refused(place, "--waves 1 --resume none");
    assert!(message.contains("--resume = none is not possible: it must be the folder of a run"), "{message}");
}
