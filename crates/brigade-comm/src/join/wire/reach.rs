//! Connecting to another rank, with retries.

use std::io;
use std::time::{Duration, Instant};

use super::handshake::{SecureStream, Stream};
use crate::join::wire::auth_token::AuthToken;
use crate::join::wire::handshake::{HANDSHAKE_TIMEOUT, HandshakeError, initiate};

/// The pause between two tries.
pub(in crate::join) const RETRY: Duration = Duration::from_millis(50);

/// Connects and proves to know the token, trying again until the deadline. Returns the last failure.
pub(in crate::join) fn reach(
    open: impl Fn(Duration) -> io::Result<Stream>,
    token: &AuthToken,
    deadline: Instant,
    give_up: impl Fn() -> bool,
) -> Result<SecureStream, HandshakeError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let attempt = || {
            let stream = open(left.min(HANDSHAKE_TIMEOUT))?;
            initiate(stream, token, Instant::now() + left.min(HANDSHAKE_TIMEOUT))
        };
        match attempt() {
            Err(error) if error.is_transient() && Instant::now() + RETRY < deadline && !give_up() => {
                std::thread::sleep(RETRY);
            }
            outcome => return outcome,
        }
    }
}
