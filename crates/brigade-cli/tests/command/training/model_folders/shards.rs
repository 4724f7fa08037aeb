//! Weights that are written in several files.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::folders::{BYTES, with_llama};
use crate::place::Place;
use crate::runs::files;

const INDEX: &str = "model.safetensors.index.json";

/// The files of weights in a folder, with their bytes.
fn weights(place: &Place, folder: &str) -> BTreeMap<String, Vec<u8>> {
    let all = files(&place.path(folder)).into_iter();
    all.filter(|(name, _)| name.starts_with("model") && !name.contains('/')).collect()
}

#[test]
fn large_weights_are_the_same_files_on_every_mesh() {
    let place = with_llama();
    let line = format!("--model llama --set model.pretrained=false {BYTES} --checkpoint-every 10");
    let train = |name: &str, flags: &str| {
        place.succeed(&mut place.train(&format!("{line} {flags} --out {name}")));
        weights(&place, name)
    };
    let whole = train("whole", "--nproc-per-node 1");
    assert_eq!(whole.keys().collect::<Vec<_>>(), ["model.safetensors"]);
    let small = "--set output.max_shard_size=8KB";
    let alone = train("alone", &format!("{small} --nproc-per-node 1"));
    assert!(alone.len() > 5 && alone.contains_key(INDEX) && !alone.contains_key("model.safetensors"));
    assert!(alone.values().all(|bytes| bytes.len() < 20_000));
    for (name, flags) in
        [("pipeline", "--nproc-per-node 2 --pp 2"), ("zero", "--nproc-per-node 4 --pp 2 --dp 2 --zero 3")]
    {
        assert!(train(name, &format!("{small} {flags}")) == alone, "{name}");
    }
    let index: Value = serde_json::from_slice(&alone[INDEX]).unwrap();
    let parameters: usize = whole["model.safetensors"].len() / 4;
    let total = index["metadata"]["total_parameters"].as_u64().unwrap() as usize;
    assert!(total < parameters && parameters < total + 1000, "{total}");

    // What reads a model reads it, and the other commands write the same.
    let text = |model: &str| {
        let line = format!("generate --model {model} --prompt fn --tokens 10 --temperature 0");
        place.succeed(&mut place.brigade(&line)).out
    };
    assert_eq!(text("alone"), text("whole"));
    place.succeed(&mut place.brigade("checkpoint consolidate whole --max-shard-size 8KB --overwrite"));
    assert!(weights(&place, "whole") == alone);
    place.succeed(&mut place.brigade("checkpoint consolidate whole --overwrite"));
    assert!(weights(&place, "whole") == whole);
    let export = |line: &str, out: &str| {
        place.succeed(&mut place.brigade(&format!("export {line} --out {out}")));
        let config: Value = serde_json::from_str(&place.text(&format!("{out}/config.json"))).unwrap();
        let dtype = config.get("torch_dtype").or(config.get("dtype")).cloned();
        (weights(&place, out), dtype.unwrap())
    };
    assert!(export("alone", "joined").0 == whole);
    assert!(export("whole --max-shard-size 8KB", "cut").0 == alone);
    let (half, dtype) = export("alone --dtype bf16 --max-shard-size 8KB", "half");
    assert_eq!(dtype, json!("bfloat16"));
    assert!(half.len() < alone.len());
    assert!(export("half --dtype bf16", "again") == export("alone --dtype bf16", "once"));
    let names = std::fs::read_dir(place.path(".")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(names.into_iter().all(|name| !name.to_string_lossy().ends_with(".part")));

    // Weights of another form take the place of earlier ones, and nothing of those is left.
    let again = |flags: &str| train("alone", &format!("{flags} --nproc-per-node 1 --overwrite"));
    assert!(again("") == whole);
    assert!(again(small) == alone);
    let over = place.run(&mut place.train(&format!("{line} {small} --nproc-per-node 1 --out alone")));
    assert!(
        over.code != Some(0) && over.err.contains("alone holds results of an earlier run"),
        "{}",
        over.err
    );
    place.succeed(
        &mut place.train(&format!("--model alone {BYTES} --nproc-per-node 2 --pp 2 --steps 1 --out more")),
    );

    for (line, said) in [
        ("export whole --out whole", "--out whole has files in it"),
        ("export whole --out new --dtype int8", "it must be fp32, bf16 or fp16"),
        ("export whole --out new --max-shard-size 5", ""),
        ("export whole --out other --max-shard-size 0GB", "give one like 5GB"),
    ] {
        let done = place.run(&mut place.brigade(line));
        assert_eq!(done.code == Some(0), said.is_empty(), "{line}: {}", done.err);
        assert!(done.err.contains(said), "{line}: {}", done.err);
        assert!(!place.path("other").exists());
    }
}
