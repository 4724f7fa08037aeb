//! Throughput of writing and publishing a checkpoint of 256 MiB, beside `dd` with `fsync` on the same disk.
//!
//! The two take turns, so that both see the same disk; their medians and the ratio are printed before criterion's
//! own figures. `BRIGADE_BENCH_DIR` chooses the folder (default: the system's folder for temporary files).

use std::io;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use brigade_checkpoint::{
    LocalStorage, PARAMETERS, Parameter, Piece, Snapshot, Staging, State, Storage, Unit, publish, write_rank,
};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const MIB: usize = 256;
const ELEMENTS: usize = MIB << 18;
const ROUNDS: usize = 9;

fn snapshot() -> Snapshot {
    let values = (0..ELEMENTS).map(|i| (i % 4093) as f32 * 0.37).collect();
    Snapshot { pieces: vec![Piece { unit: "model".into(), slot: PARAMETERS.into(), start: 0, values }] }
}

fn state() -> State {
    let unit = Unit {
        name: "model".into(),
        elements: ELEMENTS,
        trainable: true,
        parameters: vec![Parameter { name: "weight".into(), shape: vec![ELEMENTS], start: 0 }],
        slots: vec![PARAMETERS.into()],
        scalars: Default::default(),
    };
    State { units: vec![unit], ..State::default() }
}

/// Seconds of one save, from the first byte to the visible checkpoint. It is removed afterwards.
fn save(storage: &LocalStorage, snapshot: &Snapshot) -> Duration {
    let staging = Staging::with_token(1, "bench").expect("a token");
    let began = Instant::now();
    let entry = write_rank(storage, &staging, 0, snapshot).expect("written");
    publish(storage, &staging, state(), vec![entry]).expect("published");
    let took = began.elapsed();
    storage.remove("step-00000001").expect("removed");
    took
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

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    MIB as f64 / times[times.len() / 2].as_secs_f64()
}

fn write(criterion: &mut Criterion) {
    let place = std::env::var_os("BRIGADE_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let folder = tempfile::tempdir_in(place).expect("a folder");
    let storage = LocalStorage::new(folder.path().join("checkpoints"));
    let snapshot = snapshot();

    let rounds: io::Result<Vec<_>> =
        (0..ROUNDS).map(|_| Ok((dd(folder.path())?, save(&storage, &snapshot)))).collect();
    match rounds {
        Ok(rounds) => {
            let (dd, ours): (Vec<_>, Vec<_>) = rounds.into_iter().unzip();
            let (dd, ours) = (median(dd), median(ours));
            println!("dd {dd:.0} MiB/s, save {ours:.0} MiB/s: {:.0} % of dd", 100.0 * ours / dd);
        }
        Err(error) => println!("not compared with dd: {error}"),
    }

    let mut group = criterion.benchmark_group("write");
    group.throughput(Throughput::Bytes((MIB << 20) as u64)).sample_size(10);
    group.bench_function("save", |bencher| {
        bencher.iter_custom(|times| (0..times).map(|_| save(&storage, &snapshot)).sum());
    });
    group.finish();
}

criterion_group!(benches, write);
criterion_main!(benches);
