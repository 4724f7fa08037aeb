//! `--checkpoint-every`, `--keep` and `--resume`: what is saved, and how a run goes on from it.

use std::fs::{self, File};
use std::path::Path;

use brigade::checkpoints::{
    RankShard, StagingDir, TrainState, WriteItem, open_storage, publish, write_shard,
};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::place::Place;
use crate::runs::{checkpoint, dead_after, files, same_end, state, step_folder, trained};

/// The meshes that save and load, each with all its flags.
const MESHES: [&str; 4] = [
    "--nproc-per-node 1 --pp 1 --dp 1 --zero 0",
    "--nproc-per-node 4 --pp 1 --dp 4 --zero 3",
    "--nproc-per-node 4 --pp 2 --dp 2 --zero 1",
    "--nproc-per-node 4 --pp 4 --dp 1 --zero 0",
];

#[test]
fn every_mesh_goes_on_from_the_checkpoint_of_every_mesh() {
    let place = Place::new();
    for (saved, mesh) in MESHES.iter().enumerate() {
        let name = saved.to_string();
        trained(&place, &name, mesh);
        same_end(&place, &name, "0");
        for step in [4, 8, 10] {
            assert!(state(&place, &name, step) == state(&place, "0", step), "{mesh}: step {step}");
        }
    }
    for (saved, from) in MESHES.iter().enumerate() {
        for (loaded, mesh) in MESHES.iter().enumerate() {
            let name = format!("{saved}-{loaded}");
            dead_after(&place, &saved.to_string(), 4, &name);
            let done = place.succeed(&mut place.brigade(&format!("train --resume {name} {mesh}")));
            assert!(
                done.err.contains("resuming from the checkpoint of step 4"),
                "{from} on {mesh}: {}",
                done.err
            );
            same_end(&place, &name, "0");
            assert!(state(&place, &name, 10) == state(&place, "0", 10), "{from} on {mesh}: another state");
            let file = format!("{name}.safetensors");
            place.succeed(&mut place.brigade(&format!("checkpoint consolidate {name} --to {file}")));
            assert!(place.read(&file) == place.read("0/model.safetensors"), "{from} on {mesh}");
        }
    }
}

/// Each worker goes on from its own state of the optimizer, and all from that of outer steps.
#[test]
fn workers_go_on_with_other_meshes_inside() {
    let place = Place::new();
    let line = "--strategy diloco --workers 2 --inner-steps 2";
    let meshes = [
        "--nproc-per-node 2 --pp 1 --dp 1 --zero 0",
        "--nproc-per-node 4 --pp 1 --dp 2 --zero 3",
        "--nproc-per-node 4 --pp 2 --dp 1 --zero 0 --transport tcp",
    ];
    for (number, mesh) in meshes.iter().enumerate() {
        let name = number.to_string();
        trained(&place, &name, &format!("{mesh} {line}"));
        same_end(&place, &name, "0");
        for step in [4, 8, 10] {
            assert!(state(&place, &name, step) == state(&place, "0", step), "{mesh}: step {step}");
        }
    }
    for (saved, loaded) in [(0, 1), (1, 2), (2, 0)] {
        let name = format!("{saved}-{loaded}");
        dead_after(&place, &saved.to_string(), 4, &name);
        place.succeed(&mut place.brigade(&format!("train --resume {name} {}", meshes[loaded])));
        same_end(&place, &name, "0");
        assert!(state(&place, &name, 10) == state(&place, "0", 10), "{name}: another state");
        let file = format!("{name}.safetensors");
        place.succeed(&mut place.brigade(&format!("checkpoint consolidate {name} --to {file}")));
        assert!(place.read(&file) == place.read("0/model.safetensors"), "{name}");
    }
    // Another number of workers goes on, too, and so does one that synchronises more often; without outer steps their state has no meaning.
    dead_after(&place, "0", 4, "more");
    place.succeed(&mut place.brigade("train --resume more --nproc-per-node 4 --workers 4 --inner-steps 1"));
    dead_after(&place, "0", 4, "sync");
    let sync = "train --resume sync --nproc-per-node 2 --workers 0 --dp 2 --strategy sync --steps 10";
    let done = place.run(&mut place.brigade(sync));
    assert!(done.err.contains("--strategy diloco --set strategy.outer_momentum=0"), "{}", done.err);
    assert!(done.err.contains("of outer steps, which only the strategy (strategy.name, --strategy) that it was saved with can continue"), "{}", done.err);
    // As it says.
    let without = "train --resume sync --nproc-per-node 2 --steps 8 --set strategy.outer_momentum=0";
    place.succeed(&mut place.brigade(without));
    place.succeed(&mut place.brigade(sync));
}

