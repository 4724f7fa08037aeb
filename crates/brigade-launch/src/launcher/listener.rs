//! The rendezvous socket: bound by the launcher, served by rank 0.
//!
//! The launcher binds the socket before it starts any rank and hands the open descriptor to rank 0. So the
//! port that the ranks are told is held from the start, and a port in use is found before anything runs.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs},
    os::fd::{OwnedFd, RawFd},
    sync::atomic::{AtomicBool, Ordering},
};

use crate::inherited_fd;
use crate::{Endpoint, Error, LISTENER_VARIABLE, Result};

/// Binds the rendezvous socket of node 0 and gives the endpoint at which the ranks reach it.
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
pub fn bind_anywhere(endpoint: &Endpoint) -> Result<(TcpListener, u16)> {
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

/// Takes over the listening socket that the launcher bound for this process. `None` in a process that was not
/// given one: any rank but 0, a rank that another launcher started, and at the second call.
///
/// The descriptor's number comes from `BRIGADE_RDZV_FD`. It is taken only if it is a listening socket on the
/// port of `MASTER_PORT`, so that a variable that a grandchild inherited does no harm; afterwards it is
/// closed on exec.
pub fn inherited_listener() -> Result<Option<TcpListener>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let Ok(value) = std::env::var(LISTENER_VARIABLE) else { return Ok(None) };
    let bad = |reason: String| Error::Listener { value: value.clone(), reason };
    let fd: RawFd =
        value.parse().ok().filter(|fd| *fd > 2).ok_or_else(|| bad("it is no descriptor".into()))?;
    if TAKEN.swap(true, Ordering::SeqCst) {
        return Ok(None);
    }
    let expected = std::env::var("MASTER_PORT").unwrap_or_default();
    // SAFETY: the socket that listens on this port is the launcher's for this process, and TAKEN lets nobody take it a second
    // time.
    let listener = unsafe { inherited_fd::take(fd, |socket| check_listening(socket, &expected)) };
    Ok(Some(listener.map_err(|error| bad(error.to_string()))?.into()))
}

fn check_listening(fd: &OwnedFd, expected: &str) -> io::Result<()> {
    // Apple's systems do not tell.
    #[cfg(not(target_vendor = "apple"))]
    if !rustix::net::sockopt::socket_acceptconn(fd)? {
        return Err(io::Error::other("it does not listen"));
    }
    let port = TcpListener::from(fd.try_clone()?).local_addr()?.port();
    if expected != port.to_string() {
        let reason = format!("it listens on port {port}, but MASTER_PORT is {expected:?}");
        return Err(io::Error::other(reason));
    }
    Ok(())
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
