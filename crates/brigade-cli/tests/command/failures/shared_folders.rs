//! Whose a folder and its checkpoints are: no run takes or destroys what is another's.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;

use crate::place::Place;
use crate::processes::{ranks, send};
use crate::runs::{dead_after, files, newest, same_end, step_folder, trained};

#[test]
fn checkpoints_of_another_run_are_not_gone_on_from() {
    let place = Place::new();
    let line = "--nproc-per-node 1 --checkpoint-every 4 --set checkpoint.dir=ext";
    place.succeed(&mut place.train(&format!("{line} --out a")));
    let before = files(&place.path("ext"));
    let other = format!("{line} --set optimizer.learning_rate=1e-2 --max-restarts 1 --out b");
    let done = place.run(&mut place.train(&other));
    assert_eq!(done.code, Some(2), "{}", done.err);
    assert!(done.err.contains("holds checkpoints of an earlier run"), "{}", done.err);
    assert!(!place.path("b/metrics.jsonl").exists() && files(&place.path("ext")) == before);
    assert!(
        place.run(&mut place.brigade("checkpoint list a")).out.contains("step 10"),
        "by the run's folder, too"
    );
}

/// The ranks are killed before the new run has removed anything: the restart must not find the old run's checkpoints.
#[test]
fn a_run_that_replaces_another_one_never_goes_on_from_it() {
    let place = Place::new();
    let rate = "--nproc-per-node 2 --checkpoint-every 4 --set optimizer.learning_rate=1e-2";
    place.succeed(&mut place.train(&format!("{rate} --out other")));
    for wait in [0, 20, 60, 150] {
        place.succeed(&mut place.train("--nproc-per-node 2 --checkpoint-every 4 --overwrite --out a"));
        let mut running =
            place.start(&mut place.train(&format!("{rate} --overwrite --max-restarts 1 --out a")));
        let first = running.until("ranks", |running| ranks(running.pid()).first().copied());
        std::thread::sleep(Duration::from_millis(wait));
        send(first, Signal::KILL);
        let done = running.wait();
        assert_eq!(done.code, Some(0), "{}", done.err);
        same_end(&place, "a", "other");
    }
}

#[test]
fn a_folder_has_one_run_at_a_time() {
    let place = Place::new();
    let endless =
        "--nproc-per-node 1 --checkpoint-every 2 --steps 10000000 --set schedule.name=constant --out a";
    let mut running = place.start(&mut place.train(endless));
    running.until("a checkpoint", |_| newest(&place, "a").filter(|step| *step > 4));
    let lines = [
        "train --resume a",
        "train --config tiny.toml --data text --out a --overwrite",
        "checkpoint consolidate a --overwrite",
        "checkpoint consolidate a/checkpoints --to a/model.safetensors --overwrite",
    ];
    // Each waits a while for the folder.
    let refused = lines.map(|line| place.start(&mut place.brigade(line)));
    for done in refused.map(|refused| refused.wait()) {
        assert_eq!(done.code, Some(2), "{}", done.err);
        assert!(done.err.contains("another run is using this folder"), "{}", done.err);
    }
    // Its ranks may live a moment longer than a launcher that was killed.
    assert!(send(running.pid(), Signal::KILL));
    drop(running);
    let done = place.run(&mut place.brigade("train --resume a --steps 1"));
    assert!(
        done.code == Some(2) && done.err.contains("train.steps (--steps) = 1 is not possible"),
        "{}",
        done.err
    );
}

/// Neither run could see the other's checkpoints when it began.
#[test]
fn a_run_does_not_save_among_the_checkpoints_of_another() {
    let place = Place::new();
    place.succeed(&mut place.train("--nproc-per-node 1 --checkpoint-every 7 --steps 7 --out other"));
    let line =
        "--nproc-per-node 2 --checkpoint-every 2 --steps 10000000 --set schedule.name=constant --out a";
    let mut running = place.start(&mut place.train(&format!("{line} --set checkpoint.dir=ext")));
    running.until("a checkpoint", |_| place.path("ext/step-00000002").exists().then_some(()));
    fs::rename(place.path("other/checkpoints/step-00000007"), place.path("ext/step-00000007")).unwrap();
    let done = running.wait();
    assert_eq!(done.code, Some(1), "{}", done.err);
    assert!(done.err.contains("now holds checkpoints of another run"), "{}", done.err);
    let verified = place.succeed(&mut place.brigade("checkpoint verify ext --step 7"));
    assert!(verified.out.starts_with("step 7 "), "{}", verified.out);
}

