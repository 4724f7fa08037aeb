//! `brigade checkpoint consolidate`.

use std::fs;

use brigade::checkpoints::{RankShard, StagingDir, WriteItem, open_storage, publish, write_shard};

use crate::place::{Place, Running};
use crate::runs::{checkpoint, trained};

#[test]
fn consolidations_at_once_each_write_their_own_file() {
    let place = Place::new();
    trained(&place, "a", "--nproc-per-node 1");
    let consolidate = |step: u64, to: &str| {
        place.brigade(&format!("checkpoint consolidate a --step {step} --overwrite --to {to}"))
    };
    let alone = [4, 8].map(|step| {
        place.succeed(&mut consolidate(step, "alone"));
        place.read("alone")
    });
    fs::create_dir(place.path("b")).unwrap();
    for _ in 0..20 {
        let at_once = [(4, "b/w.4"), (8, "b/w.8"), (4, "b/w"), (8, "b/w")];
        let running = at_once.map(|(step, to)| place.start(&mut consolidate(step, to)));
        for done in running.map(Running::wait) {
            assert_eq!(done.code, Some(0), "{}", done.err);
        }
        assert!(place.read("b/w.4") == alone[0] && place.read("b/w.8") == alone[1]);
        assert!(alone.contains(&place.read("b/w")));
        assert_eq!(fs::read_dir(place.path("b")).unwrap().count(), 3);
    }
}

/// Adds a further model to the newest checkpoint of a run: a copy of the first one.
fn with_critic(place: &Place, run: &str) {
    let saved = checkpoint(place, run, 10);
    let (mut state, mut items) = (saved.manifest().state.clone(), Vec::new());
    let file_names = state.settings["file_names"].clone();
    state.settings["further"] = serde_json::json!({ "critic": file_names });
    state.counters.insert("steps/critic".into(), 10);
    for unit in state.units.clone() {
        let mut copy = unit.clone();
        copy.name.insert_str(0, "critic/");
        copy.parameters.iter_mut().for_each(|parameter| parameter.name.insert_str(0, "critic/"));
        for slot in &unit.slots {
            let mut values = vec![0.0; unit.elements];
            saved.read(&unit.name, slot, 0..unit.elements, &mut values).unwrap();
            for unit in [&unit.name, &copy.name] {
                items.push(WriteItem {
                    unit: unit.clone(),
                    slot: slot.clone(),
                    start: 0,
                    values: values.clone(),
                });
            }
        }
        state.units.push(copy);
    }
    let storage = open_storage(place.path(&format!("{run}/checkpoints")).to_str().unwrap()).unwrap();
    let staging = StagingDir::new(10).unwrap();
    let entry = write_shard(&*storage, &staging, 0, &RankShard { items }).unwrap();
    publish(&*storage, &staging, state, vec![entry]).unwrap();
}

#[test]
fn each_model_has_a_file_of_its_own() {
    let place = Place::new();
    trained(&place, "a", "--nproc-per-node 1");
    with_critic(&place, "a");
    let consolidate = "checkpoint consolidate a --to w.safetensors";
    let done = place.succeed(&mut place.brigade(consolidate));
    let lines: Vec<&str> = done.out.lines().collect();
    let [first, further] = lines[..] else { panic!("{}", done.out) };
    let count = first.strip_prefix("w.safetensors: ").unwrap();
    assert_eq!(further, format!("w-critic.safetensors: {count}"));
    for file in ["w.safetensors", "w-critic.safetensors"] {
        assert!(place.read(file) == place.read("a/model.safetensors"), "{file}");
    }
    for (line, said) in [
        (
            "consolidate a --to nodir/x.safetensors",
            "--to nodir/x.safetensors: the folder nodir does not exist",
        ),
        ("show a --step 99", "no checkpoint of step 99"),
        ("verify a --step 99", "no checkpoint of step 99"),
    ] {
        let done = place.run(&mut place.brigade(&format!("checkpoint {line}")));
        assert!(done.code == Some(2) && done.err.contains(said), "{line}: {}", done.err);
    }
    fs::remove_file(place.path("w.safetensors")).unwrap();
    let refused = place.run(&mut place.brigade(consolidate));
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    assert!(
        refused.err.contains("w-critic.safetensors already exists; give another file"),
        "{}",
        refused.err
    );
    assert!(!place.path("w.safetensors").exists());
    place.succeed(&mut place.brigade(&format!("{consolidate} --overwrite")));
    assert!(place.read("w.safetensors") == place.read("a/model.safetensors"));
}

#[test]
fn weights_in_several_files_are_not_hidden_by_older_ones_in_one() {
    let place = Place::new();
    trained(&place, "a", "--nproc-per-node 1");
    let consolidate = |flags: &str| place.brigade(&format!("checkpoint consolidate a {flags}"));
    place.succeed(&mut consolidate("--overwrite --max-shard-size 4KB"));
    let index = place.path("a/model.safetensors.index.json");
    assert!(index.exists() && !place.path("a/model.safetensors").exists());
    let refused = place.run(&mut consolidate("--step 4"));
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    assert!(refused.err.contains("a/model.safetensors.index.json already exists; "), "{}", refused.err);
    place.succeed(&mut consolidate("--step 4 --overwrite"));
    let of_weights = |name: &str| name.starts_with("model") && name.contains("safetensors");
    let names = fs::read_dir(place.path("a")).unwrap().map(|entry| entry.unwrap().file_name());
    let names: Vec<_> =
        names.filter_map(|name| name.into_string().ok()).filter(|name| of_weights(name)).collect();
    assert_eq!(names, ["model.safetensors"]);
}

#[test]
fn a_checkpoint_becomes_the_folder_of_a_model() {
    let place = Place::new();
    trained(&place, "a", "--nproc-per-node 1");
    let of_step = "checkpoint consolidate a --step 4";
    place.succeed(&mut place.brigade(&format!("{of_step} --dtype bf16 --to w")));
    place.succeed(&mut place.brigade(&format!("{of_step} --dtype bf16 --out b")));
    let dtype = |folder: &str| {
        let config = place.text(&format!("{folder}/config.json"));
        serde_json::from_str::<serde_json::Value>(&config).unwrap()["torch_dtype"].clone()
    };
    assert!(place.read("b/model.safetensors") == place.read("w"));
    assert!(dtype("b") == "bfloat16" && dtype("a") != "bfloat16");
    assert!(place.read("b/tokenizer.json") == place.read("a/tokenizer.json"));
    assert!(!place.path("b/metrics.jsonl").exists());
    place.succeed(&mut place.brigade("generate --model b --tokens 3"));
    // In the run's own folder, its configuration follows.
    place.succeed(&mut place.brigade(&format!("{of_step} --dtype bf16 --overwrite")));
    assert!(place.read("a/model.safetensors") == place.read("w") && dtype("a") == "bfloat16");
    for (line, said) in [
        ("a --out b", "--out b has files in it; give another folder"),
        ("a/checkpoints --out c", "the folder of a model needs a config.json, and a/checkpoints has none"),
        ("a --out c --to d", "cannot be used with"),
    ] {
        let done = place.run(&mut place.brigade(&format!("checkpoint consolidate {line}")));
        assert!(done.code == Some(2) && done.err.contains(said), "{line}: {}", done.err);
        assert!(!place.path("c").exists());
    }
}
