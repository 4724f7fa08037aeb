//! An all-reduce of two ranks, one of which is a plain socket.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::collective::Collective;
use super::in_flight_op::InFlightOp;
use super::stop::{Stop, StopReason};
use crate::flight::Recorder;
use crate::link::endpoint::{Link, PeerLinks};
use crate::link::error::LinkError;
use crate::link::shared::rings::RING_BYTES;
use crate::link::tcp::TcpLink;
use crate::op::call::{Call, OpType};
use crate::op::dtype::{DType, ReduceOp};
use crate::op::header::{HEADER_BYTES, encode};
use crate::op::plan::Plan;
use crate::op::plan::layout::Layout;
use crate::process_group::work::BorrowedBuffer;

const GROUP: u64 = 7;

struct Pair<'a> {
    collective: Collective<'a>,
    links: Vec<PeerLinks>,
    peer: TcpStream,
}

impl<'a> Pair<'a> {
    fn new(bytes: &'a mut [u8]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        peer.set_nonblocking(true).unwrap();
        let link = TcpLink::new(listener.accept().unwrap().0, None, RING_BYTES).unwrap();
        let mut links = vec![PeerLinks::default(), PeerLinks::default()];
        links[1].collective = Some(Link::Tcp(link));

        let call = Self::call(bytes.len());
        let recorder = Recorder::new(0, 2, 0);
        let group_index = recorder.register(GROUP, "pair", &[0, 1]);
        let entry_id = recorder.called(group_index, &call, None, Instant::now(), true);
        let plan = Plan::new(&call, &Layout::on_one_host(2), 0, 0);
        let buffer = Box::new(BorrowedBuffer(bytes));
        Self { collective: Collective::new(GROUP, 0, call, entry_id, None, plan, buffer), links, peer }
    }

    fn call(bytes: usize) -> Call {
        Call {
            operation: OpType::AllReduce,
            sequence: 0,
            dtype: DType::F32,
            reduce: Some(ReduceOp::Sum),
            root: None,
            bytes: bytes as u64,
        }
    }

    /// What the peer gets until nothing moves any more.
    fn exchange(&mut self) -> Result<Vec<u8>, Stop> {
        let (mut received, mut quiet_since) = (Vec::new(), Instant::now());
        while quiet_since.elapsed() < Duration::from_millis(100) {
            let mut part = vec![0; 1 << 20];
            let moved = self.collective.advance(&mut self.links)?;
            let count = match self.peer.read(&mut part) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                count => count.unwrap(),
            };
            received.extend_from_slice(&part[..count]);
            if moved || count > 0 {
                quiet_since = Instant::now();
            }
        }
        Ok(received)
    }

    fn awaits(&self) -> (bool, bool) {
        self.collective.awaits()[0].1
    }
}

fn ones(count: usize) -> Vec<u8> {
    [1.0f32.to_ne_bytes()].repeat(count).concat()
}

#[test]
fn a_rank_stays_in_step_with_a_peer_of_its_host() {
    let count = 300_001;
    let mut bytes = ones(count);
    let theirs = bytes.clone();
    let mut pair = Pair::new(&mut bytes);
    assert_eq!(pair.exchange().unwrap().len(), HEADER_BYTES + RING_BYTES);
    assert_eq!(pair.awaits(), (true, false));
    assert_eq!(pair.collective.missing(), (vec![1], vec![]));

    // The peer stops within an element.
    pair.peer.write_all(&encode(GROUP, &Pair::call(theirs.len()))).unwrap();
    pair.peer.write_all(&theirs[..100_003]).unwrap();
    assert_eq!(pair.exchange().unwrap().len(), 100_000);
    assert_eq!(pair.awaits(), (true, false));
    assert_eq!(pair.collective.missing(), (vec![], vec![1]));
    assert_eq!(pair.collective.traffic(), ((RING_BYTES + 100_000) as u64, 100_000));

    // It goes on, by less than an element and then by as much as it may.
    let padding = theirs.len().wrapping_neg() % HEADER_BYTES;
    let (mut given, mut received) = (100_003, RING_BYTES + 100_000);
    for end in (100_004..theirs.len()).step_by(RING_BYTES).chain([theirs.len()]) {
        pair.peer.write_all(&theirs[given..end]).unwrap();
        received += pair.exchange().unwrap().len();
        let whole = theirs.len() + padding;
        assert_eq!(received, if end + RING_BYTES < theirs.len() { end + RING_BYTES } else { whole });
        given = end;
    }
    assert!(!pair.collective.is_done());
    pair.peer.write_all(&vec![0; padding]).unwrap();
    pair.exchange().unwrap();
    assert!(pair.collective.is_done());
    drop(pair);
    assert!(bytes.as_chunks().0.iter().all(|sum| f32::from_ne_bytes(*sum) == 2.0));
}

#[test]
fn a_peer_that_ends_within_a_piece_is_missed() {
    let mut bytes = ones(300_001);
    let theirs = bytes.clone();
    let mut pair = Pair::new(&mut bytes);
    pair.peer.write_all(&encode(GROUP, &Pair::call(theirs.len()))).unwrap();
    pair.peer.write_all(&theirs[..300_000]).unwrap();
    pair.exchange().unwrap();
    pair.peer.shutdown(Shutdown::Both).unwrap();
    let stop = pair.exchange().unwrap_err();
    assert_eq!(stop.peer, 1);
    assert!(matches!(stop.reason, StopReason::Link(LinkError::Closed)), "{stop:?}");
}
