//! The jobs that `cargo xtask check-manifests` compares with published definitions.

use std::fs;

use serde_json::{Value, json};

use crate::place::Place;

/// The words of a list.
fn words(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect()
}

#[test]
fn the_jobs_that_are_compared_with_published_definitions_can_be_rendered() {
    let place = Place::new();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../brigade-submit/tests/check_manifests.py");
    let script = fs::read_to_string(script).unwrap();
    let list = |name: &str| -> Value {
        let line = script.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
        serde_json::from_str(line.unwrap_or_else(|| panic!("{name}"))).unwrap()
    };
    let (nodes, common) = (list("NODES"), list("COMMON"));
    for (systems, gpus, options, command) in [
        (list("SYSTEMS"), list("GPUS"), list("OPTIONS"), list("COMMAND")),
        (json!(["vertex"]), list("VERTEX_GPUS"), list("VERTEX_OPTIONS"), list("VERTEX_COMMAND")),
    ] {
        for system in words(&systems) {
            for gpus in gpus.as_array().unwrap() {
                for nodes in words(&nodes) {
                    let target = [words(gpus), words(&common), words(&options)].concat().join(" ");
                    let command = words(&command).join(" ");
                    let line = format!("--to {system} --nodes {nodes} {target} --render jobs -- {command}");
                    place.succeed(&mut place.brigade(&format!("submit {line}")));
                }
            }
        }
    }
}