#[test]
fn runs_with_steps_without_an_update_go_on_on_other_meshes() {
    let place = Place::new();
    for (number, mesh) in MESHES.iter().enumerate() {
        let name = number.to_string();
        trained(&place, &name, &format!("{mesh} --sync-every 2"));
        same_end(&place, &name, "0");
        assert_eq!(place.metrics(&name).len(), 5, "a record for each update");
    }
    for (saved, loaded) in [(0, 1), (1, 2), (2, 3), (3, 0)] {
        let name = format!("{saved}-{loaded}");
        dead_after(&place, &saved.to_string(), 4, &name);
        place.succeed(&mut place.brigade(&format!("train --resume {name} {}", MESHES[loaded])));
        same_end(&place, &name, "0");
    }
    let steps =
        |name| place.metrics(name).iter().map(|record| record["step"].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!(steps("0"), [2, 4, 6, 8, 10]);
    let tokens: Vec<u64> =
        place.metrics("0").iter().map(|record| record["tokens"].as_u64().unwrap()).collect();
    assert!(tokens.iter().all(|count| *count == 2 * 8 * 16), "those of both steps: {tokens:?}");
}

/// Harms a folder of a checkpoint, so that it shows in a file.
type Harm = fn(&Path);

fn flip(file: &Path) {
    let mut bytes = fs::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(file, bytes).unwrap();
}

fn shorten(file: &Path, to: u64) {
    File::options().write(true).open(file).unwrap().set_len(to).unwrap();
}

const HARMS: [(&str, &str, Harm); 7] = [
    ("flipped", "rank-00001.safetensors", |step| flip(&step.join("rank-00001.safetensors"))),
    ("cut", "rank-00000.safetensors", |step| shorten(&step.join("rank-00000.safetensors"), 5000)),
    ("swapped", "rank-0000", |step| {
        let [a, b] = ["rank-00000.safetensors", "rank-00001.safetensors"].map(|name| step.join(name));
        renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).unwrap();
    }),
    ("missing", "rank-00001.safetensors", |step| {
        fs::remove_file(step.join("rank-00001.safetensors")).unwrap()
    }),
    ("manifest flipped", "manifest.json", |step| flip(&step.join("manifest.json"))),
    ("manifest empty", "manifest.json", |step| shorten(&step.join("manifest.json"), 0)),
    ("no checksum", "manifest.blake3", |step| fs::remove_file(step.join("manifest.blake3")).unwrap()),
];

#[test]
fn a_damaged_checkpoint_is_passed_over_and_named() {
    let place = Place::new();
    trained(&place, "whole", "--nproc-per-node 2 --zero 3");
    for (number, (what, file, harm)) in HARMS.into_iter().enumerate() {
        let name = number.to_string();
        dead_after(&place, "whole", 8, &name);
        harm(&place.path(&step_folder(&name, 8)));
        let verify = || place.run(&mut place.brigade(&format!("checkpoint verify {name}")));
        let done = verify();
        assert_eq!(done.code, Some(1), "{what}: {}{}", done.out, done.err);
        let lines: Vec<&str> = done.out.lines().collect();
        assert!(lines[0].contains("step 8") && lines[0].ends_with("damaged"), "{what}: {}", done.out);
        assert!(lines[1].contains(file), "{what}: {}", done.out);
        assert!(
            lines.last().is_some_and(|last| last.contains("step 4") && last.ends_with("whole")),
            "{what}: {}",
            done.out
        );

        let done = place.succeed(&mut place.brigade(&format!("train --resume {name}")));
        let passed = done.err.lines().find(|line| line.contains("skipped")).unwrap_or_default();
        assert!(passed.contains("step 8") && passed.contains(file), "{what}: {}", done.err);
        assert!(done.err.contains("resuming from the checkpoint of step 4"), "{what}: {}", done.err);
        same_end(&place, &name, "whole");
        let done = verify();
        assert_eq!(done.code, Some(0), "{what}: {}", done.out);
        assert_eq!(done.out.matches("whole").count(), 3, "{what}: {}", done.out);
    }
}

