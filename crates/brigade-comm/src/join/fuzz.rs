//! Arbitrary bytes in the place of another rank's messages.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use brigade_sorted::SortedMap;

use super::wire::handshake::{ACCEPTED, HandshakeError, MAGIC, MESSAGE_BYTES, Stream};
use super::wire::message::{FrameBuffer, Hello, LinkHello, LinkUse, Message, RankAddress, RankTable};
use crate::flight::fuzz::statuses;
use crate::flight::{diagnose_stall, unresponsive};
use crate::join::rendezvous::rank_0::mismatch;
use crate::join::wire::auth_token::AuthToken;
use crate::join::wire::handshake::{initiate, respond};
use crate::op::algorithm::Algorithm;
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

/// Whether bytes of a control connection begin with a whole message.
pub fn begins_with_message(bytes: &[u8]) -> bool {
    let mut buffer = FrameBuffer::default();
    buffer.push(bytes);
    matches!(buffer.next(), Ok(Some(_)))
}

/// The body of one message of each kind, and a second status.
pub fn message_payloads() -> Vec<Vec<u8>> {
    messages().iter().map(|message| message.frame().split_off(4)).collect()
}

/// Bytes of a new connection. The first byte chooses who reads them: the side that accepted, or the one that connected.
pub fn rendezvous(bytes: &[u8]) {
    is_handshake(bytes);
}

/// Whether [`rendezvous`] takes the bytes for a handshake, whatever token its other side has.
pub fn is_handshake(bytes: &[u8]) -> bool {
    let Some((state, bytes)) = bytes.split_first() else { return false };
    let Ok((mut near, far)) = UnixStream::pair() else { return false };
    // Bytes that do not fit into the socket are not sent, because nobody reads them.
    let _ = near.set_nonblocking(true).and_then(|()| near.write(bytes));
    let _ = near.shutdown(Shutdown::Write);
    let deadline = Instant::now() + Duration::from_secs(10);
    let (token, far) = (AuthToken::new("a token for fuzzing"), Stream::Unix(far));
    let met = match state % 2 {
        0 => respond(far, &token, deadline),
        _ => initiate(far, &token, deadline),
    };
    matches!(met, Ok(_) | Err(HandshakeError::WrongToken))
}

/// What the side that connected sends, and what the one that accepted does.
pub fn handshake_payloads() -> Vec<Vec<u8>> {
    let message = [7; MESSAGE_BYTES];
    vec![[&MAGIC[..], &message].concat(), [&MAGIC[..], &[ACCEPTED], &message].concat()]
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

/// One message of each kind, and a second status.
fn messages() -> [Message; 13] {
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
    let root = unresponsive(0, Duration::from_secs(2)).root;
    let [status_of_0, status_of_1] = statuses();
    [
        Message::Join(hello),
        Message::RankTable(RankTable { world: 3, addresses: vec![place; 3] }),
        Message::Refused { reason: "reason".into(), again: true },
        Message::Link(LinkHello { world: 3, from: 1, group: 7, r#use: LinkUse::Collective }),
        Message::Ping,
        Message::Fault { origin: 3, died: false, root, reason: "reason".into() },
        Message::StatusRequest,
        Message::Status(status_of_0),
        Message::Status(status_of_1),
        Message::Diagnosis(unresponsive(1, Duration::ZERO)),
        Message::Done,
        Message::AllDone,
        Message::Text("text".into()),
    ]
}

#[cfg(test)]
mod tests {
    use brigade_sorted::SortedSet;

    use super::*;

    #[test]
    fn there_is_a_payload_of_each_kind_of_message() {
        let kind = |message: &Message| match message {
            Message::Join(_) => 0,
            Message::RankTable(_) => 1,
            Message::Refused { .. } => 2,
            Message::Link(_) => 3,
            Message::Ping => 4,
            Message::Fault { .. } => 5,
            Message::StatusRequest => 6,
            Message::Status(_) => 7,
            Message::Diagnosis(_) => 8,
            Message::Done => 9,
            Message::AllDone => 10,
            Message::Text(_) => 11,
        };
        let decoded = message_payloads().into_iter().map(|body| Message::decode(&body).unwrap());
        let kinds: SortedSet<usize> = decoded.map(|message| kind(&message)).collect();
        assert!(kinds.into_iter().eq(0..12));
    }

    #[test]
    fn what_is_no_message_or_handshake_is_told_apart() {
        let whole = messages()[4].frame();
        assert!(begins_with_message(&whole));
        assert!(!begins_with_message(&whole[..whole.len() - 1]));
        assert!(!begins_with_message(b"\x06\0\0\0\"Pong\""));
        for payload in handshake_payloads() {
            assert!([0, 1].iter().all(|state| is_handshake(&[&[*state][..], &payload].concat())));
            assert!([0, 1].iter().all(|state| !is_handshake(&[&[*state][..], &payload[1..]].concat())));
        }
    }
}
