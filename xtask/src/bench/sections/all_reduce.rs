//! All-reduce between processes of this machine: shared memory against DeepSpeed's, TCP against gloo, encrypted TCP against plain.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::bench::machine::cores;
use crate::bench::page::{Goal, Row, Samples, Section, Table, Unit};
use crate::bench::runner::{Kind, Runner, json_lines};

pub const TITLE: &str = "All-reduce";

/// The sizes on the page, in bytes.
const SIZES: [u64; 4] = [4 << 10, 1 << 20, 16 << 20, 64 << 20];
/// Up to here the time counts, above the bandwidth.
const SMALL: u64 = 64 << 10;
/// Where DeepSpeed leaves its buffers, and how it names them.
const SHARED_MEMORY: &str = "/dev/shm";
const LEFT_BEHIND: &str = "deepspeed_allreduce_buffer_";

/// Figures of one side by size: microseconds, or gigabytes per second.
#[derive(Debug, Default)]
struct BySize(BTreeMap<u64, Samples>);

impl BySize {
    /// Adds one run.
    fn add(&mut self, lines: &[Value]) {
        for line in lines {
            let Some(bytes) = line["bytes"].as_u64() else { continue };
            let field = if unit(bytes) == Unit::Microseconds { "micros" } else { "bus_gb_per_second" };
            self.0.entry(bytes).or_default().0.extend(line[field].as_f64());
        }
    }

    fn at(&self, bytes: u64) -> Samples {
        self.0.get(&bytes).cloned().unwrap_or_default()
    }
}

fn unit(bytes: u64) -> Unit {
    if bytes <= SMALL { Unit::Microseconds } else { Unit::GigabytesPerSecond }
}

/// A power of two, without the decimals of `HumanBytes`.
fn size(bytes: u64) -> String {
    if bytes < 1 << 20 { format!("{} KiB", bytes >> 10) } else { format!("{} MiB", bytes >> 20) }
}

pub fn measure(runner: &Runner) -> Result<Section> {
    let own = |transport: &str, ranks: usize| {
        format!("cargo bench -p brigade-comm --bench allreduce -- --transport {transport} --ranks {ranks}")
    };
    let many = (2 * cores()).clamp(4, 64);
    let brigade = [own("shm", 2), own("tcp", 2), own("encrypted", 2), own("shm", many)];
    let gloo = "torchrun --standalone --nproc-per-node 2 benches/peers/torch_bench.py --mode allreduce";
    let deepspeed = "LOCAL_SIZE=2 torchrun --standalone --nproc-per-node 2 benches/peers/deepspeed_bench.py --stage allreduce";

    let mut notes = Vec::new();
    let mut own: [BySize; 4] = Default::default();
    let [mut gloo_figures, mut deepspeed_figures] = [BySize::default(), BySize::default()];
    for run in 1..=runner.runs {
        for (side, line) in own.iter_mut().zip(&brigade) {
            runner.progress(run, "all-reduce", line);
            let end = runner.start("all-reduce", line)?.finish()?;
            end.succeeded()?;
            let found = json_lines::objects(&end.stdout);
            ensure!(
                SIZES.iter().all(|size| found.iter().any(|line| line["bytes"] == *size)),
                "`{line}` left out sizes"
            );
            side.add(&found);
        }
        runner.progress(run, "all-reduce", "gloo, DeepSpeed");
        gloo_figures.add(&runner.peer(Kind::Torch, "gloo", gloo, &mut notes)?);
        let before = buffers(Path::new(SHARED_MEMORY))?;
        let found = runner.peer(Kind::DeepSpeed, "deepspeed", deepspeed, &mut notes);
        remove_new(Path::new(SHARED_MEMORY), &before)?;
        deepspeed_figures.add(&found?);
    }

    let [shared, tcp, encrypted, crowded] = &own;
    let absent = runner.absent(Kind::DeepSpeed);
    let rows = |ours: &BySize, theirs: &BySize, absent, goal: fn(u64, Option<f64>) -> Option<Goal>| {
        SIZES.map(|bytes| row(bytes, &ours.at(bytes), &theirs.at(bytes), absent, goal)).into()
    };
    let tables = vec![
        Table::beside(
            "DeepSpeed shared memory",
            rows(shared, &deepspeed_figures, absent, shared_memory_goal),
        ),
        Table::beside("gloo", rows(tcp, &gloo_figures, runner.absent(Kind::Torch), tcp_goal)),
        Table::beside("plain TCP", rows(encrypted, tcp, "", encrypted_goal)),
        Table::beside("2 ranks", vec![crowd_row(many, crowded, shared)]),
    ];
    let [shm, tcp, encrypted, crowd] = brigade;
    Ok(Section {
        title: TITLE,
        text: format!(
            "Two processes, fp32. Bandwidth is that of the bus: what each rank sends, 2·(n-1)/n of the size, over the time \
             of one call. The first table is Brigade's shared memory, the second its TCP on the loopback device, \
             the third that with encryption, as between hosts, against the same without. The last is shared memory with {many} ranks \
             on {} cores: what all of them move together, against two ranks.",
            cores()
        ),
        commands: vec![shm, deepspeed.into(), tcp, gloo.into(), encrypted, crowd],
        tables,
        notes,
    })
}

