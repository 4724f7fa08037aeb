//! The messages of rendezvous and control plane, and how they are framed: a length of four bytes, then JSON.

use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Diagnosis, StalledRank};
use crate::flight::RankStatus;
use crate::limits::MAX_FRAME_BYTES;
use crate::locality::{Locality, localities};
use crate::op::algorithm::Algorithm;
use crate::transport::{Encryption, Transport};

/// The longest text that a rank may announce about itself, in bytes.
pub(in crate::join) const MAX_TEXT_BYTES: usize = 256;

/// What ranks tell each other outside of operations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::join) enum Message {
    /// To rank 0: a rank that wants to join.
    Join(Hello),
    /// From rank 0: all ranks have joined.
    RankTable(RankTable),
    /// This connection is refused; `again` says whether another try may be accepted.
    Refused { reason: String, again: bool },
    /// To a peer: a link for a group.
    Link(LinkHello),
    /// Keeps the connection busy, so that a lost host is noticed.
    Ping,
    /// Some rank failed; where it gave up waiting, because of the ranks at the `root`.
    Fault { origin: usize, died: bool, root: Vec<StalledRank>, reason: String },
    /// To rank 0: who holds up this rank? From rank 0: what do you wait for?
    StatusRequest,
    /// To rank 0: what this rank waits for.
    Status(RankStatus),
    /// From rank 0: who holds up the receiver.
    Diagnosis(Diagnosis),
    /// To rank 0: this rank is done.
    Done,
    /// From rank 0: all ranks are done.
    AllDone,
    /// Over a channel, outside of worlds.
    Text(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::join) struct Hello {
    pub(in crate::join) version: u32,
    pub(in crate::join) rank: usize,
    pub(in crate::join) world_size: usize,
    /// Which start of the world it belongs to.
    #[serde(default)]
    pub(in crate::join) restart: u32,
    #[serde(default)]
    pub(in crate::join) algorithm: Algorithm,
    pub(in crate::join) place: RankAddress,
}

/// Where a rank can be found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::join) struct RankAddress {
    /// Its host identity.
    pub(in crate::join) host: String,
    pub(in crate::join) transport: Transport,
    pub(in crate::join) encryption: Encryption,
    /// Its address: of the interface that it has chosen, or else as rank 0 sees it; none for a rank on rank 0's host then.
    pub(in crate::join) address: Option<IpAddr>,
    /// Its TCP port for links.
    pub(in crate::join) port: u16,
    /// Its abstract Unix socket for links.
    pub(in crate::join) socket: String,
    /// The NUMA node that it is bound to.
    #[serde(default)]
    pub(in crate::join) numa: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::join) struct RankTable {
    /// A random number that distinguishes this world from others.
    pub(in crate::join) world: u64,
    pub(in crate::join) addresses: Vec<RankAddress>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::join) struct LinkHello {
    pub(in crate::join) world: u64,
    pub(in crate::join) from: usize,
    pub(in crate::join) group: u64,
    pub(in crate::join) r#use: LinkUse,
}

/// What a connection between two ranks of a group is for. Over a Unix socket it brings the descriptors of shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::join) enum LinkUse {
    /// Collectives, in both directions.
    Collective,
    /// What the caller sends to the other alone.
    Transfer,
}

impl RankTable {
    /// Where each rank runs.
    pub(in crate::join) fn localities(&self) -> Arc<[Locality]> {
        // Without chosen interfaces rank 0 does not know its own address.
        let chosen = self.addresses.first().is_some_and(|rank_0| rank_0.address.is_some());
        let locality = |rank: &RankAddress| Locality {
            host: 0,
            numa: rank.numa,
            address: rank.address.filter(|_| chosen),
        };
        localities(self.addresses.iter().map(|rank| (&*rank.host, locality(rank)))).into()
    }

    /// Whether what two ranks send each other over TCP is sealed: between hosts, unless both leave it out.
    pub(in crate::join) fn is_sealed(&self, a: usize, b: usize) -> bool {
        let (left, right) = (&self.addresses[a], &self.addresses[b]);
        let same_host = !left.host.is_empty() && left.host == right.host;
        !same_host && [left, right].iter().any(|place| place.encryption == Encryption::BetweenHosts)
    }

    /// Whether two ranks share memory, or why they cannot although one of them insists.
    pub(in crate::join) fn share_memory(&self, a: usize, b: usize) -> Result<bool, String> {
        let (left, right) = (&self.addresses[a], &self.addresses[b]);
        let same_host = !left.host.is_empty() && left.host == right.host;
        match (left.transport, right.transport) {
            (Transport::Auto, Transport::Auto) => Ok(same_host),
            (Transport::SharedMemory, Transport::Tcp) | (Transport::Tcp, Transport::SharedMemory) => {
                Err(format!("ranks {a} and {b} have different transports, shared memory and TCP"))
            }
            (Transport::Tcp, _) | (_, Transport::Tcp) => Ok(false),
            _ if same_host => Ok(true),
            _ => Err(format!(
                "ranks {a} and {b} cannot share memory: they run on different hosts, in different network \
                 namespaces or for different users"
            )),
        }
    }
}

