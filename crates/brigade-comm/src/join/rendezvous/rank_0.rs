//! Rank 0's side of the rendezvous.

use std::net::TcpStream;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::addresses::{Arrival, check_addresses};
use crate::error::Error;
use crate::join::network::acceptor::{Acceptor, JoinRequest};
use crate::join::wire::auth_token::random;
use crate::join::wire::handshake::{HANDSHAKE_TIMEOUT, SecureStream, Stream};
use crate::join::wire::message::{Hello, MAX_TEXT_BYTES, Message, RankAddress, RankTable};
use crate::link::tcp::session::Session;

/// How long a rank of another start may take to receive its refusal.
const REFUSAL: Duration = Duration::from_secs(1);

/// Rank 0's side: waits for all other ranks and sends them the table. Returns it, with the connections to ranks 1, 2, ….
pub(in crate::join) fn serve(
    endpoint: &str,
    own: Hello,
    requests: &Receiver<Result<JoinRequest, Error>>,
    acceptor: &Acceptor,
    wait: Duration,
) -> Result<(RankTable, Vec<(TcpStream, Session)>), Error> {
    let mut joined = Vec::new();
    let outcome = collect(endpoint, own, requests, acceptor, wait, &mut joined);
    acceptor.close_rendezvous();
    let deadline = Instant::now() + Duration::from_secs(2);
    let outcome = outcome.and_then(|table| {
        let frame = Message::RankTable(table.clone()).frame();
        for (rank, stream) in &mut joined {
            stream.send_frame(&frame, Instant::now() + HANDSHAKE_TIMEOUT).map_err(|error| {
                Error::PeerDied { peer: *rank, reason: format!("it left the rendezvous: {error}") }
            })?;
        }
        Ok(table)
    });
    match outcome {
        Ok(table) => {
            joined.sort_by_key(|(rank, _)| *rank);
            let streams = joined.into_iter().filter_map(|(_, stream)| match stream.into_parts() {
                (Stream::Tcp(stream), session) => Some((stream, session)),
                (Stream::Unix(_), _) => None,
            });
            Ok((table, streams.collect()))
        }
        Err(error) => {
            let late = requests.try_iter().flatten().map(|request| (request.hello.rank, request.stream));
            for (_, mut stream) in joined.into_iter().chain(late) {
                // Who cannot be told finds out by the closed connection.
                let _ = stream.send(&Message::Refused { reason: error.to_string(), again: false }, deadline);
            }
            Err(error)
        }
    }
}

/// Waits until every rank has joined and fits. `joined` holds the ranks that have joined, even if this fails.
fn collect(
    endpoint: &str,
    own: Hello,
    requests: &Receiver<Result<JoinRequest, Error>>,
    acceptor: &Acceptor,
    wait: Duration,
    joined: &mut Vec<(usize, SecureStream)>,
) -> Result<RankTable, Error> {
    let deadline = Instant::now() + wait;
    let world_size = own.world_size;
    let mut addresses: Vec<Option<RankAddress>> = vec![None; world_size];
    let mut arrivals = vec![Arrival::of(&own.place, None); world_size];
    addresses[0] = Some(own.place.clone());
    while joined.len() + 1 < world_size {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok(request) = requests.recv_timeout(left) else {
            let missing = (0..world_size).filter(|rank| addresses[*rank].is_none()).collect();
            let refused = acceptor.refused();
            return Err(Error::Missing {
                endpoint: endpoint.into(),
                waited: wait,
                missing,
                world_size,
                refused,
            });
        };
        let JoinRequest { hello, stream, address } = request?;
        let rank = hello.rank;
        if let Some(reason) = other_start(&own, &hello) {
            let newer = hello.restart > own.restart;
            // Who cannot be told finds out by the closed connection.
            let told = Message::Refused { reason: reason.clone(), again: newer };
            let mut stream = stream;
            let _ = stream.send(&told, Instant::now() + REFUSAL);
            if newer {
                return Err(Error::Rendezvous { endpoint: endpoint.into(), reason });
            }
            continue;
        }
        joined.push((rank, stream));
        let mismatch = mismatch(&own, &hello).or_else(|| {
            let twice = || format!("rank {rank} connected twice (the second time from {address})");
            addresses[rank].is_some().then(twice)
        });
        if let Some(reason) = mismatch {
            return Err(Error::Rendezvous { endpoint: endpoint.into(), reason });
        }
        let mut place = hello.place;
        arrivals[rank] = Arrival::of(&place, Some(address));
        place.address = place.address.or((!address.is_loopback()).then_some(address));
        addresses[rank] = Some(place);
    }
    let wrong = |reason| Error::Rendezvous { endpoint: endpoint.into(), reason };
    check_addresses(&arrivals).map_err(wrong)?;
    let table = RankTable {
        world: u64::from_ne_bytes(random()?),
        addresses: addresses.into_iter().flatten().collect(),
    };
    for a in 0..world_size {
        for b in a + 1..world_size {
            table.share_memory(a, b).map_err(wrong)?;
        }
    }
    Ok(table)
}

/// An error if a rank belongs to another start of the world than rank 0.
fn other_start(own: &Hello, Hello { version, rank, restart, .. }: &Hello) -> Option<String> {
    (*version == own.version && *restart != own.restart).then(|| {
        let own = own.restart;
        format!("rank {rank} belongs to restart {restart} of the world, but rank 0 to restart {own}")
    })
}

/// Why a rank does not fit into rank 0's world.
pub(in crate::join) fn mismatch(
    own: &Hello,
    Hello { version, rank, world_size, algorithm, place, .. }: &Hello,
) -> Option<String> {
    if *version != own.version {
        Some(format!("rank {rank} speaks protocol version {version}, but rank 0 speaks {}", own.version))
    } else if *world_size != own.world_size {
        Some(format!("rank {rank} has a world size of {world_size}, but rank 0 has {}", own.world_size))
    } else if *rank >= own.world_size {
        Some(format!("rank {rank} connected to a world of {world_size}"))
    } else if *algorithm != own.algorithm {
        Some(format!("rank {rank} uses {algorithm} collectives, but rank 0 uses {}", own.algorithm))
    } else if place.host.len() > MAX_TEXT_BYTES || place.socket.len() > MAX_TEXT_BYTES {
        Some(format!("rank {rank} announces a name of more than {MAX_TEXT_BYTES} bytes"))
    } else {
        None
    }
}
