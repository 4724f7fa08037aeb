//! TensorBoard event files.
//!
//! A file is a sequence of TFRecords: length (8 bytes, little-endian), masked CRC-32C of the length, data,
//! masked CRC-32C of the data. The data of each is one protocol buffer `tensorflow.Event`. Sources:
//! `tensorflow/core/lib/io/record_writer.h`, `tensorflow/core/util/event.proto` and
//! `tensorflow/core/framework/summary.proto`.
//!
//! TensorBoard reads a folder's files one after the other, in order of their names. Where steps are done again, an event
//! says so (`SessionLog` with status `START`): on reading it TensorBoard drops all points of its step and later ones
//! (`_CheckForRestartAndMaybePurge` in `tensorboard/backend/event_processing/event_accumulator.py`). Its newer loader
//! (`tensorboard/data/server/`) drops them curve by curve instead, when an earlier step comes.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::{CheckpointRecord, Error, Result, StepRecord, metrics_file::append, record::gib};

/// What every event file's name begins with.
const PREFIX: &str = "events.out.tfevents.";

/// The event files in a folder, in order of their names.
pub fn existing(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = entries.map_err(Error::file("read", folder))?;
    let named = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(PREFIX);
    let mut files: Vec<PathBuf> =
        entries.iter().filter(|entry| named(entry)).map(fs::DirEntry::path).collect();
    files.sort();
    Ok(files)
}

/// An event file, `events.out.tfevents.<seconds>.<host>.<process id>`. Each event is written with one call and
/// unbuffered.
pub struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// Makes a new file in the folder and writes the version record. Its name comes after those of earlier files, also
    /// where they are from this second or from a host whose clock is ahead.
    pub fn create(folder: &Path, earlier: &[PathBuf]) -> Result<Self> {
        let time = now();
        let latest = earlier.iter().filter_map(|path| seconds(path)).max();
        let seconds = time.as_secs().max(latest.map_or(0, |latest| latest.saturating_add(1)));
        let name = format!("{PREFIX}{seconds}.{}.{}", host(), std::process::id());
        let path = folder.join(name);
        let file = File::create_new(&path).map_err(Error::file("create", &path))?;
        let mut events = Self { path, file };
        let mut version = event(time, 0);
        bytes_field(&mut version, 3, b"brain.Event:2");
        events.append(&record(&version))?;
        Ok(events)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Says that what follows begins at this step, and replaces what was written of it and of later ones.
    pub fn start_at(&mut self, step: u64) -> Result<()> {
        let mut data = event(now(), step);
        // SessionLog { 1: status (varint) }, of which START is 1.
        bytes_field(&mut data, 7, &[1 << 3, 1]);
        self.append(&record(&data))
    }

    /// Writes the scalars of a step, and those of its checkpoint.
    pub fn write(&mut self, step: &StepRecord) -> Result<()> {
        self.append(&record(&summary(step.step, scalars(step))))?;
        step.checkpoint.iter().try_for_each(|checkpoint| self.write_checkpoint(checkpoint))
    }

    /// Writes the scalars of a checkpoint, at the step that it holds.
    pub fn write_checkpoint(&mut self, checkpoint: &CheckpointRecord) -> Result<()> {
        let scalars = [
            ("checkpoint/stall_seconds", checkpoint.stall_seconds),
            ("checkpoint/write_seconds", checkpoint.seconds),
            ("checkpoint/bytes", checkpoint.bytes as f64),
        ];
        self.append(&record(&summary(checkpoint.step, scalars)))
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        append(&mut self.file, bytes).map_err(Error::file("write", &self.path))
    }
}

/// The scalars of a step, under torchtitan's names where it has one. Rates `tflops` and `mfu(%)` are those of one rank.
/// `memory/max_active` is the host's; where devices have memory of their own it has another name, and theirs stands beside.
fn scalars(step: &StepRecord) -> Vec<(&'static str, f64)> {
    let device = step.device_memory;
    let mut scalars = vec![
        ("loss_metrics/global_avg_loss", step.loss),
        ("grad_norm", step.grad_norm),
        ("learning_rate", step.learning_rate),
        ("throughput(tps)", step.tokens_per_second),
        ("time_metrics/end_to_end(s)", step.step_seconds),
        ("time_metrics/forward(s)", step.forward_seconds),
        ("time_metrics/backward(s)", step.backward_seconds),
        ("time_metrics/optimizer(s)", step.optimizer_seconds),
        ("time_metrics/data_loading(s)", step.data_wait_seconds),
        ("time_metrics/data_loading(%)", step.data_wait_percent()),
        ("time_metrics/comm_wait(s)", step.comm_wait_seconds),
        ("time_metrics/comm_wait(%)", step.comm_wait_percent()),
        (
            if device.is_some() { "memory/host_max_resident(GiB)" } else { "memory/max_active(GiB)" },
            gib(step.peak_rss_bytes),
        ),
        ("comm/bytes", step.comm_bytes as f64),
        ("comm/calls", step.comm_calls as f64),
    ];
    let sometimes = [
        ("tflops", step.tflops),
        ("mfu(%)", step.mfu_percent),
        ("memory/active(GiB)", device.map(|memory| gib(memory.in_use))),
        ("memory/reserved(GiB)", device.map(|memory| gib(memory.reserved))),
        ("memory/max_reserved(GiB)", device.map(|memory| gib(memory.reserved_peak))),
        ("memory/max_reserved(%)", device.and_then(|memory| memory.peak_percent())),
        ("validation_metrics/global_avg_loss", step.validation_loss),
    ];
    scalars.extend(sometimes.into_iter().filter_map(|(tag, value)| Some((tag, value?))));
    scalars
}