/// What a newer build saved is whole, but not for this one: nothing is passed over, and nothing removed.
#[test]
fn what_cannot_be_read_is_not_damaged() {
    let place = Place::new();
    trained(&place, "whole", "--nproc-per-node 1");
    dead_after(&place, "whole", 8, "a");
    let manifest = place.path(&format!("{}/manifest.json", step_folder("a", 8)));
    let text = fs::read_to_string(&manifest).unwrap().replacen("\"version\":2", "\"version\":3", 1);
    fs::write(&manifest, &text).unwrap();
    let hash = format!("{}  manifest.json\n", blake3::hash(text.as_bytes()).to_hex());
    fs::write(manifest.with_file_name("manifest.blake3"), hash).unwrap();
    let before = files(&place.path("a"));
    for line in ["train --resume a", "train --resume a --dry-run"] {
        let done = place.run(&mut place.brigade(line));
        assert_eq!(done.code, Some(2), "{}", done.err);
        assert!(done.err.contains("step 8") && done.err.contains("version 3"), "{}", done.err);
    }
    assert!(files(&place.path("a")) == before);
}

#[test]
fn a_dry_run_says_where_it_goes_on_and_what_it_cannot() {
    let place = Place::new();
    trained(&place, "a", "--nproc-per-node 1");
    let done = place.succeed(&mut place.brigade("train --resume a --dry-run"));
    assert!(done.err.contains("would resume from the checkpoint of step 10"), "{}", done.err);
    let done = place.run(&mut place.brigade("train --resume a --dry-run --set model.width=32"));
    assert_eq!(done.code, Some(2), "{}", done.err);
    assert!(done.err.contains("model.width = 32 is not possible"), "{}", done.err);
    for (place_of, said) in [("gs://bucket/a", "object-store"), ("ftp://x/y", "ftp")] {
        if cfg!(feature = "object-store") && place_of.starts_with("gs") {
            continue;
        }
        let line = format!("--nproc-per-node 1 --max-restarts 2 --out b --set checkpoint.dir={place_of}");
        let done = place.run(&mut place.train(&line));
        assert_eq!(done.code, Some(2), "{}", done.err);
        assert!(done.err.contains(said) && !done.err.contains("starting again"), "{}", done.err);
    }
}

/// Whoever comes second decides when the first has ended: there is something to go on from by then.
#[test]
fn two_that_go_on_by_themselves_are_one_run() {
    let place = Place::new();
    place.succeed(&mut place.train("--nproc-per-node 1 --checkpoint-every 4 --steps 40 --out whole"));
    let line = "--nproc-per-node 1 --checkpoint-every 4 --steps 40 --resume auto --out";
    for run in ["a", "b", "c"] {
        let mut running: Vec<_> =
            (0..3).map(|_| place.start(&mut place.train(&format!("{line} {run}")))).collect();
        let ends: Vec<_> = running.drain(..).map(|running| running.wait()).collect();
        for end in &ends {
            let refused = end.err.contains("another run is using this folder");
            assert!(end.code == Some(0) || (end.code == Some(2) && refused), "{:?}: {}", end.code, end.err);
        }
        assert!(ends.iter().any(|end| end.code == Some(0)));
        same_end(&place, run, "whole");
    }
}

/// The weights of a finished run are no less its own because its checkpoints lie elsewhere.
#[test]
fn a_place_of_checkpoints_has_one_run_at_a_time() {
    let place = Place::new();
    let endless = "--nproc-per-node 1 --checkpoint-every 2 --steps 10000000 --set schedule.name=constant";
    let line = format!("{endless} --set checkpoint.dir=ext");
    let mut running = place.start(&mut place.train(&format!("{line} --out a")));
    running.until("a checkpoint", |_| place.path("ext/step-00000002").exists().then_some(()));
    let done = place.run(&mut place.train(&format!("{line} --out b --overwrite")));
    assert_eq!(done.code, Some(2), "{}", done.err);
    assert!(done.err.contains("checkpoint.dir") && done.err.contains("another run is using"), "{}", done.err);
    assert!(!running.is_over());
}
