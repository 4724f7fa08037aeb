//! What is written by some ranks is read by others, to the bit.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex};

use brigade_checkpoint::{
    CHUNK_BYTES, Checkpoint, Error, LocalStorage, MANIFEST, MANIFEST_HASH, PARAMETERS, StagingDir, list,
    open_storage, publish, rank_file, write_shard,
};
use proptest::prelude::*;

use crate::sample::{Sample, bits, samples};
use crate::storages::{Behaviour, Custom, Fault, Faulty, kinds};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_ranks_read_what_any_ranks_wrote(
        sample in samples(),
        written in (prop::collection::vec(any::<u8>(), 0..6), 1usize..7),
        read in prop::collection::vec(any::<u8>(), 0..6),
    ) {
        for (kind, storage, _folder) in kinds() {
            let staging = StagingDir::new(50).unwrap();
            let shards = sample.cut(&written.0, written.1);
            let mut entries = Vec::new();
            // The last rank is the first to be done.
            for (rank, shard) in shards.iter().enumerate().rev() {
                entries.push(write_shard(&*storage, &staging, rank, shard).unwrap());
            }
            publish(&*storage, &staging, sample.state.clone(), entries).unwrap();

            let checkpoint = Checkpoint::open(storage, 50).unwrap();
            prop_assert_eq!(&checkpoint.manifest().state, &sample.state, "{}", kind);
            prop_assert_eq!(checkpoint.verify(), vec![]);
            for shard in sample.cut(&read, 3) {
                for item in shard.items {
                    let mut values = vec![0.0; item.values.len()];
                    let range = item.start..item.start + values.len();
                    checkpoint.read(&item.unit, &item.slot, range, &mut values).unwrap();
                    prop_assert_eq!(bits(&values), bits(&item.values));
                }
            }
        }
    }
}

#[test]
fn parameters_come_in_the_order_of_the_model() {
    let sample = Sample::new(&[10, 7, 5], 1);
    for (kind, storage, _folder) in kinds() {
        sample.save(&*storage, 3, 2).unwrap();
        let checkpoint = Checkpoint::open(storage, 3).unwrap();
        let mut names = Vec::new();
        for stored in checkpoint.parameters() {
            let parameter = stored.parameter;
            let range = parameter.start..parameter.start + parameter.elements().unwrap();
            let values =
                |slot: &str| bits(&sample.values[&(stored.unit.name.clone(), slot.into())][range.clone()]);
            assert_eq!(bits(&stored.read().unwrap()), values(PARAMETERS), "{kind}");
            if stored.unit.trainable {
                assert_eq!(bits(&stored.read_slot("moment_2").unwrap()), values("moment_2"), "{kind}");
            } else {
                let error = stored.read_slot("moment_2").unwrap_err().to_string();
                assert_eq!(error, "step-00000003 has no block.2/moment_2 (there are: block.2/parameters)");
            }
            names.push(parameter.name.clone());
        }
        let expected: Vec<_> =
            (0..3).flat_map(|i| [format!("block.{i}.weight"), format!("block.{i}.bias")]).collect();
        assert_eq!(names, expected);
    }
}

#[test]
fn files_are_safetensors_and_the_same_each_time() {
    let folder = tempfile::tempdir().unwrap();
    let storage = LocalStorage::new(folder.path());
    let sample = Sample::new(&[100, 30], 2);
    sample.save(&storage, 1, 3).unwrap();
    sample.save(&storage, 2, 3).unwrap();
    for (rank, shard) in sample.cut(&[40, 150], 3).iter().enumerate() {
        let read = |step: &str| fs::read(folder.path().join(step).join(rank_file(rank))).unwrap();
        let bytes = read("step-00000001");
        assert_eq!(bytes, read("step-00000002"));
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let items: Vec<_> = shard.items.iter().filter(|item| !item.values.is_empty()).collect();
        assert_eq!(tensors.len(), items.len());
        for item in items {
            let name = format!("{}/{}/{}", item.unit, item.slot, item.start);
            let tensor = tensors.tensor(&name).unwrap();
            assert_eq!(tensor.shape(), [item.values.len()]);
            let values: Vec<u8> = item.values.iter().flat_map(|value| value.to_le_bytes()).collect();
            assert_eq!(tensor.data(), values);
        }
    }
    let line = fs::read_to_string(folder.path().join("step-00000001").join(MANIFEST_HASH)).unwrap();
    let (hash, name) = line.split_once("  ").unwrap();
    let manifest = fs::read(folder.path().join("step-00000001").join(MANIFEST)).unwrap();
    assert_eq!((hash, name), (&*blake3::hash(&manifest).to_hex(), "manifest.json\n"));
}

/// Bytes that were read at each offset of each file.
#[derive(Debug, Default)]
struct Reads(Mutex<BTreeMap<(String, u64), usize>>);

impl Behaviour for Reads {
    fn before_read(&self, name: &str, offset: u64, bytes: usize) {
        if name.starts_with("rank-") {
            let mut reads = self.0.lock().unwrap();
            for chunk in 0..bytes.div_ceil(CHUNK_BYTES) as u64 {
                *reads.entry((name.into(), offset / CHUNK_BYTES as u64 + chunk)).or_default() += 1;
            }
        }
    }
}