fn row(
    bytes: u64,
    ours: &Samples,
    theirs: &Samples,
    absent: &str,
    goal: fn(u64, Option<f64>) -> Option<Goal>,
) -> Row {
    let ratio = ours.over(theirs);
    let cells = [ours.cell(unit(bytes), ""), theirs.cell(unit(bytes), absent)];
    Row::beside(size(bytes), cells, ratio, goal(bytes, ratio))
}

/// The bandwidth of DeepSpeed at least, and not much more time where that is what counts.
fn shared_memory_goal(bytes: u64, ratio: Option<f64>) -> Option<Goal> {
    if bytes <= SMALL { Goal::at_most(ratio, 1.5) } else { Goal::at_least(ratio, 1.0) }
}

fn tcp_goal(bytes: u64, ratio: Option<f64>) -> Option<Goal> {
    if bytes <= SMALL { None } else { Goal::at_least(ratio, 2.0) }
}

/// What encryption leaves of the bandwidth.
fn encrypted_goal(bytes: u64, ratio: Option<f64>) -> Option<Goal> {
    if bytes <= SMALL { None } else { Goal::at_least(ratio, 0.7) }
}

/// More ranks than cores share the same memory bandwidth; half of it may go to taking turns.
fn crowd_row(ranks: usize, crowd: &BySize, pair: &BySize) -> Row {
    let bytes = 1 << 20;
    let all = |side: &BySize, ranks: usize| {
        Samples(side.at(bytes).0.iter().map(|rate| rate * ranks as f64).collect())
    };
    let (crowd, pair) = (all(crowd, ranks), all(pair, 2));
    let ratio = crowd.over(&pair);
    let cells = [&crowd, &pair].map(|side| side.cell(unit(bytes), ""));
    Row::beside(format!("{ranks} ranks, {}", size(bytes)), cells, ratio, Goal::at_least(ratio, 0.5))
}

/// DeepSpeed's buffers in `folder`.
fn buffers(folder: &Path) -> Result<BTreeSet<OsString>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let names = entries.filter_map(|entry| entry.ok().map(|entry| entry.file_name()));
    Ok(names.filter(|name| name.as_encoded_bytes().starts_with(LEFT_BEHIND.as_bytes())).collect())
}

/// Removes DeepSpeed's buffers that were not there before.
fn remove_new(folder: &Path, before: &BTreeSet<OsString>) -> Result<()> {
    for name in buffers(folder)?.difference(before) {
        let path = folder.join(name);
        std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GLOO: &str = r#"{"mode": "allreduce", "world": 2, "bytes": 4096, "micros": 2104.5, "bus_gb_per_second": 0.002}
{"mode": "allreduce", "world": 2, "bytes": 1048576, "micros": 2600.1, "bus_gb_per_second": 0.403}"#;
    const OWN: &str = r#"{"mode": "brigade shm", "world": 2, "bytes": 4096, "micros": 8.4, "bus_gb_per_second": 0.488}
{"mode": "brigade shm", "world": 2, "bytes": 1048576, "micros": 140.0, "bus_gb_per_second": 7.490}"#;

    fn side(text: &str) -> BySize {
        let mut side = BySize::default();
        side.add(&json_lines::objects(text));
        side
    }

    #[test]
    fn small_sizes_count_time_and_large_ones_bandwidth() {
        let (own, gloo) = (side(OWN), side(GLOO));
        let small = row(4096, &own.at(4096), &gloo.at(4096), "-", shared_memory_goal);
        assert_eq!(small.cells[0], "8.4 µs");
        assert_eq!(small.goal.unwrap().met, Some(true));
        let large = row(1 << 20, &own.at(1 << 20), &gloo.at(1 << 20), "-", tcp_goal);
        assert_eq!(large.cells, ["7.49 GB/s", "0.40 GB/s", "18.586"]);
        assert_eq!(large.goal.unwrap().met, Some(true));
        let sealed = side(r#"{"bytes": 1048576, "bus_gb_per_second": 4.0, "micros": 1}"#);
        let sealed = row(1 << 20, &sealed.at(1 << 20), &own.at(1 << 20), "", encrypted_goal);
        assert_eq!(sealed.goal.unwrap().met, Some(false), "0.534 of the same without encryption");
        let missing = row(64 << 20, &own.at(64 << 20), &gloo.at(64 << 20), "not installed", tcp_goal);
        assert_eq!(missing.cells[1..], ["not installed", "–"]);
    }

    #[test]
    fn a_crowd_is_judged_by_what_it_moves_together() {
        let crowd = side(r#"{"bytes": 1048576, "bus_gb_per_second": 3.0, "micros": 1}"#);
        let row = crowd_row(4, &crowd, &side(OWN));
        assert_eq!(row.cells[..2], ["12.00 GB/s", "14.98 GB/s"]);
        assert_eq!(row.goal.unwrap().met, Some(true));
    }

    #[test]
    fn only_new_buffers_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        std::fs::write(file("deepspeed_allreduce_buffer_1_0"), "").unwrap();
        let before = buffers(folder.path()).unwrap();
        std::fs::write(file("deepspeed_allreduce_buffer_2_0"), "").unwrap();
        std::fs::write(file("somebody_else"), "").unwrap();
        remove_new(folder.path(), &before).unwrap();
        let there = |name: &str| file(name).exists();
        assert!(there("deepspeed_allreduce_buffer_1_0") && there("somebody_else"));
        assert!(!there("deepspeed_allreduce_buffer_2_0"));
    }
}
