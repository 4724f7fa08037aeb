//! Entries for fuzzers: each feeds arbitrary bytes to the decoders that read bytes from outside.
//!
//! None of them panics, and what each allocates at a time is bounded: messages, and what is made of them, by 16 times
//! [`MAX_FRAME_BYTES`], headers by the limit of the receive (here [`MESSAGE_LIMIT`]), flight records by 16
//! times the input, which is at most [`MAX_FILE_BYTES`](crate::flight::MAX_FILE_BYTES).
//!
//! [`MAX_FRAME_BYTES`]: crate::MAX_FRAME_BYTES

use std::sync::Arc;
use std::time::Instant;

use crate::flight::Recorder;
use crate::link::endpoint::Link;
use crate::link::shared::event_fd::EventFd;
use crate::link::shared::segment::Segment;
use crate::link::shared::{SharedLink, segment_bytes};
use crate::op::call::{Call, OpType};
use crate::op::dtype::{DType, ReduceOp};
use crate::op::header::{HEADER_BYTES, decode, encode};
use crate::process_group::work::OwnedBuffer;
use crate::progress::operation::transfer::Transfer;

pub use crate::flight::fuzz::flight;
pub use crate::join::fuzz::{
    begins_with_message, frame, handshake_payloads, is_handshake, message_payloads, rendezvous,
};

/// The limit of the receive in [`call_header`], in bytes.
pub const MESSAGE_LIMIT: u64 = 1 << 20;

const GROUP: u64 = 7;

/// What another rank writes on a link, against a receive: headers and what follows them. The first byte says whether the
/// bytes start where a genuine header has just been.
pub fn call_header(bytes: &[u8]) {
    for header in bytes.chunks_exact(HEADER_BYTES) {
        if let Some(Ok((group, call))) = header.first_chunk().map(decode) {
            let again = encode(group, &call);
            assert_eq!(decode(&again), Ok((group, call)));
        }
    }
    let Some((genuine, bytes)) = bytes.split_first() else { return };
    let Some((mut near, mut far)) = pair() else { return };
    let call = Call {
        operation: OpType::RecvMessage,
        sequence: 0,
        dtype: DType::U8,
        reduce: None,
        root: None,
        bytes: MESSAGE_LIMIT,
    };
    let recorder = Recorder::new(0, 2, 0);
    let group_index = recorder.register(GROUP, "pair", &[0, 1]);
    let entry_id = recorder.called(group_index, &call, Some(1), Instant::now(), true);
    let mut transfer = Transfer::new(GROUP, 1, call, entry_id, OwnedBuffer::message().0);
    let sent = Call { operation: OpType::Send, bytes: bytes.len() as u64, ..call };
    let header: &[u8] = if genuine % 2 == 0 { &[] } else { &encode(GROUP, &sent) };
    for mut rest in [header, bytes] {
        while !rest.is_empty() {
            match far.write(rest) {
                Ok(0) | Err(_) => break,
                Ok(written) => rest = &rest[written..],
            }
            if far.flush().is_err() || transfer.advance(&mut near).is_err() || transfer.is_done() {
                return;
            }
        }
    }
}

/// Whether bytes begin with the header of a call.
pub fn begins_with_header(bytes: &[u8]) -> bool {
    bytes.first_chunk().is_some_and(|header| decode(header).is_ok())
}

/// The header of each operation, and as many bytes again: those of a `send` are what [`call_header`] waits for.
pub fn header_payloads() -> Vec<Vec<u8>> {
    let payload = |operation| {
        let reduces = matches!(operation, OpType::AllReduce | OpType::ReduceScatter);
        let has_root = matches!(operation, OpType::Broadcast | OpType::Gather);
        let (reduce, root) = (reduces.then_some(ReduceOp::Sum), has_root.then_some(1));
        let call = Call { operation, sequence: 0, dtype: DType::U8, reduce, root, bytes: 9 };
        [encode(GROUP, &call), [1; HEADER_BYTES]].concat()
    };
    OpType::ALL.map(payload).into()
}

/// The two ends of a link.
fn pair() -> Option<(Link, Link)> {
    let segment = Arc::new(Segment::anonymous(segment_bytes(2)).ok()?);
    let event_fd = Arc::new(EventFd::new().ok()?);
    let link = |side| Link::Shared(SharedLink::new(segment.clone(), side, event_fd.clone()));
    Some((link(0), link(1)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Group, Timeouts, threads};

    /// What ranks really write, to be changed here and there.
    fn seeds() -> [Vec<Vec<u8>>; 4] {
        let groups = threads(2, Timeouts::default());
        let work = |group: &Group| {
            let pair = group.split("pair", 0, 0).unwrap();
            pair.barrier().unwrap();
            let peer = 1 - pair.rank();
            drop(pair.recv(vec![0u8; 9], DType::U8, peer));
            let record = group.flight_recorder().record();
            pair.send(vec![0u8; 9], DType::U8, peer).wait().unwrap();
            group.barrier().unwrap();
            record
        };
        let records: Vec<_> = std::thread::scope(|scope| {
            let ranks: Vec<_> = groups.iter().map(|group| scope.spawn(|| work(group))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        let frame = |body: &Vec<u8>| [&(body.len() as u32).to_le_bytes()[..], body].concat();
        let frames: Vec<Vec<u8>> = message_payloads().iter().map(frame).collect();
        let handshakes = handshake_payloads().into_iter().map(|bytes| [&[0][..], &bytes].concat());
        let headers = header_payloads().into_iter().map(|bytes| [&[0][..], &bytes].concat());
        let files = records.iter().map(|record| serde_json::to_vec(record).unwrap());
        [
            vec![[&[40][..], &frames.concat()].concat()],
            handshakes.collect(),
            headers.collect(),
            files.collect(),
        ]
    }

    proptest! {
        #[test]
        fn nothing_that_arrives_panics(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            chosen in any::<prop::sample::Index>(),
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            cut in proptest::option::weighted(0.2, any::<prop::sample::Index>()),
        ) {
            static SEEDS: std::sync::LazyLock<[Vec<Vec<u8>>; 4]> = std::sync::LazyLock::new(seeds);
            let targets: [fn(&[u8]); 4] = [frame, rendezvous, call_header, flight];
            for (target, seeds) in targets.into_iter().zip(&*SEEDS) {
                target(&bytes);
                let mut seed = seeds[chosen.index(seeds.len())].clone();
                for (place, value) in &changes {
                    let place = place.index(seed.len());
                    // Half of the changes turn a digit into another one: what can be read, and is wrong.
                    seed[place] = match value % 2 == 0 && seed[place].is_ascii_digit() {
                        true => b'0' + value % 10,
                        false => *value,
                    };
                }
                seed.truncate(cut.map_or(seed.len(), |cut| cut.index(seed.len())));
                target(&seed);
            }
        }
    }
}
