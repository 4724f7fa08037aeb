//! Binds the rendezvous socket that rank 0 serves.
//!
//! The launcher binds the socket before it starts any rank and hands the open descriptor to rank 0. So the port in the ranks'
//! environment is taken from the start, and a port that is in use is found before anything runs.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use crate::{
    endpoint::Endpoint,
    error::{Error, Result},
};

/// Binds the rendezvous socket of node 0 and returns the endpoint at which the ranks reach it.
///
/// Without an endpoint it is a free port of 127.0.0.1. A world of several nodes is served on all addresses of
/// this machine, as the endpoint's name may stand for another address here (127.0.1.1, a service address)
/// than elsewhere.
pub fn bind(endpoint: Option<&Endpoint>, nnodes: usize) -> Result<(TcpListener, Endpoint)> {
    let at = |address: String| move |source| Error::Bind { address, source };
    let Some(endpoint) = endpoint else {
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = TcpListener::bind(loopback).map_err(at(loopback.to_string()))?;
        let port = listener.local_addr().map_err(at(loopback.to_string()))?.port();
        return Ok((listener, Endpoint { host: Ipv4Addr::LOCALHOST.to_string(), port }));
    };
    let listener = match nnodes {
        1 => TcpListener::bind((endpoint.host.as_str(), endpoint.port)).map_err(at(endpoint.to_string()))?,
        _ => bind_everywhere(&endpoint.host, endpoint.port)?,
    };
    Ok((listener, endpoint.clone()))
}

/// Binds a free port on all addresses of this machine by which others may reach the endpoint's host.
pub fn bind_free_port(endpoint: &Endpoint) -> Result<(TcpListener, u16)> {
    let listener = bind_everywhere(&endpoint.host, 0)?;
    let address = listener.local_addr();
    let port = address.map_err(|source| Error::Bind { address: endpoint.to_string(), source })?.port();
    Ok((listener, port))
}

/// Binds a port on all addresses of the family of `host`. A name may stand for addresses of both families, and for none yet: then of both, where this machine
/// has IPv6.
fn bind_everywhere(host: &str, port: u16) -> Result<TcpListener> {
    let bind = |address: IpAddr| {
        let everywhere = SocketAddr::from((address, port));
        TcpListener::bind(everywhere).map_err(|source| (source, everywhere.to_string()))
    };
    let (v4, v6) = (Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into());
    let bound = match host.parse() {
        Ok(IpAddr::V4(_)) => bind(v4),
        Ok(IpAddr::V6(_)) => bind(v6),
        Err(_) => bind(v6).or_else(|error| match error.0.kind() {
            ErrorKind::AddrInUse => Err(error),
            _ => bind(v4),
        }),
    };
    bound.map_err(|(source, address)| Error::Bind { address, source })
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;
    use crate::check_endpoint;

    #[test]
    fn a_port_in_use_is_named() {
        let (held, endpoint) = bind(None, 1).unwrap();
        assert_eq!(held.local_addr().unwrap().to_string(), endpoint.to_string());
        for nnodes in [1, 2] {
            let message = bind(Some(&endpoint), nnodes).unwrap_err().to_string();
            assert!(message.contains(&endpoint.port.to_string()) && message.contains("in use"), "{message}");
            assert!(check_endpoint(&endpoint, nnodes).is_err());
        }
        drop(held);
        check_endpoint(&endpoint, 1).unwrap();
        bind(Some(&endpoint), 1).unwrap();
    }

    /// The pods of a cluster start before their names are known.
    #[test]
    fn a_name_without_an_address_is_reached_by_those_of_both_families() {
        let named = |port| Endpoint { host: "node-0.not-yet.invalid".into(), port };
        let (listener, port) = bind_free_port(&named(1)).unwrap();
        let reached = |port: u16| {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            // Not every machine has IPv6.
            if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
                TcpStream::connect((Ipv6Addr::LOCALHOST, port)).unwrap();
            }
        };
        reached(port);
        let message = bind(Some(&named(port)), 2).unwrap_err().to_string();
        assert!(message.contains(&port.to_string()) && message.contains("in use"), "{message}");
        drop(listener);
        let (_listener, _) = bind(Some(&named(port)), 2).unwrap();
        reached(port);
        let (listener, _) = bind_free_port(&Endpoint { host: "10.0.0.1".into(), port }).unwrap();
        assert!(listener.local_addr().unwrap().is_ipv4());
    }
}
