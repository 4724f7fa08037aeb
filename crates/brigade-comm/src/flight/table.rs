//! The last operations of each rank, side by side. It is written here so that a transport does not depend on a library for
//! tables.

use super::record::{Entry, FlightRecord};
use super::wait_graph::seconds;

/// How many ranks stand side by side.
const COLUMNS: usize = 4;

/// The last `lines` operations of each rank, oldest first: when each was called, in seconds since the rank's world began,
/// its name and number, the other rank of a transfer, its group, and its state.
pub fn table(records: &[FlightRecord], lines: usize) -> String {
    let mut records: Vec<&FlightRecord> = records.iter().collect();
    records.sort_by_key(|record| (record.restart, record.rank));
    let mut text = String::new();
    for block in records.chunks(COLUMNS) {
        let columns: Vec<Vec<String>> = block.iter().map(|record| column(record, lines)).collect();
        let width = |column: &Vec<String>| column.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = columns.iter().map(width).collect();
        for line in 0..columns.iter().map(Vec::len).max().unwrap_or(0) {
            let cells = columns
                .iter()
                .zip(&widths)
                .map(|(column, width)| format!("{:width$}", column.get(line).map_or("", String::as_str)));
            let cells: Vec<String> = cells.collect();
            text.push_str(cells.join("  ").trim_end());
            text.push('\n');
        }
    }
    text
}

fn column(record: &FlightRecord, lines: usize) -> Vec<String> {
    let cell = |entry: &Entry| {
        let Entry { call, peer, called, state, .. } = entry;
        let group = record.groups.get(entry.group).map_or("?", |group| &group.name);
        let peer = match peer {
            Some(peer) if call.operation.is_receive() => format!(" < {peer}"),
            Some(peer) => format!(" > {peer}"),
            None => String::new(),
        };
        format!("{:>8} {} #{}{peer} {group:?} {state}", seconds(*called), call.operation, call.sequence)
    };
    let skipped = record.entries.len().saturating_sub(lines);
    let head = format!("rank {}", record.rank);
    std::iter::once(head).chain(record.entries.iter().skip(skipped).map(cell)).collect()
}
