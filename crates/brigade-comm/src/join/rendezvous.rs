//! How the ranks of a world find each other: everybody calls rank 0, which tells everybody about everybody.

use std::io;
use std::net::{IpAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::acceptor::{Acceptor, HANDSHAKE_TIMEOUT, JoinRequest};
use super::auth_token::{AuthToken, random};
use super::handshake::{HandshakeError, Stream, initiate};
use super::message::{Hello, MAX_TEXT_BYTES, Message, RankAddress, RankTable};
use crate::error::Error;
use crate::open_files::is_out_of_files;

/// How much longer than rank 0 the others wait, so that rank 0 can still tell them who is missing.
const GRACE: Duration = Duration::from_secs(5);

/// How long a rank of another start may take to hear that it is refused.
const REFUSAL: Duration = Duration::from_secs(1);

/// Between two tries to reach somebody.
const RETRY: Duration = Duration::from_millis(50);

/// Host and port of an endpoint.
pub(super) fn parse_endpoint(endpoint: &str) -> Option<(&str, u16)> {
    let (host, port) = endpoint.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    (!host.is_empty()).then_some(())?;
    Some((host, port.parse().ok()?))
}

/// Listens at a port: on the loopback interface alone if the world cannot reach further, on all otherwise, because a
/// name that others know this host by need not be an address of its own.
pub(super) fn listen(host: &str, port: u16) -> io::Result<TcpListener> {
    match host.parse::<IpAddr>() {
        Ok(address) if address.is_loopback() => TcpListener::bind((address, port)),
        _ if host == "localhost" => TcpListener::bind(("127.0.0.1", port)),
        _ => TcpListener::bind(("::", port)).or_else(|error| match error.kind() {
            io::ErrorKind::AddrInUse => Err(error),
            _ => TcpListener::bind(("0.0.0.0", port)),
        }),
    }
}

/// Connects and proves to know the token, again and again until the deadline. Gives the last failure.
pub(super) fn reach(
    open: impl Fn(Duration) -> io::Result<Stream>,
    token: &AuthToken,
    deadline: Instant,
    give_up: impl Fn() -> bool,
) -> Result<Stream, HandshakeError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let attempt = || {
            let mut stream = open(left.min(HANDSHAKE_TIMEOUT))?;
            initiate(&mut stream, token, Instant::now() + left.min(HANDSHAKE_TIMEOUT))?;
            Ok::<_, HandshakeError>(stream)
        };
        match attempt() {
            Err(error) if error.is_transient() && Instant::now() + RETRY < deadline && !give_up() => {
                std::thread::sleep(RETRY);
            }
            outcome => return outcome,
        }
    }
}

