use brigade_sorted::SortedMap;

use super::*;
use crate::DeviceMemory;

/// CRC-32C bit by bit (polynomial 0x1EDC6F41, reflected), apart from the crate that the writer uses.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
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
    let first =
        StepRecord { step: 1, loss: 4.5, step_seconds: 2.0, data_wait_seconds: 0.5, ..StepRecord::default() };
    let second = StepRecord {
        step: 300,
        validation_loss: Some(3.25),
        peak_rss_bytes: 3 << 29,
        tflops: Some(0.5),
        metrics: SortedMap::from([("accuracy".to_owned(), 0.25)]),
        validation_metrics: SortedMap::from([("accuracy".to_owned(), 0.125)]),
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
    let find = |values: &[(String, f32)], tag: &str| values.iter().find(|(t, _)| t == tag).map(|(_, v)| *v);
    let (step, values) = scalars(events[1]);
    assert_eq!((step, values.len()), (1, 15));
    assert_eq!(find(&values, "loss_metrics/global_avg_loss"), Some(4.5));
    assert_eq!(find(&values, "time_metrics/data_loading(%)"), Some(25.0));
    let (step, values) = scalars(events[2]);
    assert_eq!((step, values.len()), (300, 19));
    assert_eq!(find(&values, "memory/max_active(GiB)"), Some(1.5));
    assert_eq!(find(&values, "validation_metrics/global_avg_loss"), Some(3.25));
    assert_eq!(find(&values, "tflops"), Some(0.5));
    assert_eq!(find(&values, "metrics/accuracy"), Some(0.25));
    assert_eq!(find(&values, "validation_metrics/accuracy"), Some(0.125));
    assert_eq!(find(&values, "mfu(%)"), None);
    let (step, values) = scalars(events[3]);
    assert_eq!((step, values.len()), (301, 24));
    assert_eq!(find(&values, "mfu(%)"), Some(41.5));
    assert_eq!(find(&values, "memory/max_active(GiB)"), None);
    assert_eq!(find(&values, "memory/max_reserved(GiB)"), Some(2.0));
    assert_eq!(find(&values, "memory/max_reserved(%)"), Some(25.0));
    assert_eq!(find(&values, "memory/reserved(GiB)"), Some(1.0));
    assert_eq!(find(&values, "memory/active(GiB)"), Some(0.5));
    assert_eq!(find(&values, "memory/host_max_resident(GiB)"), Some(1.5));
}

#[test]
fn steps_that_run_again_are_announced() {
    let folder = tempfile::tempdir().unwrap();
    let ahead = folder.path().join(format!("{PREFIX}{}.zebra.1.v2", now().as_secs() + 1000));
    for path in [&ahead, &folder.path().join(format!("{PREFIX}x")), &folder.path().join("metrics.jsonl")] {
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
fn a_checkpoint_is_written_at_its_own_step() {
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
