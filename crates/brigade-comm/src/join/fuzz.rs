//! Arbitrary bytes in the place of another rank's messages.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use brigade_sorted::SortedMap;

use super::wire::handshake::Stream;
use super::wire::message::{FrameBuffer, Hello, Message, RankAddress};
use crate::algorithm::Algorithm;
use crate::flight::diagnose_stall;
use crate::join::rendezvous::rank_0::mismatch;
use crate::join::wire::auth_token::AuthToken;
use crate::join::wire::handshake::{initiate, respond};
use crate::op::header::PROTOCOL_VERSION;
use crate::transport::{Encryption, Transport};

/// Bytes of a control connection, in pieces whose size the first byte gives: messages in any order, and rank 0's diagnosis of
/// the statuses among them.
pub fn frame(bytes: &[u8]) {
    let Some((piece, bytes)) = bytes.split_first() else { return };
    let (mut buffer, mut statuses) = (FrameBuffer::default(), SortedMap::new());
    for piece in bytes.chunks(usize::from(*piece) + 1) {
        buffer.push(piece);
        loop {
            match buffer.next() {
                Err(_) => return,
                Ok(None) => break,
                Ok(Some(Message::Status(status))) => {
                    statuses.insert(statuses.len(), status);
                    diagnose_stall(&statuses, 0, &[]);
                    diagnose_stall(&statuses, statuses.len() - 1, &[]);
                }
                Ok(Some(message)) => consider(message),
            }
        }
    }
}

/// Bytes of a new connection. The first byte chooses who reads them: the side that accepted, or the one that connected.
pub fn rendezvous(bytes: &[u8]) {
    let Some((state, bytes)) = bytes.split_first() else { return };
    let Ok((mut near, far)) = UnixStream::pair() else { return };
    // Bytes that do not fit into the socket are not sent, because nobody reads them.
    let _ = near.set_nonblocking(true).and_then(|()| near.write(bytes));
    let _ = near.shutdown(Shutdown::Write);
    let deadline = Instant::now() + Duration::from_secs(10);
    let (token, far) = (AuthToken::new("a token for fuzzing"), Stream::Unix(far));
    match state % 2 {
        0 => drop(respond(far, &token, deadline)),
        _ => drop(initiate(far, &token, deadline)),
    }
}

/// What a rank does with a message that it has not validated yet.
fn consider(message: Message) {
    match message {
        Message::Join(hello) => {
            let (host, socket) = (String::new(), String::new());
            let (transport, encryption) = (Transport::Auto, Encryption::BetweenHosts);
            let place =
                RankAddress { host, transport, encryption, address: None, port: 1, socket, numa: None };
            let algorithm = Algorithm::Auto;
            let own =
                Hello { version: PROTOCOL_VERSION, rank: 0, world_size: 4, restart: 0, algorithm, place };
            let _ = mismatch(&own, &hello);
        }
        Message::RankTable(table) => {
            let ranks = table.addresses.len().min(8);
            let pairs = (0..ranks).flat_map(|a| (0..ranks).map(move |b| (a, b)));
            pairs.for_each(|(a, b)| drop(table.share_memory(a, b)));
        }
        message => drop(message.frame()),
    }
}

/// One frame of each kind of message.
#[cfg(test)]
pub(crate) fn messages(status: &crate::flight::RankStatus) -> Vec<Vec<u8>> {
    use super::wire::message::{LinkHello, LinkUse, RankTable};
    let place = RankAddress {
        host: "host".into(),
        transport: Transport::Tcp,
        encryption: Encryption::BetweenHosts,
        address: None,
        port: 29400,
        socket: "socket".into(),
        numa: Some(0),
    };
    let (algorithm, place_of_1) = (Algorithm::Auto, place.clone());
    let hello =
        Hello { version: PROTOCOL_VERSION, rank: 1, world_size: 4, restart: 0, algorithm, place: place_of_1 };
    let link = LinkHello { world: 3, from: 1, group: 7, r#use: LinkUse::Collective };
    let root = crate::flight::unresponsive(0, Duration::from_secs(2)).root;
    let messages = [
        Message::Join(hello),
        Message::RankTable(RankTable { world: 3, addresses: vec![place; 3] }),
        Message::Refused { reason: "reason".into(), again: true },
        Message::Link(link),
        Message::Ping,
        Message::Fault { origin: 3, died: false, root, reason: "reason".into() },
        Message::StatusRequest,
        Message::Status(status.clone()),
        Message::Status(status.clone()),
        Message::Diagnosis(crate::flight::unresponsive(1, Duration::ZERO)),
        Message::Done,
        Message::AllDone,
    ];
    messages.iter().map(Message::frame).collect()
}