#[test]
fn a_reader_reads_each_chunk_at_most_once() {
    let folder = tempfile::tempdir().unwrap();
    let storage = Arc::new(Custom::new(Arc::new(LocalStorage::new(folder.path())), Reads::default()));
    // Units of some 1.3 chunks, in 5 files of several chunks; unit 2 has but one slot.
    let sample = Sample::new(&[350_000, 350_001, 350_007], 3);
    sample.save(&*storage, 1, 5).unwrap();

    let readers = 3;
    for rank in 0..readers {
        let checkpoint = Checkpoint::open(storage.clone(), 1).unwrap();
        storage.behaviour().0.lock().unwrap().clear();
        let mut wanted = 0;
        for ((unit, slot), values) in &sample.values {
            let range = values.len() * rank / readers..values.len() * (rank + 1) / readers;
            let mut read = vec![0.0; range.len()];
            checkpoint.read(unit, slot, range.clone(), &mut read).unwrap();
            assert_eq!(bits(&read), bits(&values[range.clone()]));
            wanted += 4 * range.len();
        }
        let reads = storage.behaviour().0.lock().unwrap();
        assert!(reads.values().all(|&times| times == 1), "{reads:?}");
        // Each of the 7 ranges may lie in 3 items, with parts of chunks around it that were not wanted.
        assert!(
            reads.len() * CHUNK_BYTES < wanted + 7 * 3 * 2 * CHUNK_BYTES,
            "{} chunks for {wanted} bytes",
            reads.len()
        );
    }
}

#[test]
fn large_files_are_written_and_read_in_parts() {
    // One file of 18 MB: above the size of an upload's part, and of what is read at once.
    let sample = Sample::new(&[1_500_000], 5);
    for (kind, storage, _folder) in kinds() {
        for after in [2, 12] {
            let faulty = Faulty::new(storage.clone(), after, Fault::Fail);
            sample.save(&faulty, 1, 1).unwrap_err();
            assert!(storage.unpublished().unwrap().is_empty(), "{kind}");
        }
        sample.save(&*storage, 1, 1).unwrap();
        let checkpoint = Checkpoint::open(storage, 1).unwrap();
        assert!(sample.is_in(&checkpoint).unwrap(), "{kind}");
        assert_eq!(checkpoint.verify(), vec![], "{kind}");
    }
}

#[test]
fn more_files_than_are_kept_open() {
    let (_, storage, _folder) = kinds().swap_remove(0);
    let sample = Sample::new(&[300, 300], 6);
    let cuts: Vec<_> = (1..=255).collect();
    let staging = StagingDir::new(1).unwrap();
    let shards = sample.cut(&cuts, 140);
    let entries =
        (0..).zip(&shards).map(|(rank, shard)| write_shard(&*storage, &staging, rank, shard).unwrap());
    publish(&*storage, &staging, sample.state.clone(), entries.collect()).unwrap();
    assert!(sample.is_in(&Checkpoint::open(storage, 1).unwrap()).unwrap());
}

#[test]
fn what_is_not_there_is_said() {
    let (_, storage, _folder) = kinds().swap_remove(0);
    assert!(list(&*storage).unwrap().is_empty());
    let error = Checkpoint::open(storage.clone(), 7).unwrap_err().to_string();
    assert!(error.ends_with("has no checkpoint of step 7 (there are: none)"), "{error}");
    let sample = Sample::new(&[10], 1);
    sample.save(&*storage, 3, 1).unwrap();
    let error = Checkpoint::open(storage.clone(), 7).unwrap_err().to_string();
    assert!(error.ends_with("(there are: 3)"), "{error}");

    let checkpoint = Checkpoint::open(storage, 3).unwrap();
    let mut values = [0.0; 4];
    let mut read = |unit: &str, slot: &str, range| {
        checkpoint.read(unit, slot, range, &mut values).unwrap_err().to_string()
    };
    assert!(read("block.9", "parameters", 0..4).ends_with("(there are: block.0)"));
    assert!(read("block.0", "moment_9", 0..4).contains("block.0/moment_1"));
    assert!(read("block.0", "parameters", 7..11).contains("the slot has 10"));
    assert!(read("block.0", "parameters", 0..5).contains("into a buffer of 4"));
    #[expect(clippy::reversed_empty_ranges)]
    let reversed = read("block.0", "parameters", 4..0);
    assert!(reversed.contains("elements 4..0"), "{reversed}");
}

#[test]
fn places_are_told_apart() {
    assert!(matches!(open_storage("ftp://x/y").unwrap_err(), Error::InvalidUrl { .. }));
    let local = open_storage("some/folder").unwrap();
    assert_eq!(local.location(), "some/folder");
    #[cfg(not(feature = "object-store"))]
    for url in ["gs://bucket/run", "s3://bucket/run", "file:///tmp/run"] {
        let error = open_storage(url).unwrap_err().to_string();
        assert!(error.contains("`object-store`") && error.contains(url), "{error}");
    }
    #[cfg(feature = "object-store")]
    {
        assert!(open_storage("gs://").is_err());
        assert!(open_storage("s3://").is_err());
    }
}
