//! Runs with checkpoints, and whether two of them came to the same.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use brigade::checkpoints::{Checkpoint, Scalar, open_storage};

use crate::place::Place;

/// A run of ten steps, with all of its checkpoints: of steps 4, 8 and 10.
pub fn trained(place: &Place, name: &str, line: &str) {
    place.succeed(&mut place.train(&format!("{line} --checkpoint-every 4 --keep 0 --out {name}")));
}

/// The folder of a checkpoint.
pub fn step_folder(run: &str, step: u64) -> String {
    format!("{run}/checkpoints/step-{step:08}")
}

/// The step of the newest checkpoint that is visible.
pub fn newest(place: &Place, run: &str) -> Option<u64> {
    let entries = fs::read_dir(place.path(&format!("{run}/checkpoints"))).ok()?;
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix("step-")?.parse().ok()).max()
}

/// A copy of a run of [`trained`] as it would be had it died after the checkpoint of `step`.
pub fn dead_after(place: &Place, run: &str, step: u64, name: &str) {
    copy(&place.path(run), &place.path(name));
    fs::remove_file(place.path(&format!("{name}/model.safetensors"))).unwrap();
    for later in [4, 8, 10].into_iter().filter(|later| *later > step) {
        fs::remove_dir_all(place.path(&step_folder(name, later))).unwrap();
    }
}

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

/// All files in a folder, with their content.
pub fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => {
                files.extend(
                    self::files(&entry.path())
                        .into_iter()
                        .map(|(inner, content)| (format!("{name}/{inner}"), content)),
                );
            }
            false => drop(files.insert(name, fs::read(entry.path()).unwrap())),
        }
    }
    files
}

/// A checkpoint of a run.
pub fn checkpoint(place: &Place, run: &str, step: u64) -> Checkpoint {
    let storage = open_storage(place.path(&format!("{run}/checkpoints")).to_str().unwrap()).unwrap();
    Checkpoint::open(storage, step).unwrap()
}

/// All that a checkpoint holds of the state of training, in bits: slots and scalars of each unit.
pub fn state(place: &Place, run: &str, step: u64) -> BTreeMap<String, Vec<u64>> {
    let checkpoint = checkpoint(place, run, step);
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

/// Step, loss, gradient norm and validation loss of each step of a run.
fn course(place: &Place, run: &str) -> Vec<[serde_json::Value; 4]> {
    let keys = ["step", "loss", "grad_norm", "validation_loss"];
    place.metrics(run).iter().map(|record| keys.map(|key| record[key].clone())).collect()
}

/// Checks that a run ended with the bytes of weights of another one, and took the same steps, each once.
#[track_caller]
pub fn same_end(place: &Place, run: &str, reference: &str) {
    let weights = |run: &str| place.read(&format!("{run}/model.safetensors"));
    assert!(weights(run) == weights(reference), "{run}: other weights than {reference}");
    assert_eq!(course(place, run), course(place, reference), "{run}");
}