/// The event `{ 5: Summary { 1: Value { 1: tag, 2: simple_value (float) } … } }`.
fn summary(step: u64, scalars: impl IntoIterator<Item = (&'static str, f64)>) -> Vec<u8> {
    let mut summary = Vec::new();
    for (tag, value) in scalars {
        let mut entry = Vec::new();
        bytes_field(&mut entry, 1, tag.as_bytes());
        entry.push(2 << 3 | 5);
        entry.extend_from_slice(&(value as f32).to_le_bytes());
        bytes_field(&mut summary, 1, &entry);
    }
    let mut data = event(now(), step);
    bytes_field(&mut data, 5, &summary);
    data
}

/// `Event { 1: wall_time (double), 2: step (varint) }`.
fn event(time: Duration, step: u64) -> Vec<u8> {
    let mut data = vec![1 << 3 | 1];
    data.extend_from_slice(&time.as_secs_f64().to_le_bytes());
    data.push(2 << 3);
    varint(&mut data, step);
    data
}

/// A field of type string, bytes or message. Field numbers here are below 16.
fn bytes_field(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    out.push(field << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The TFRecord that holds the data.
fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &masked_crc(&length), data, &masked_crc(data)].concat()
}

/// CRC-32C, rotated right by 15 bits and offset, as TFRecords have it.
fn masked_crc(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The time in an event file's name, in seconds since 1970.
fn seconds(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix(PREFIX)?.split('.').next()?.parse().ok()
}

/// This machine's name, as far as it can stand in a file name.
fn host() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let fit = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' };
    let name: String = name.chars().take(100).map(fit).collect();
    if name.is_empty() { "localhost".into() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceMemory;

    /// CRC-32C bit by bit (polynomial 0x1EDC6F41, reflected), apart from the crate that the writer uses.
    fn crc(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0u32, |crc, byte| {
            (0..8)
                .fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
        })
    }

    fn take<'a>(bytes: &mut &'a [u8], n: usize) -> &'a [u8] {
        let (head, tail) = bytes.split_at(n);
        *bytes = tail;
        head
    }

    fn check(bytes: &[u8], stored: &[u8]) {
        let crc = crc(bytes);
        let masked = crc.rotate_right(15).wrapping_add(0xa282_ead8);
        assert_eq!(stored, masked.to_le_bytes());
    }

    fn records(mut bytes: &[u8]) -> Vec<&[u8]> {
        let mut found = vec![];
        while !bytes.is_empty() {
            let length = take(&mut bytes, 8);
            check(length, take(&mut bytes, 4));
            let data = take(&mut bytes, u64::from_le_bytes(length.try_into().unwrap()) as usize);
            check(data, take(&mut bytes, 4));
            found.push(data);
        }
        found
    }

    /// The fields of a protocol buffer: number, value of a varint (else 0), bytes.
    fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, &[u8])> {
        fn varint(bytes: &mut &[u8]) -> u64 {
            let mut value = 0;
            for shift in (0..64).step_by(7) {
                let byte = take(bytes, 1)[0];
                value |= u64::from(byte & 0x7f) << shift;
                if byte < 0x80 {
                    break;
                }
            }
            value
        }
        let mut found = vec![];
        while !bytes.is_empty() {
            let key = varint(&mut bytes);
            found.push(match key & 7 {
                0 => (key >> 3, varint(&mut bytes), &[][..]),
                1 => (key >> 3, 0, take(&mut bytes, 8)),
                2 => {
                    let n = varint(&mut bytes) as usize;
                    (key >> 3, 0, take(&mut bytes, n))
                }
                5 => (key >> 3, 0, take(&mut bytes, 4)),
                wire => panic!("wire type {wire}"),
            });
        }
        found
    }

    /// An event's step and scalars.
    fn scalars(event: &[u8]) -> (u64, Vec<(String, f32)>) {
        let event = fields(event);
        let time = f64::from_le_bytes(event[0].2.try_into().unwrap());
        assert!(event[0].0 == 1 && (time - now().as_secs_f64()).abs() < 3600.0);
        assert_eq!((event[1].0, event[2].0), (2, 5));
        let values = fields(event[2].2).into_iter().map(|(_, _, value)| {
            let value = fields(value);
            let tag = String::from_utf8(value[0].2.to_vec()).unwrap();
            (tag, f32::from_le_bytes(value[1].2.try_into().unwrap()))
        });
        (event[1].1, values.collect())
    }

    #[test]
    fn the_check_value_of_crc32c_is_right() {
        assert_eq!(crc(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn an_independent_reader_finds_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = EventFile::create(folder.path(), &[]).unwrap();
        let first = StepRecord {
            step: 1,
            loss: 4.5,
            step_seconds: 2.0,
            data_wait_seconds: 0.5,
            ..StepRecord::default()
        };
        let second = StepRecord {
            step: 300,
            validation_loss: Some(3.25),
            peak_rss_bytes: 3 << 29,
            tflops: Some(0.5),
            ..StepRecord::default()
        };
        let memory =
            DeviceMemory { in_use: 1 << 29, reserved: 1 << 30, reserved_peak: 2 << 30, total: Some(8 << 30) };
        let third =
            StepRecord { step: 301, device_memory: Some(memory), mfu_percent: Some(41.5), ..second.clone() };
        for step in [&first, &second, &third] {
            file.write(step).unwrap();
        }

        let bytes = fs::read(file.path()).unwrap();
        let events = records(&bytes);
        assert_eq!(events.len(), 4);
        assert_eq!(fields(events[0])[2], (3, 0, &b"brain.Event:2"[..]));
        let find =
            |values: &[(String, f32)], tag: &str| values.iter().find(|(t, _)| t == tag).map(|(_, v)| *v);
        let (step, values) = scalars(events[1]);
        assert_eq!((step, values.len()), (1, 15));
        assert_eq!(find(&values, "loss_metrics/global_avg_loss"), Some(4.5));
        assert_eq!(find(&values, "time_metrics/data_loading(%)"), Some(25.0));
        let (step, values) = scalars(events[2]);
        assert_eq!((step, values.len()), (300, 17));
        assert_eq!(find(&values, "memory/max_active(GiB)"), Some(1.5));
        assert_eq!(find(&values, "validation_metrics/global_avg_loss"), Some(3.25));
        assert_eq!(find(&values, "tflops"), Some(0.5));
        assert_eq!(find(&values, "mfu(%)"), None);
        let (step, values) = scalars(events[3]);
        assert_eq!((step, values.len()), (301, 22));
        assert_eq!(find(&values, "mfu(%)"), Some(41.5));
        assert_eq!(find(&values, "memory/max_active(GiB)"), None);
        assert_eq!(find(&values, "memory/max_reserved(GiB)"), Some(2.0));
        assert_eq!(find(&values, "memory/max_reserved(%)"), Some(25.0));
        assert_eq!(find(&values, "memory/reserved(GiB)"), Some(1.0));
        assert_eq!(find(&values, "memory/active(GiB)"), Some(0.5));
        assert_eq!(find(&values, "memory/host_max_resident(GiB)"), Some(1.5));
    }

    #[test]
    fn steps_that_are_done_again_are_announced() {
        let folder = tempfile::tempdir().unwrap();
        let ahead = folder.path().join(format!("{PREFIX}{}.zebra.1.v2", now().as_secs() + 1000));
        for path in [&ahead, &folder.path().join(format!("{PREFIX}x")), &folder.path().join("metrics.jsonl")]
        {
            fs::write(path, b"").unwrap();
        }
        for _ in 0..2 {
            let earlier = existing(folder.path()).unwrap();
            let mut file = EventFile::create(folder.path(), &earlier).unwrap();
            assert!(seconds(file.path()).unwrap() > seconds(&ahead).unwrap());
            assert!(earlier.iter().all(|path| seconds(path) < seconds(file.path())));
            file.start_at(301).unwrap();
            let bytes = fs::read(file.path()).unwrap();
            let events = records(&bytes);
            assert_eq!(events.len(), 2);
            assert_eq!(fields(events[0])[2], (3, 0, &b"brain.Event:2"[..]));
            let start = fields(events[1]);
            assert_eq!((start.len(), start[1].1, start[2].0), (3, 301, 7));
            assert_eq!(fields(start[2].2), [(1, 1, &[][..])]);
        }
        assert_eq!(existing(folder.path()).unwrap().len(), 4);
    }

    #[test]
    fn a_checkpoint_stands_at_its_own_step() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = EventFile::create(folder.path(), &[]).unwrap();
        let checkpoint = CheckpointRecord { step: 50, stall_seconds: 0.25, bytes: 31 << 20, seconds: 1.5 };
        let step = StepRecord { step: 53, checkpoint: Some(checkpoint), ..StepRecord::default() };
        file.write(&step).unwrap();
        let bytes = fs::read(file.path()).unwrap();
        let events = records(&bytes);
        assert_eq!((events.len(), scalars(events[1]).0), (3, 53));
        let values = [("stall_seconds", 0.25), ("write_seconds", 1.5), ("bytes", 32_505_856.0)];
        let expected = values.map(|(name, value)| (format!("checkpoint/{name}"), value));
        assert_eq!(scalars(events[2]), (50, expected.to_vec()));
    }
}
