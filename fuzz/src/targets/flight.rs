//! Flight records, alone and together.

use std::io::Write;

use brigade_comm::StalledRank;
use brigade_comm::flight::{FirstFailure, FlightRecord, Waiting, diagnose, read, table};
use brigade_comm::fuzzing;
use tempfile::NamedTempFile;

use crate::target::{Bound, Limit, Target, bare, lines};

/// The most records that one input of [`DIAGNOSIS`] holds.
const MAX_RECORDS: usize = 8;

/// One rank's file.
///
/// Counted as parsed: it is a record whose numbers fit together. Bound: 16 times the file, and what the texts about it
/// take.
pub const FLIGHT: Target = Target {
    name: "flight",
    run: fuzzing::flight,
    parsed: |input| stored(input).is_some(),
    bound: Bound {
        peak: Limit { fixed: 64 << 10, per_byte: 16 },
        total: Limit { fixed: 256 << 10, per_byte: 256 },
    },
    payloads: records,
    envelope: bare,
};

/// The files of several ranks, and what they tell together.
///
/// An input has one file a line. Counted as parsed: one of them is a record. Bound: as of [`FLIGHT`], with the buffer that
/// a file is read into.
pub const DIAGNOSIS: Target = Target {
    name: "diagnosis",
    run: |input| {
        let records: Vec<_> =
            input.split(|byte| *byte == b'\n').take(MAX_RECORDS).filter_map(stored).collect();
        let _ = (diagnose(&records).to_string(), table(&records, 10));
    },
    parsed: |input| input.split(|byte| *byte == b'\n').take(MAX_RECORDS).any(|line| stored(line).is_some()),
    bound: Bound {
        peak: Limit { fixed: 64 << 10, per_byte: 16 },
        total: Limit { fixed: 256 << 10, per_byte: 256 },
    },
    payloads: records,
    envelope: lines,
};

/// A record that was a file with this content.
fn stored(bytes: &[u8]) -> Option<FlightRecord> {
    let mut file = NamedTempFile::new().ok()?;
    file.write_all(bytes).ok()?;
    read(file.path()).ok()
}

/// Two ranks in the middle of their work, and the same two after rank 1 never sent what rank 0 waits for.
fn records() -> Vec<Vec<u8>> {
    let files = [
        include_bytes!("../../corpus/flight/rank-0.json").as_slice(),
        include_bytes!("../../corpus/flight/rank-1.json"),
    ];
    let mut records: Vec<FlightRecord> =
        files.iter().filter_map(|file| serde_json::from_slice(file).ok()).collect();
    let failure = FirstFailure {
        rank: 0,
        root: vec![StalledRank { rank: 1, why: "is in no operation".into() }],
        text: "rank 0 gave up recv #0".into(),
    };
    for record in &mut records {
        record.failure = Some(failure.clone());
        for entry in record.entries.iter_mut().filter(|entry| entry.finished.is_none()) {
            let absent = vec![1 - record.rank];
            entry.waiting = Some(Box::new(Waiting { awaited: true, overdue: true, absent, stalled: vec![] }));
        }
    }
    records.iter().filter_map(|record| serde_json::to_vec(record).ok()).collect()
}
