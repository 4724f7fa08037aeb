//! The address of the rendezvous.

use std::io;
use std::net::{IpAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use crate::join::wire::handshake::Stream;

/// Host and port of an endpoint.
pub(in crate::join) fn parse_endpoint(endpoint: &str) -> Option<(&str, u16)> {
    let (host, port) = endpoint.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    (!host.is_empty()).then_some(())?;
    Some((host, port.parse().ok()?))
}

/// Listens at a port: on the loopback interface alone if the world cannot reach further, on all otherwise, because a
/// name that others know this host by need not be an address of its own.
pub(in crate::join) fn listen(host: &str, port: u16) -> io::Result<TcpListener> {
    match host.parse::<IpAddr>() {
        Ok(address) if address.is_loopback() => TcpListener::bind((address, port)),
        _ if host == "localhost" => TcpListener::bind(("127.0.0.1", port)),
        _ => TcpListener::bind(("::", port)).or_else(|error| match error.kind() {
            io::ErrorKind::AddrInUse => Err(error),
            _ => TcpListener::bind(("0.0.0.0", port)),
        }),
    }
}

/// Connects to the first address of an endpoint that answers.
pub(in crate::join) fn dial(endpoint: &str, wait: Duration) -> io::Result<Stream> {
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
