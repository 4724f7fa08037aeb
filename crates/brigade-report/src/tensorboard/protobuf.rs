//! The few protocol buffers of TensorBoard that are written, and the TFRecord around them.
//!
//! They are written by hand: four messages with fixed fields need no generated types, and building needs no protocol buffer
//! compiler.

use std::{borrow::Cow, time::Duration};

/// The event `{ 5: Summary { 1: Value { 1: tag, 2: simple_value (float) } … } }`.
pub fn summary<'a>(
    time: Duration,
    step: u64,
    scalars: impl IntoIterator<Item = (Cow<'a, str>, f64)>,
) -> Vec<u8> {
    let mut summary = Vec::new();
    for (tag, value) in scalars {
        let mut entry = Vec::new();
        bytes_field(&mut entry, 1, tag.as_bytes());
        entry.push(2 << 3 | 5);
        entry.extend_from_slice(&(value as f32).to_le_bytes());
        bytes_field(&mut summary, 1, &entry);
    }
    let mut data = event(time, step);
    bytes_field(&mut data, 5, &summary);
    data
}

/// `Event { 1: wall_time (double), 2: step (varint) }`.
pub fn event(time: Duration, step: u64) -> Vec<u8> {
    let mut data = vec![1 << 3 | 1];
    data.extend_from_slice(&time.as_secs_f64().to_le_bytes());
    data.push(2 << 3);
    varint(&mut data, step);
    data
}

/// A field of type string, bytes or message. Field numbers here are below 16.
pub fn bytes_field(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
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
pub fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &masked_crc(&length), data, &masked_crc(data)].concat()
}

/// CRC-32C, rotated right by 15 bits and offset, as TFRecords have it.
fn masked_crc(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}
