//! What a checkpoint's folder holds.

use brigade_checkpoint::{
    FORMAT_VERSION, FileMetadata, ItemMetadata, Manifest, PARAMETERS, ParameterMetadata, Scalar, TrainState,
    UnitMetadata, frozen_file, fuzzing, rank_file,
};
use rand_chacha::ChaCha8Rng;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use serde_json::json;

use crate::target::{Bound, Limit, Target, bare};

/// Bytes of a safetensors file's length field.
const PREFIX: usize = 8;

/// The description of a checkpoint.
///
/// Counted as parsed: it is one, and complete. Bound: free JSON (the run's settings) takes the most memory for its text:
/// a map of one key, 8 bytes as text, is a node with room for eleven, and lists grow by doubling.
pub const MANIFEST: Target = Target {
    name: "manifest",
    run: fuzzing::manifest,
    parsed: |input| Manifest::parse(input, brigade_checkpoint::MANIFEST).is_ok(),
    bound: Bound {
        peak: Limit { fixed: 64 << 10, per_byte: 192 },
        total: Limit { fixed: 64 << 10, per_byte: 512 },
    },
    payloads: || [manifest(1, 1), manifest(3, 2)].iter().filter_map(|m| serde_json::to_vec(m).ok()).collect(),
    envelope: bare,
};

/// The header of a rank's file, with the data behind it.
///
/// A payload is the JSON object. Counted as parsed: the library `safetensors` reads it. Bound: a multiple of the object.
pub const SAFETENSORS: Target = Target {
    name: "safetensors",
    run: fuzzing::safetensors_header,
    parsed: |input| SafeTensors::deserialize(input).is_ok(),
    bound: Bound {
        peak: Limit { fixed: 64 << 10, per_byte: 16 },
        total: Limit { fixed: 64 << 10, per_byte: 64 },
    },
    payloads: || {
        vec![header(&[("block.0/parameters/0", 6)]), header(&[("a/b/0", 1), ("a/b/1", 300), ("ä/c/0", 7)])]
    },
    envelope: whole_file,
};

/// A checkpoint of some units on some ranks: each unit has two slots, cut in one piece a rank. What is not trained is in files of its own.
fn manifest(units: usize, ranks: usize) -> Manifest {
    let (name, part) = (|unit| format!("block.{unit}"), 12);
    let unit = |unit| UnitMetadata {
        name: name(unit),
        elements: part * ranks,
        trainable: unit != 1,
        parameters: vec![
            ParameterMetadata { name: format!("{}.weight", name(unit)), shape: vec![2, part / 4], start: 0 },
            ParameterMetadata { name: format!("{}.bias", name(unit)), shape: vec![], start: part - 1 },
        ],
        slots: vec![PARAMETERS.into(), "momentum".into()],
        scalars: [("time".into(), Scalar::Int(5)), ("scale".into(), Scalar::Float(f64::NAN))].into(),
    };
    let file = |rank, frozen: bool| {
        let header = 256;
        let mut items = vec![];
        for unit in (0..units).filter(|unit| (*unit == 1) == frozen) {
            for slot in [PARAMETERS, "momentum"] {
                let offset = header + (items.len() * part * 4) as u64;
                items.push(ItemMetadata {
                    unit: name(unit),
                    slot: slot.into(),
                    start: part * rank,
                    elements: part,
                    offset,
                });
            }
        }
        FileMetadata {
            name: if frozen { frozen_file(rank) } else { rank_file(rank) },
            rank,
            bytes: header + (items.len() * part * 4) as u64,
            blake3: "0123456789abcdef".repeat(4),
            chunks: "01234567".into(),
            items,
        }
    };
    let numbers = |names: [&str; 2]| names.map(|name| (name.to_owned(), 2)).into();
    let state = TrainState {
        position: 50,
        mesh: numbers(["dp", "pp"]),
        settings: json!({"train": {"steps": 100, "rate": 1e-3}, "stages": [1, [2.5, null]], "name": "gpt"}),
        facts: [("tokens".to_owned(), "f".repeat(16))].into(),
        counters: numbers(["rollbacks", "skipped"]),
        units: (0..units).map(unit).collect(),
    };
    Manifest {
        version: FORMAT_VERSION,
        step: 50,
        created: 1_700_000_000,
        state,
        files: (0..ranks)
            .flat_map(|rank| [(rank, true), (rank, false)])
            .map(|(rank, frozen)| file(rank, frozen))
            .filter(|file| !file.items.is_empty())
            .collect(),
    }
}

/// The JSON object of a file with these tensors: name, and number of elements.
fn header(tensors: &[(&str, usize)]) -> Vec<u8> {
    let data = vec![0; 4096];
    let views = tensors.iter().filter_map(|(name, size)| {
        Some((*name, TensorView::new(Dtype::F32, vec![*size], data.get(..size * 4)?).ok()?))
    });
    let file = serialize(views, None).unwrap_or_default();
    let length = file.first_chunk::<PREFIX>().map_or(0, |prefix| u64::from_le_bytes(*prefix) as usize);
    file.get(PREFIX..PREFIX + length).unwrap_or_default().to_vec()
}

/// The object between its length and as many bytes of data as it says (few thousand at most).
fn whole_file(_: &mut ChaCha8Rng, payloads: &[Vec<u8>]) -> Vec<u8> {
    let Some(json) = payloads.first() else { return vec![] };
    let text = String::from_utf8_lossy(json);
    let ends = text.split("\"data_offsets\":[").skip(1).filter_map(|rest| {
        let (_, end) = rest.split_once(']')?.0.split_once(',')?;
        end.parse::<usize>().ok()
    });
    let data = ends.max().unwrap_or(0).min(4096);
    [&(json.len() as u64).to_le_bytes()[..], json, &vec![0; data]].concat()
}
