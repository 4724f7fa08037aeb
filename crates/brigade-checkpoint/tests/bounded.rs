//! Parsing never takes memory beyond a multiple of what is parsed, and never panics.
#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use brigade_checkpoint::{
    LocalStorage, MANIFEST, Manifest, PARAMETERS, ParameterMetadata, RankShard, StagingDir, TrainState,
    UnitMetadata, WriteItem, fuzzing, publish, rank_file, write_shard,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// Counts what is allocated; the test of this file is the only one in its process.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is handed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that parsing may take, for input of a length.
fn bound(length: usize) -> usize {
    256 * length + 64 * 1024
}

fn assert_bounded(name: &str, parse: fn(&[u8]), bytes: &[u8]) -> Result<(), TestCaseError> {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    parse(bytes);
    let taken = PEAK.load(Ordering::Relaxed).saturating_sub(before);
    prop_assert!(taken <= bound(bytes.len()), "{name}: {taken} bytes taken for {} bytes", bytes.len());
    Ok(())
}

/// A real manifest and a real file.
fn valid() -> (Vec<u8>, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let storage = LocalStorage::new(folder.path());
    let staging = StagingDir::new(1).unwrap();
    let item = |start| WriteItem { unit: "a".into(), slot: PARAMETERS.into(), start, values: vec![0.5; 5] };
    let entry = write_shard(&storage, &staging, 0, &RankShard { items: vec![item(0), item(5)] }).unwrap();
    let unit = UnitMetadata {
        name: "a".into(),
        elements: 10,
        trainable: true,
        parameters: vec![ParameterMetadata { name: "w".into(), shape: vec![2, 5], start: 0 }],
        slots: vec![PARAMETERS.into()],
        scalars: Default::default(),
    };
    publish(&storage, &staging, TrainState { units: vec![unit], ..TrainState::default() }, vec![entry])
        .unwrap();
    let read = |name: &str| std::fs::read(folder.path().join("step-00000001").join(name)).unwrap();
    (read(MANIFEST), read(&rank_file(0)))
}

/// What replaces a part of a valid file: bytes, or a number that is too large somewhere.
fn replacement() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..4),
        prop::sample::select(vec![
            "18446744073709551615",
            "9223372036854775807",
            "4611686018427387904",
            "-1",
            "1e308",
            "null",
            "[]",
            "{}",
            "\"\"",
            "[[[[[[[[",
            "\u{e9}",
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
    ]
}

fn mutated(valid: &[u8], changes: &[(u16, u8, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = valid.to_vec();
    for (at, removed, inserted) in changes {
        let at = usize::from(*at) % (bytes.len() + 1);
        let end = (at + usize::from(*removed) % 12).min(bytes.len());
        bytes.splice(at..end, inserted.iter().copied());
    }
    bytes
}

#[test]
fn parsers_are_bounded_and_do_not_panic() {
    let (manifest, file) = valid();
    Manifest::parse(&manifest, MANIFEST).unwrap();
    let mut runner = TestRunner::new(Config { cases: 4000, failure_persistence: None, ..Config::default() });
    let changes = prop::collection::vec((any::<u16>(), any::<u8>(), replacement()), 0..4);
    let input = (prop::collection::vec(any::<u8>(), 0..200), changes);
    let outcome = runner.run(&input, |(arbitrary, changes)| {
        for bytes in [&arbitrary, &mutated(&manifest, &changes), &mutated(&file, &changes)] {
            assert_bounded("manifest", fuzzing::manifest, bytes)?;
            assert_bounded("header", fuzzing::safetensors_header, bytes)?;
        }
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    // Much structure in few bytes.
    for text in ["[".repeat(100_000), "[],".repeat(100_000), "{\"a\":".repeat(100_000)] {
        for json in [text.clone(), format!("{{\"version\":1,\"state\":{{\"settings\":[{text}1]}}}}")] {
            assert_bounded("manifest", fuzzing::manifest, json.as_bytes()).unwrap();
            let header = [&(json.len() as u64).to_le_bytes(), json.as_bytes()].concat();
            assert_bounded("header", fuzzing::safetensors_header, &header).unwrap();
        }
    }
}
