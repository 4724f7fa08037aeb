//! Arbitrary bytes in the place of a rank's file, and statuses that ranks may report.

use brigade_sorted::SortedMap;

use super::record::{Entry, GroupRecord, State, Transfers, Waiting, parse};
use super::{RankStatus, diagnose, table};
use crate::op::call::{Call, OpType};
use crate::op::dtype::DType;

/// A file of the flight recorder, with all that is made of it.
pub fn flight(bytes: &[u8]) {
    if let Ok(record) = parse(bytes) {
        let mut other = record.clone();
        other.rank = (record.rank + 1) % record.world_size;
        let records = [record, other];
        let _ = (diagnose(&records).to_string(), table(&records, 10));
    }
}

/// The statuses of two ranks: the first waits for what the second never sent.
pub(crate) fn statuses() -> [RankStatus; 2] {
    [0, 1].map(|rank| {
        let peer = 1 - rank;
        let transfers = Transfers { sends: 1, receives: u64::from(rank == 0) };
        let group = GroupRecord {
            collectives: 1,
            transfers: SortedMap::from([(peer, transfers)]),
            ..GroupRecord::new(7, "pair", &[0, 1])
        };
        let barrier = Entry {
            id: 0,
            group: 0,
            call: call(OpType::Barrier, 0),
            peer: None,
            state: State::Done,
            called: 10,
            started: Some(10),
            finished: Some(20),
            sent: 0,
            received: 0,
            waiting: None,
        };
        let waiting = Waiting { awaited: true, overdue: true, absent: vec![peer], stalled: vec![] };
        let receive = Entry {
            id: 1,
            call: call(OpType::Recv, 9),
            peer: Some(peer),
            state: State::Started,
            finished: None,
            waiting: Some(Box::new(waiting)),
            ..barrier.clone()
        };
        let entries = if rank == 0 { vec![barrier, receive] } else { vec![barrier] };
        RankStatus::new(&[group], &entries, 2_000_000)
    })
}

fn call(operation: OpType, bytes: u64) -> Call {
    Call { operation, sequence: 0, dtype: DType::U8, reduce: None, root: None, bytes }
}