impl Message {
    /// The message as it goes over the wire.
    pub(in crate::join) fn frame(&self) -> Vec<u8> {
        // Every type in a message has a JSON form, so that this cannot fail; an empty body is refused by the receiver.
        let body = serde_json::to_vec(self).unwrap_or_default();
        let mut frame = (body.len() as u32).to_le_bytes().to_vec();
        frame.extend(body);
        frame
    }

    pub(in crate::join) fn decode(body: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(body).map_err(|error| format!("a message cannot be understood: {error}"))
    }
}

/// The length of a message's body, from its first four bytes.
pub(in crate::join) fn body_length(prefix: [u8; 4]) -> Result<usize, String> {
    let length = u32::from_le_bytes(prefix) as usize;
    if length > MAX_FRAME_BYTES {
        return Err(format!(
            "a message of {length} bytes was announced, but at most {MAX_FRAME_BYTES} are \
        allowed"
        ));
    }
    Ok(length)
}

/// Puts messages together from the pieces in which they arrive.
#[derive(Default)]
pub(in crate::join) struct FrameBuffer {
    bytes: Vec<u8>,
}

impl FrameBuffer {
    /// Adds what arrived. Call [`next`](Self::next) until it returns nothing before adding more.
    pub(in crate::join) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole message.
    pub(in crate::join) fn next(&mut self) -> Result<Option<Message>, String> {
        let Some(prefix) = self.bytes.first_chunk::<4>() else { return Ok(None) };
        let end = 4 + body_length(*prefix)?;
        if self.bytes.len() < end {
            return Ok(None);
        }
        let message = Message::decode(&self.bytes[4..end])?;
        self.bytes.drain(..end);
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limits::MAX_WORLD_SIZE;

    fn place(host: &str, transport: Transport) -> RankAddress {
        RankAddress {
            host: host.into(),
            transport,
            encryption: Encryption::BetweenHosts,
            address: None,
            port: 1,
            numa: Some(63),
            socket: "s".into(),
        }
    }

    #[test]
    fn who_shares_memory() {
        use Transport::{Auto, SharedMemory, Tcp};
        let addresses = vec![place("a", Auto), place("a", SharedMemory), place("a", Tcp), place("b", Auto)];
        let table = RankTable { world: 0, addresses };
        assert_eq!(table.share_memory(0, 1), Ok(true));
        assert_eq!(table.share_memory(0, 2), Ok(false));
        assert_eq!(table.share_memory(0, 3), Ok(false));
        assert!(table.share_memory(1, 2).is_err());
        assert!(table.share_memory(3, 1).is_err());
        let hidden = RankTable { world: 0, addresses: vec![place("", Auto), place("", Auto)] };
        assert_eq!(hidden.share_memory(0, 1), Ok(false));
    }

    #[test]
    fn what_leaves_a_host_is_sealed() {
        let open = |host| RankAddress { encryption: Encryption::Off, ..place(host, Transport::Auto) };
        let places = [place("a", Transport::Tcp), place("a", Transport::Auto), place("b", Transport::Auto)];
        let addresses = places.into_iter().chain(["c", "d", ""].map(open)).collect();
        let table = RankTable { world: 0, addresses };
        assert_eq!(
            [(0, 1), (1, 2), (2, 3), (3, 2)].map(|(a, b)| table.is_sealed(a, b)),
            [false, true, true, true]
        );
        assert_eq!([(3, 4), (4, 5)].map(|(a, b)| table.is_sealed(a, b)), [false, false]);
    }

    #[test]
    fn the_largest_table_fits_into_a_frame() {
        let text = "x".repeat(MAX_TEXT_BYTES);
        let place = RankAddress {
            host: text.clone(),
            transport: Transport::SharedMemory,
            encryption: Encryption::BetweenHosts,
            address: Some("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".parse().unwrap()),
            port: u16::MAX,
            numa: Some(63),
            socket: "brigade-0123456789abcdef0123456789abcdef".into(),
        };
        let table = RankTable { world: u64::MAX, addresses: vec![place; MAX_WORLD_SIZE] };
        assert!(Message::RankTable(table).frame().len() <= MAX_FRAME_BYTES);
    }

    proptest! {
        #[test]
        fn messages_arrive_however_they_are_cut(cuts in proptest::collection::vec(1usize..9, 1..50)) {
            let messages = [
                Message::Ping,
                Message::Fault { origin: 3, died: true, root: vec![], reason: "\u{0}\"text\" ä".into() },
                Message::AllDone,
            ];
            let mut bytes: &[u8] = &messages.iter().flat_map(Message::frame).collect::<Vec<_>>();
            let (mut buffer, mut received) = (FrameBuffer::default(), Vec::new());
            for cut in cuts.iter().cycle() {
                let (piece, rest) = bytes.split_at(bytes.len().min(*cut));
                buffer.push(piece);
                while let Some(message) = buffer.next().unwrap() {
                    received.push(message);
                }
                bytes = rest;
                if bytes.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(&received[..], &messages[..]);
        }

        #[test]
        fn arbitrary_bytes_are_an_error_or_wait_for_more(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            length in proptest::option::of(0u32..200),
        ) {
            let mut buffer = FrameBuffer::default();
            if let Some(length) = length {
                buffer.push(&length.to_le_bytes());
            }
            buffer.push(&bytes);
            while let Ok(Some(_)) = buffer.next() {}
            prop_assert!(buffer.bytes.capacity() < 1024);
        }
    }
}
