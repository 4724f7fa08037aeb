//! The rendezvous socket that the launcher has bound, in rank 0.

use std::{
    io,
    net::TcpListener,
    os::fd::{OwnedFd, RawFd},
    sync::atomic::{AtomicBool, Ordering},
};

use super::inherited_fd;
use crate::error::{Error, Result};

/// The number of the file descriptor, in rank 0, of the listening socket that the launcher bound.
pub const LISTENER_VARIABLE: &str = "BRIGADE_RDZV_FD";

/// Takes over the listening socket that the launcher bound for this process. `None` in a process that was given none: any
/// rank but 0, a rank that another launcher started, and at the second call.
///
/// The descriptor's number comes from `BRIGADE_RDZV_FD`. It is taken only if it is a listening socket on the
/// port of `MASTER_PORT`, so a variable that a grandchild inherited does no harm; afterwards it is
/// closed on exec.
///
/// # Errors
/// If the variable names something else.
pub fn inherited_listener() -> Result<Option<TcpListener>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let Ok(value) = std::env::var(LISTENER_VARIABLE) else { return Ok(None) };
    let bad = |reason: String| Error::Listener { value: value.clone(), reason };
    let fd: RawFd =
        value.parse().ok().filter(|fd| *fd > 2).ok_or_else(|| bad("it is not a descriptor".into()))?;
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
        return Err(io::Error::other("it is not listening"));
    }
    let port = TcpListener::from(fd.try_clone()?).local_addr()?.port();
    if expected != port.to_string() {
        let reason = format!("it listens on port {port}, but MASTER_PORT is {expected:?}");
        return Err(io::Error::other(reason));
    }
    Ok(())
}
