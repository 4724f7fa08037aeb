//! Checkpoints in a folder: writing and publishing, reading, and verifying one of 32 MiB.
//!
//!     cargo bench -p brigade-checkpoint --bench checkpoints
//!
//! `BRIGADE_BENCH_DIR` chooses the folder (default: the system's folder for temporary files). Writing includes flushing to
//! the disk; reading comes from the page cache.

use std::sync::Arc;

use brigade_checkpoint::{
    Checkpoint, LocalStorage, PARAMETERS, ParameterMetadata, RankShard, Result, StagingDir, Storage,
    TrainState, UnitMetadata, WriteItem, publish, verify, write_shard,
};
use criterion::{Criterion, Throughput};

const ELEMENTS: usize = 8 << 20;
const STEP: u64 = 1;
const FOLDER: &str = "step-00000001";
const UNIT: &str = "model";

fn shard() -> RankShard {
    let values = (0..ELEMENTS).map(|i| (i % 4093) as f32 * 0.37).collect();
    RankShard { items: vec![WriteItem { unit: UNIT.into(), slot: PARAMETERS.into(), start: 0, values }] }
}

fn state() -> TrainState {
    let unit = UnitMetadata {
        name: UNIT.into(),
        elements: ELEMENTS,
        trainable: true,
        parameters: vec![ParameterMetadata { name: "weight".into(), shape: vec![ELEMENTS], start: 0 }],
        slots: vec![PARAMETERS.into()],
        scalars: Default::default(),
    };
    TrainState { units: vec![unit], ..TrainState::default() }
}

/// From the first byte to the visible checkpoint.
fn save(storage: &LocalStorage, shard: &RankShard) -> Result<()> {
    let staging = StagingDir::with_id(STEP, "bench")?;
    let entry = write_shard(storage, &staging, 0, shard)?;
    publish(storage, &staging, state(), vec![entry])?;
    Ok(())
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let place = std::env::var_os("BRIGADE_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let folder = tempfile::tempdir_in(place)?;
    let storage = LocalStorage::new(folder.path().join("checkpoints"));
    let shard = shard();
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("checkpoint");
    group.sample_size(10).throughput(Throughput::Bytes(4 * ELEMENTS as u64));
    group.bench_function("save", |bencher| {
        bencher.iter(|| {
            save(&storage, &shard).expect("the save works");
            storage.remove(FOLDER).expect("it is removed");
        });
    });
    save(&storage, &shard)?;
    group.bench_function("verify", |bencher| {
        bencher.iter(|| assert!(verify(&storage, STEP).expect("it can be read").is_empty()));
    });
    let checkpoint = Checkpoint::open(Arc::new(storage), STEP)?;
    let mut values = vec![0.0; ELEMENTS];
    group.bench_function("read", |bencher| {
        bencher.iter(|| checkpoint.read(UNIT, PARAMETERS, 0..ELEMENTS, &mut values).expect("it can be read"));
    });
    group.finish();
    criterion.final_summary();
    Ok(())
}