#[test]
fn nothing_but_damaged_checkpoints_is_an_error_that_names_them_all() {
    let place = Place::new();
    trained(&place, "a", "--nproc-per-node 2");
    flip(&place.path(&step_folder("a", 4)).join("rank-00001.safetensors"));
    shorten(&place.path(&step_folder("a", 8)).join("manifest.json"), 7);
    fs::remove_file(place.path(&step_folder("a", 10)).join("rank-00000.safetensors")).unwrap();
    let before = files(&place.path("a/checkpoints"));
    for line in ["train --resume a", "train --resume a --nproc-per-node 1"] {
        let done = place.run(&mut place.brigade(line));
        assert_eq!(done.code, Some(1), "{}", done.err);
        for part in ["a/checkpoints holds no whole checkpoint", "step 4", "step 8", "step 10"] {
            assert!(done.err.contains(part), "{part}: {}", done.err);
        }
        assert!(files(&place.path("a/checkpoints")) == before, "{line} changed something");
    }
}

/// A run that skipped damaged checkpoints saves earlier steps than theirs: those must not count as newer.
#[test]
fn keeping_one_never_keeps_a_damaged_one() {
    let place = Place::new();
    trained(&place, "a", "--nproc-per-node 2");
    for step in [8, 10] {
        flip(&place.path(&step_folder("a", step)).join("rank-00000.safetensors"));
    }
    fs::remove_file(place.path("a/model.safetensors")).unwrap();
    let done = place.succeed(&mut place.brigade("train --resume a --keep 1 --steps 8"));
    assert!(done.err.contains("resuming from the checkpoint of step 4"), "{}", done.err);
    let done = place.succeed(&mut place.brigade("checkpoint verify a"));
    assert_eq!(done.out.split_whitespace().collect::<Vec<_>>(), ["step", "8", "whole"]);
}

#[test]
fn the_newest_are_kept() {
    let place = Place::new();
    for (line, kept) in
        [("", &[10, 8, 6][..]), ("--keep 1", &[10]), ("--keep 2", &[10, 8]), ("--keep 0", &[10, 8, 6, 4, 2])]
    {
        place.succeed(
            &mut place.train(&format!("--nproc-per-node 2 --checkpoint-every 2 {line} --out a --overwrite")),
        );
        let done = place.succeed(&mut place.brigade("checkpoint list a"));
        let steps: Vec<u64> =
            done.out.lines().map(|line| line.split_whitespace().nth(1).unwrap().parse().unwrap()).collect();
        assert_eq!(steps, kept, "{line}");
        let folders = fs::read_dir(place.path("a/checkpoints")).unwrap().count();
        assert_eq!(folders, kept.len(), "{line}: nothing else is left");
    }
    place.succeed(&mut place.train("--nproc-per-node 2 --checkpoint-every 0 --out none"));
    assert!(!place.path("none/checkpoints").exists());
}

#[test]
fn what_may_change_is_told() {
    let place = Place::new();
    trained(&place, "a", "--nproc-per-node 2");
    dead_after(&place, "a", 4, "b");
    let line = "train --resume b --nproc-per-node 2 --steps 7 --set optimizer.learning_rate=1e-3 --checkpoint-every 2";
    let done = place.succeed(&mut place.brigade(line));
    let told: Vec<&str> = done.err.lines().filter_map(|line| line.strip_prefix("changed: ")).collect();
    assert_eq!(
        told,
        [
            "checkpoint.every: 4 before, now 2",
            "optimizer.learning_rate: 0.002 before, now 0.001",
            "train.steps: 10 before, now 7"
        ],
        "{}",
        done.err
    );
    assert_eq!(place.metrics("b").len(), 7);
    // The configuration of the last start is the run's, and nothing is to be told of a finished run.
    let config = place.text("b/config.toml");
    assert!(config.contains("learning_rate = 0.001") && config.contains("steps = 7"), "{config}");
    let done = place.succeed(&mut place.brigade("train --resume b"));
    assert!(!done.err.contains("changed: ") && done.err.contains("step 7"), "{}", done.err);
}

