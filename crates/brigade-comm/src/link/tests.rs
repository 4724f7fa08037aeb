//! All kinds of link carry any stream of writes and reads unchanged.

use crate::link::endpoint::Link;
use crate::link::error::LinkError;
use crate::link::shared::SharedLink;
use crate::link::shared::event_fd::EventFd;
use crate::link::shared::rings::RING_BYTES;
use crate::link::shared::rings::ring_bytes;
use crate::link::shared::segment::Segment;
use crate::link::shared::segment_bytes;
use crate::link::tcp::TcpLink;
use crate::link::tcp::session::{self, Session};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use super::shared::rings::ALL_RINGS_BYTES;

fn shared(members: usize) -> (Link, Link) {
    let segment = Arc::new(Segment::anonymous(segment_bytes(members)).unwrap());
    let event_fd = Arc::new(EventFd::new().unwrap());
    let side = |side| Link::Shared(SharedLink::new(segment.clone(), side, event_fd.clone()));
    (side(0), side(1))
}

fn tcp(members: usize, [near_session, far_session]: [Option<Session>; 2]) -> (Link, Link) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    let link = |socket, session| Link::Tcp(TcpLink::new(socket, session, ring_bytes(members)).unwrap());
    (link(near, near_session), link(far, far_session))
}

fn plain(members: usize) -> (Link, Link) {
    tcp(members, [None, None])
}

fn sealed(members: usize) -> (Link, Link) {
    let (near, far) = session::pair();
    tcp(members, [Some(near), Some(far)])
}

/// One of each kind, in small and in large groups.
fn all() -> impl Iterator<Item = (Link, Link)> {
    [shared, plain, sealed].into_iter().flat_map(|kind| [2, 1024].map(kind))
}

fn wait() {
    std::thread::sleep(std::time::Duration::from_micros(50));
}

#[test]
fn streams_arrive_unchanged() {
    for (mut near, mut far) in all() {
        let sent: Vec<u8> = (0..3_000_000).map(|i| brigade_random::keyed(0, i) as u8).collect();
        let (mut written, mut received) = (0, Vec::new());
        let sizes = [1, 63, 64, 5000, 32 << 10, 200_000, 700_000];
        for turn in 0.. {
            let end = (written + sizes[turn % sizes.len()]).min(sent.len());
            written += near.write(&sent[written..end]).unwrap();
            near.flush().unwrap();
            if turn % 3 == 0 {
                far.fetch().unwrap();
                let count = far.peek().len().min(70_001);
                received.extend(far.peek().first(count).cells::<1>(0).flatten());
                far.consume(count);
            } else {
                let mut bytes = vec![0; sizes[(turn + 2) % sizes.len()]];
                let count = far.read(&mut bytes).unwrap();
                received.extend_from_slice(&bytes[..count]);
                if count == 0 {
                    wait();
                }
            }
            far.flush().unwrap();
            if received.len() == sent.len() {
                break;
            }
        }
        assert!(received == sent);
    }
}

#[test]
fn the_last_bytes_arrive_before_the_end() {
    for (mut near, mut far) in all() {
        assert_eq!(near.write(b"the end").unwrap(), 7);
        near.flush().unwrap();
        drop(near);
        let mut bytes = [0; 7];
        while far.read(&mut bytes).unwrap() == 0 {
            wait();
        }
        assert_eq!(&bytes, b"the end");
        let error = loop {
            match far.fetch() {
                Ok(()) => wait(),
                Err(error) => break error,
            }
        };
        assert_eq!(error, LinkError::Closed);
    }
}

#[test]
fn what_is_changed_on_the_way_is_not_taken() {
    let connect = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    };
    let ((near, mut wire), (mut relay, far)) = (connect(), connect());
    let (near_session, far_session) = session::pair();
    let mut near = TcpLink::new(near, Some(near_session), RING_BYTES).unwrap();
    let mut far = TcpLink::new(far, Some(far_session), RING_BYTES).unwrap();
    // In the second record.
    const CHANGED: usize = 100_000;
    std::thread::spawn(move || {
        let (mut passed, mut bytes) = (0, vec![0; 10_000]);
        while let Ok(count @ 1..) = wire.read(&mut bytes) {
            if (passed..passed + count).contains(&CHANGED) {
                bytes[CHANGED - passed] ^= 1;
            }
            passed += count;
            relay.write_all(&bytes[..count]).unwrap();
        }
    });
    let sent = vec![7; 200_000];
    let (mut written, mut received, mut bytes) = (0, 0, vec![0; 1000]);
    let error = loop {
        written += near.write(&sent[written..]).unwrap();
        near.flush().unwrap();
        match far.read(&mut bytes) {
            Ok(count) => {
                assert!(bytes[..count].iter().all(|byte| *byte == 7));
                received += count;
            }
            Err(error) => break error,
        }
    };
    assert!(received < CHANGED, "{received}");
    assert_eq!(error, LinkError::Broken(session::NOT_AUTHENTIC.into()));
}

#[test]
fn a_ring_with_impossible_positions_is_corrupt() {
    let segment = Arc::new(Segment::anonymous(segment_bytes(2)).unwrap());
    let event_fd = Arc::new(EventFd::new().unwrap());
    let mut link = SharedLink::new(segment.clone(), 0, event_fd);
    // SAFETY: it is the segment's, and nothing else uses it now.
    unsafe { segment.start().write_bytes(0xff, 4096) };
    assert!(matches!(link.fetch(), Err(LinkError::Corrupt(_))));
    assert!(matches!(
        link.write(&vec![0; RING_BYTES]).and_then(|_| link.write(&[0])),
        Err(LinkError::Corrupt(_))
    ));
}

#[test]
fn a_peers_memory_is_checked() {
    let (_segment, file) = Segment::file(8192).unwrap();
    assert!(Segment::open(&file, 8192).is_ok());
    assert!(Segment::open(&file, 4096).is_err());
    let unsealed = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&unsealed, 8192).unwrap();
    assert!(Segment::open(&unsealed, 8192).is_err());
}

#[test]
fn rings_are_powers_of_two_that_stay_small_together() {
    for members in 2..=crate::MAX_WORLD_SIZE {
        let bytes = ring_bytes(members);
        assert!(bytes.is_power_of_two() && bytes <= RING_BYTES && bytes * members <= ALL_RINGS_BYTES);
    }
    assert_eq!([2, 64, 256, 1024].map(ring_bytes), [RING_BYTES, RING_BYTES, 64 << 10, 16 << 10]);
}