/// Rank 0's side: waits for all others and tells them. Gives the table and the connections to ranks 1, 2, ….
pub(super) fn host(
    endpoint: &str,
    own: Hello,
    requests: &Receiver<Result<JoinRequest, Error>>,
    acceptor: &Acceptor,
    wait: Duration,
) -> Result<(RankTable, Vec<TcpStream>), Error> {
    let mut joined = Vec::new();
    let outcome = gather(endpoint, own, requests, acceptor, wait, &mut joined);
    acceptor.close_rendezvous();
    let deadline = Instant::now() + Duration::from_secs(2);
    let outcome = outcome.and_then(|table| {
        let frame = Message::RankTable(table.clone()).frame();
        for (rank, stream) in &mut joined {
            stream.write_all(&frame, Instant::now() + HANDSHAKE_TIMEOUT).map_err(|error| {
                Error::PeerDied { peer: *rank, reason: format!("it left the rendezvous: {error}") }
            })?;
        }
        Ok(table)
    });
    match outcome {
        Ok(table) => {
            joined.sort_by_key(|(rank, _)| *rank);
            let streams = joined.into_iter().filter_map(|(_, stream)| match stream {
                Stream::Tcp(stream) => Some(stream),
                Stream::Unix(_) => None,
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

/// Waits until every rank is there and fits. `joined` holds whoever has come, also when it fails.
fn gather(
    endpoint: &str,
    own: Hello,
    requests: &Receiver<Result<JoinRequest, Error>>,
    acceptor: &Acceptor,
    wait: Duration,
    joined: &mut Vec<(usize, Stream)>,
) -> Result<RankTable, Error> {
    let deadline = Instant::now() + wait;
    let world_size = own.world_size;
    let mut addresses: Vec<Option<RankAddress>> = vec![None; world_size];
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
            let twice = || format!("rank {rank} came twice (the second time from {address})");
            addresses[rank].is_some().then(twice)
        });
        if let Some(reason) = mismatch {
            return Err(Error::Rendezvous { endpoint: endpoint.into(), reason });
        }
        let mut place = hello.place;
        place.address = (!address.is_loopback()).then_some(address);
        addresses[rank] = Some(place);
    }
    let table = RankTable {
        world: u64::from_ne_bytes(random()?),
        addresses: addresses.into_iter().flatten().collect(),
    };
    for a in 0..world_size {
        for b in a + 1..world_size {
            let fits = table.share_memory(a, b);
            fits.map_err(|reason| Error::Rendezvous { endpoint: endpoint.into(), reason })?;
        }
    }
    Ok(table)
}

/// Says so if a rank belongs to another start of the world than rank 0.
fn other_start(own: &Hello, Hello { version, rank, restart, .. }: &Hello) -> Option<String> {
    (*version == own.version && *restart != own.restart).then(|| {
        let own = own.restart;
        format!("rank {rank} belongs to restart {restart} of the world, rank 0 to restart {own}")
    })
}

/// Why a rank does not fit into rank 0's world.
pub(super) fn mismatch(
    own: &Hello,
    Hello { version, rank, world_size, place, .. }: &Hello,
) -> Option<String> {
    if *version != own.version {
        Some(format!("rank {rank} speaks protocol version {version}, rank 0 speaks {}", own.version))
    } else if *world_size != own.world_size {
        Some(format!("rank {rank} has a world size of {world_size}, rank 0 has {}", own.world_size))
    } else if *rank >= own.world_size {
        Some(format!("rank {rank} came to a world of {world_size}"))
    } else if place.host.len() > MAX_TEXT_BYTES || place.socket.len() > MAX_TEXT_BYTES {
        Some(format!("rank {rank} announces a name of more than {MAX_TEXT_BYTES} bytes"))
    } else {
        None
    }
}

/// The side of every other rank: calls rank 0 and waits until everybody is there. Gives the table and the connection.
pub(super) fn join_rank_0(
    endpoint: &str,
    token: &AuthToken,
    hello: &Hello,
    wait: Duration,
) -> Result<(RankTable, TcpStream), Error> {
    let Hello { rank, world_size, .. } = *hello;
    let deadline = Instant::now() + wait;
    let unreachable =
        |reason: String| Error::Unreachable { rank, endpoint: endpoint.into(), waited: wait, reason };
    let refused = |reason| Error::Refused { rank, endpoint: endpoint.into(), reason };
    loop {
        let mut stream =
            reach(|left| dial(endpoint, left), token, deadline, || false).map_err(|error| match error {
                HandshakeError::WrongToken => refused("its token is another one".into()),
                HandshakeError::Io(error) if is_out_of_files(&error) => {
                    Error::system("connect to rank 0", error)
                }
                error => unreachable(error.to_string()),
            })?;
        let told = stream.send(&Message::Join(hello.clone()), deadline);
        told.map_err(|error| unreachable(error.to_string()))?;
        return match stream.receive(deadline + GRACE) {
            Ok(Message::RankTable(table)) if table.addresses.len() == world_size => match stream {
                Stream::Tcp(stream) => Ok((table, stream)),
                Stream::Unix(_) => Err(unreachable("it did not answer over TCP".into())),
            },
            // Rank 0's place is still taken by that of an earlier start.
            Ok(Message::Refused { again: true, .. }) if Instant::now() + RETRY < deadline => {
                std::thread::sleep(RETRY);
                continue;
            }
            Ok(Message::Refused { reason, .. }) => Err(refused(reason)),
            Ok(message) => Err(unreachable(format!("it answered with {message:?}"))),
            Err(error) => Err(unreachable(format!("no word from it since it was reached: {error}"))),
        };
    }
}

/// Connects to the first address of an endpoint that answers.
fn dial(endpoint: &str, wait: Duration) -> io::Result<Stream> {
    let (host, port) = parse_endpoint(endpoint).ok_or(io::ErrorKind::InvalidInput)?;
    let mut last = io::Error::other(format!("{host} has no address"));
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, wait) {
            Ok(stream) => return Ok(Stream::Tcp(stream)),
            Err(error) => last = error,
        }
    }
    Err(last)
}