#[test]
fn what_may_not_change_is_named_and_nothing_is_touched() {
    let place = Place::new();
    trained(&place, "a", "--nproc-per-node 2");
    dead_after(&place, "a", 4, "b");
    let before = files(&place.path("b"));
    for (line, field) in [
        ("--set model.width=32", "model.width = 32"),
        ("--set model.layers=3", "model.layers = 3"),
        ("--sync-every 2", "train.sync_every = 2"),
        ("--set data.tokenizer=bpe:300 --set model.vocabulary=0", "data.tokenizer = \"bpe:300\""),
        ("--seed 3", "train.seed = 3"),
        ("--global-batch-size 16", "train.global_batch_size = 16"),
        ("--set optimizer.name=lion", "optimizer.name = \"lion\""),
        ("--set data.layout=documents", "data.layout = \"documents\""),
    ] {
        for resume in [
            "--resume b",
            "--resume auto --config tiny.toml --data text --out b --checkpoint-every 4 --keep 0",
        ] {
            let done = place.run(&mut place.brigade(&format!("train {resume} --nproc-per-node 2 {line}")));
            assert_eq!(done.code, Some(2), "{line}: {}", done.err);
            assert!(done.err.contains(&format!("brigade: {field} is not possible")), "{line}: {}", done.err);
            assert!(done.err.contains("step 4"), "{line}: {}", done.err);
            assert!(files(&place.path("b")) == before, "{line} touched something");
        }
    }
    same_end(&place, "a", "a");
}

/// That the text is another one only the ranks see.
#[test]
fn other_text_is_refused() {
    let place = Place::new();
    trained(&place, "a", "--nproc-per-node 2");
    dead_after(&place, "a", 4, "b");
    let of_the_run = || {
        let mut files = files(&place.path("b"));
        files.retain(|name, _| {
            !name.starts_with("logs/") && !name.starts_with("flight/") && name != "history.jsonl"
        });
        files
    };
    let before = of_the_run();
    let text = place.text("text/07.rs");
    fs::write(place.path("text/07.rs"), text.replace("usize", "isize")).unwrap();
    let done = place.run(&mut place.brigade("train --resume b --nproc-per-node 2"));
    assert_eq!(done.code, Some(2), "{}", done.err);
    assert!(
        done.err.contains("cannot resume from step 4")
            && done.err.contains("its text (or tokenizer) was different"),
        "{}",
        done.err
    );
    assert!(of_the_run() == before);
    fs::write(place.path("text/07.rs"), text).unwrap();
    place.succeed(&mut place.brigade("train --resume b --nproc-per-node 2"));
    same_end(&place, "b", "a");
}

#[test]
fn nothing_to_go_on_from() {
    let place = Place::new();
    fs::create_dir(place.path("empty")).unwrap();
    trained(&place, "a", "--nproc-per-node 1");
    let refused = |line: &str, said: &str| {
        let done = place.run(&mut place.brigade(line));
        assert_eq!(done.code, Some(2), "{line}: {}", done.err);
        assert!(done.err.contains(said), "{line}: {}", done.err);
    };
    refused(
        "train --resume empty",
        "--resume = empty is not possible: it must be the folder of a run; it holds no config.toml",
    );
    refused("train --resume nowhere", "it holds no config.toml");
    refused("train --resume auto", "--resume auto needs --out");
    refused("train --resume a --out b", "leave out --out b");
    refused("train --resume a --overwrite", "cannot be used with");
    assert!(
        files(&place.path("empty")).is_empty()
            && !place.path("nowhere").exists()
            && !place.path("b").exists()
    );
    fs::copy(place.path("a/config.toml"), place.path("empty/config.toml")).unwrap();
    refused("train --resume empty", "--resume empty: empty/checkpoints holds no checkpoint");
    refused("train --config tiny.toml --data text --out a", "--out a holds results of an earlier run");
}

