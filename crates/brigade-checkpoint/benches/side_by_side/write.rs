//! Throughput of writing and publishing a checkpoint of 256 MiB, beside `dd` with `fsync` on the same disk.
//!
//! The two take turns, so that both see the same disk; the medians come as a line of JSON. `BRIGADE_BENCH_DIR` chooses the
//! folder (default: the system's folder for temporary files).

use std::io;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use brigade_checkpoint::{
    LocalStorage, PARAMETERS, ParameterMetadata, RankShard, StagingDir, Storage, TrainState, UnitMetadata,
    WriteItem, publish, write_shard,
};

const MIB: usize = 256;
const ELEMENTS: usize = MIB << 18;
const ROUNDS: usize = 7;

fn shard() -> RankShard {
    let values = (0..ELEMENTS).map(|i| (i % 4093) as f32 * 0.37).collect();
    RankShard { items: vec![WriteItem { unit: "model".into(), slot: PARAMETERS.into(), start: 0, values }] }
}

fn state() -> TrainState {
    let unit = UnitMetadata {
        name: "model".into(),
        elements: ELEMENTS,
        trainable: true,
        parameters: vec![ParameterMetadata { name: "weight".into(), shape: vec![ELEMENTS], start: 0 }],
        slots: vec![PARAMETERS.into()],
        scalars: Default::default(),
    };
    TrainState { units: vec![unit], ..TrainState::default() }
}

/// Seconds of one save, from the first byte to the visible checkpoint. It is removed afterwards.
fn save(storage: &LocalStorage, shard: &RankShard) -> brigade_checkpoint::Result<Duration> {
    let staging = StagingDir::with_id(1, "bench")?;
    let began = Instant::now();
    let entry = write_shard(storage, &staging, 0, shard)?;
    publish(storage, &staging, state(), vec![entry])?;
    let took = began.elapsed();
    storage.remove("step-00000001")?;
    Ok(took)
}

/// Seconds that `dd` takes to write as many bytes.
fn dd(folder: &Path) -> io::Result<Duration> {
    let file = folder.join("dd");
    let began = Instant::now();
    let output = Command::new("dd")
        .args(["if=/dev/zero", "bs=1M", &format!("count={MIB}"), "conv=fsync", "status=none"])
        .arg(format!("of={}", file.display()))
        .output()?;
    let took = began.elapsed();
    std::fs::remove_file(&file)?;
    if output.status.success() { Ok(took) } else { Err(io::Error::other("dd failed")) }
}

/// MiB per second of the median time.
fn rate(mut times: Vec<Duration>) -> f64 {
    times.sort();
    MIB as f64 / times[times.len() / 2].as_secs_f64()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let place = std::env::var_os("BRIGADE_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let folder = tempfile::tempdir_in(place)?;
    let storage = LocalStorage::new(folder.path().join("checkpoints"));
    let shard = shard();
    let (mut dds, mut saves) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        dds.push(dd(folder.path())?);
        saves.push(save(&storage, &shard)?);
    }
    let (dd, save) = (rate(dds), rate(saves));
    println!("{{\"mebibytes\": {MIB}, \"dd_mib_per_second\": {dd:.1}, \"save_mib_per_second\": {save:.1}}}");
    Ok(())
}
