//! `--checkpoint-every`, `--resume`, `--keep` and `brigade checkpoint`: what is saved, and what can be done with it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use brigade::checkpoints::{Checkpoint, Scalar, open_storage};

use crate::place::Place;

/// The meshes that save and load, each with all its flags.
const MESHES: [&str; 4] = [
    "--nproc-per-node 1 --pp 1 --dp 1 --zero 0",
    "--nproc-per-node 4 --pp 1 --dp 4 --zero 3",
    "--nproc-per-node 4 --pp 2 --dp 2 --zero 1",
    "--nproc-per-node 4 --pp 4 --dp 1 --zero 0",
];

const ONE: &str = MESHES[0];

/// A run of ten steps with checkpoints of steps 4, 8 and 10.
fn trained(place: &Place, name: &str, line: &str) {
    place.succeed(&mut place.train(&format!("{line} --checkpoint-every 4 --keep 0 --out {name}")));
}

fn step_folder(run: &str, step: u64) -> String {
    format!("{run}/checkpoints/step-{step:08}")
}

/// Copies a folder with everything in it.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

/// The run as it was when it had died after the checkpoint of `step`.
fn dead_after(place: &Place, run: &str, step: u64, name: &str) {
    copy(&place.path(run), &place.path(name));
    fs::remove_file(place.path(&format!("{name}/model.safetensors"))).unwrap();
    for later in [4, 8, 10].into_iter().filter(|later| *later > step) {
        fs::remove_dir_all(place.path(&step_folder(name, later))).unwrap();
    }
}

/// All that a checkpoint holds of the state of training, in bits: slots and scalars of each unit.
fn state(place: &Place, run: &str, step: u64) -> BTreeMap<String, Vec<u64>> {
    let storage = open_storage(place.path(&format!("{run}/checkpoints")).to_str().unwrap()).unwrap();
    let checkpoint = Checkpoint::open(storage, step).unwrap();
    let mut state = BTreeMap::new();
    for unit in &checkpoint.manifest().state.units {
        for slot in &unit.slots {
            let mut values = vec![0.0; unit.elements];
            checkpoint.read(&unit.name, slot, 0..unit.elements, &mut values).unwrap();
            let bits = values.iter().map(|value| value.to_bits().into()).collect();
            state.insert(format!("{}/{slot}", unit.name), bits);
        }
        for (name, scalar) in &unit.scalars {
            let bits = match *scalar {
                Scalar::Int(value) => value.cast_unsigned(),
                Scalar::Float(value) => value.to_bits(),
            };
            state.insert(format!("{}.{name}", unit.name), vec![bits]);
        }
    }
    assert!(state.values().map(Vec::len).sum::<usize>() > 3 * 10_960, "parameters and two moments");
    state
}

/// Step, loss and gradient norm of each step of a run, and validation losses.
fn course(place: &Place, run: &str) -> Vec<[serde_json::Value; 4]> {
    let keys = ["step", "loss", "grad_norm", "validation_loss"];
    place.metrics(run).iter().map(|record| keys.map(|key| record[key].clone())).collect()
}

#[track_caller]
fn same_end(place: &Place, run: &str, reference: &str) {
    let weights = |run: &str| place.read(&format!("{run}/model.safetensors"));
    assert!(weights(run) == weights(reference), "{run}: other weights than {reference}");
    assert_eq!(course(place, run), course(place, reference), "{run}");
    assert!(state(place, run, 10) == state(place, reference, 10), "{run}: another state than {reference}");
}

#[test]
fn every_mesh_goes_on_from_the_checkpoint_of_every_mesh() {
    let place = Place::new();
    for (saved, mesh) in MESHES.iter().enumerate() {
        trained(&place, &format!("{saved}"), mesh);
        for step in [4, 8] {
            assert!(state(&place, &format!("{saved}"), step) == state(&place, "0", step), "{mesh}: step {step}");
        }
        same_end(&place, &format!("{saved}"), "0");
    }
    for (saved, from) in MESHES.iter().enumerate() {
        for (loaded, mesh) in MESHES.iter().enumerate() {
            let name = format!("{saved}-{loaded}");
            dead_after(&place, &format!("{saved}"), 4, &name);
            let done = place.succeed(&mut place.brigade(&format!("train --resume {name} {mesh}")));
            assert!(done.err.contains("going on from the checkpoint of step 4"), "{from} on {mesh}: {}", done.err);
            same_end(&place, &name, "0");
            let file = format!("{name}.safetensors");
            place.succeed(&mut place.brigade(&format!("checkpoint consolidate {name} --to {file}")));
            assert!(place.read(&file) == place.read("0/model.safetensors"), "{from} on {mesh}");
        }
    }
}