/// `--resume auto` is what a job says that may be started again at any time.
#[test]
fn auto_begins_goes_on_and_leaves_a_finished_run_as_it_is() {
    let place = Place::new();
    trained(&place, "a", "--nproc-per-node 2");
    let auto = |out: &str| {
        place.train(&format!("--nproc-per-node 2 --checkpoint-every 4 --keep 0 --resume auto --out {out}"))
    };
    let done = place.succeed(&mut auto("b"));
    assert!(!done.err.contains("resuming"), "{}", done.err);
    same_end(&place, "b", "a");
    let done = place.succeed(&mut auto("b"));
    assert!(done.err.contains("resuming from the checkpoint of step 10"), "{}", done.err);
    same_end(&place, "b", "a");
    dead_after(&place, "a", 8, "c");
    let done = place.succeed(&mut auto("c"));
    assert!(done.err.contains("resuming from the checkpoint of step 8"), "{}", done.err);
    same_end(&place, "c", "a");
    // A run that died before its first checkpoint begins again.
    dead_after(&place, "a", 0, "d");
    place.succeed(&mut auto("d"));
    same_end(&place, "d", "a");
}

/// Reading the data up to such a place again would take years.
#[test]
fn going_on_reads_no_data_again() {
    const FAR: u64 = 4_000_000_000_000;
    let place = Place::new();
    trained(&place, "a", "--nproc-per-node 1");
    dead_after(&place, "a", 4, "b");
    let saved = checkpoint(&place, "b", 4);
    let state = TrainState { position: FAR, ..saved.manifest().state.clone() };
    let mut items = Vec::new();
    for unit in &state.units {
        for slot in &unit.slots {
            let mut values = vec![0.0; unit.elements];
            saved.read(&unit.name, slot, 0..unit.elements, &mut values).unwrap();
            items.push(WriteItem { unit: unit.name.clone(), slot: slot.clone(), start: 0, values });
        }
    }
    let storage = open_storage(place.path("b/checkpoints").to_str().unwrap()).unwrap();
    let staging = StagingDir::new(4).unwrap();
    let entry = write_shard(&*storage, &staging, 0, &RankShard { items }).unwrap();
    publish(&*storage, &staging, state, vec![entry]).unwrap();
    place.succeed(&mut place.brigade("train --resume b --nproc-per-node 2"));
    let done = place.succeed(&mut place.brigade("checkpoint show b"));
    assert!(done.out.contains(&format!("{} batches consumed", FAR + 6)), "{}", done.out);
}

#[test]
fn the_best_checkpoint_is_marked_and_kept() {
    let place = Place::new();
    let best = "--set checkpoint.keep_best=true --set checkpoint.best_mode=max --keep 1";
    let done = place.succeed(&mut place.train(&format!("--nproc-per-node 2 --dp 2 {best} --out a")));
    assert!(
        done.out.contains("\nbest                step 4\n"),
        "the first validation has the highest loss: {}",
        done.out
    );
    let list = place.succeed(&mut place.brigade("checkpoint list a")).out;
    let marked: Vec<bool> = list.lines().map(|line| line.contains(", the best")).collect();
    assert_eq!(marked, [false, true], "{list}");
    assert!(list.starts_with("step 10") && list.contains("\nstep 4"), "{list}");
    let shown = place.succeed(&mut place.brigade("checkpoint show a --step 10")).out;
    assert!(shown.contains("best_step       4\n") && shown.contains("\nloss            "), "{shown}");
}

#[test]
fn a_run_that_stopped_early_says_why_and_has_nothing_left_to_do() {
    let place = Place::new();
    let patience = "--set train.early_stopping_patience=1 --set optimizer.learning_rate=0";
    let done = place.succeed(&mut place.train(&format!("--nproc-per-node 1 {patience} --out a")));
    let why = "the validation loss did not improve in 1 validation (train.early_stopping_patience = 1)";
    assert!(done.out.contains(&format!("\nended early         after step 8 of 10: {why}\n")), "{}", done.out);
    let again = place.succeed(&mut place.brigade("train --resume a"));
    let said = format!("the run ended after step 8 of 10, because {why}; nothing is left to do");
    assert!(again.err.contains(&said), "{}", again.err);
    assert_eq!(place.metrics("a").len(), 8);
    let done = place.succeed(&mut place.brigade("train --resume a --epochs 50"));
    assert!(done.err.contains("changed: train.epochs: 0.0 before, now 50.0"), "{}", done.err);
}
