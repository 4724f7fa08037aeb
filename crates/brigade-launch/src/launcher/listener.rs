//! Binds the rendezvous socket that rank 0 serves.
//!
//! The launcher binds the socket before it starts any rank and hands the open descriptor to rank 0. So the port in the ranks'
//! environment is taken from the start, and a port that is in use is found before anything runs.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};

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
        _ => {
            let everywhere = any_address(endpoint);
            TcpListener::bind(everywhere).map_err(at(everywhere.to_string()))?
        }
    };
    Ok((listener, endpoint.clone()))
}

/// Binds a free port on all addresses of this machine by which others may reach the endpoint's host.
pub fn bind_free_port(endpoint: &Endpoint) -> Result<(TcpListener, u16)> {
    let mut everywhere = any_address(endpoint);
    everywhere.set_port(0);
    let bound = TcpListener::bind(everywhere).and_then(|listener| {
        let port = listener.local_addr()?.port();
        Ok((listener, port))
    });
    bound.map_err(|source| Error::Bind { address: everywhere.to_string(), source })
}

/// The wildcard address of the family by which others reach the endpoint.
fn any_address(endpoint: &Endpoint) -> SocketAddr {
    let resolved = (endpoint.host.as_str(), endpoint.port).to_socket_addrs();
    let found: Vec<SocketAddr> = resolved.map(Iterator::collect).unwrap_or_default();
    match !found.is_empty() && found.iter().all(SocketAddr::is_ipv6) {
        true => (Ipv6Addr::UNSPECIFIED, endpoint.port).into(),
        false => (Ipv4Addr::UNSPECIFIED, endpoint.port).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_named() {
        let (held, endpoint) = bind(None, 1).unwrap();
        assert_eq!(held.local_addr().unwrap().to_string(), endpoint.to_string());
        for nnodes in [1, 2] {
            let message = bind(Some(&endpoint), nnodes).unwrap_err().to_string();
            assert!(message.contains(&endpoint.port.to_string()) && message.contains("in use"), "{message}");
        }
    }
}
