//! How two processes convince each other that they know the token, without revealing it.
//!
//! The caller sends a fixed word and a random number; the callee answers with the same word and a number of its own.
//! The caller sends the HMAC-SHA256 of both under the token, labelled with its role; the callee compares it in
//! constant time and answers with one byte, 1 for welcome or 0 for refusal, and on welcome with its own HMAC.
//! Until then nothing that a stranger sends has any effect, and it learns nothing.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::join::wire::auth_token::{AuthToken, random};
use crate::join::wire::message::{Message, body_length};
use crate::open_files::{explained, is_out_of_files};

const MAGIC: [u8; 8] = *b"BRIGADE1";
const NONCE: usize = 32;
const ACCEPTED: u8 = 1;

/// How long a connection may take to say who it is.
pub(in crate::join) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A blocking connection of either kind, on which everything has a deadline.
pub(in crate::join) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Why a connection could not be made.
#[derive(Debug)]
pub(in crate::join) enum HandshakeError {
    /// The other side knows another token, or none.
    WrongToken,
    /// The other side is something else.
    UnexpectedPeer(String),
    /// The connection broke or stayed silent.
    Io(io::Error),
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl std::fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::WrongToken => f.write_str("the tokens differ"),
            Self::UnexpectedPeer(text) => f.write_str(text),
            Self::Io(error) if error.kind() == ErrorKind::UnexpectedEof => {
                f.write_str("it closed the connection")
            }
            Self::Io(error) => f.write_str(&explained(error)),
        }
    }
}

impl HandshakeError {
    /// Whether another try may succeed. Descriptors that this process lacks do not come back by themselves.
    pub(in crate::join) fn is_transient(&self) -> bool {
        matches!(self, Self::Io(error) if !is_out_of_files(error))
    }
}

impl Stream {
    /// Undoes what a stream inherits from a non-blocking listener.
    pub(in crate::join) fn set_blocking(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(false),
            Self::Unix(stream) => stream.set_nonblocking(false),
        }
    }

    pub(in crate::join) fn read_exact(&mut self, mut into: &mut [u8], deadline: Instant) -> io::Result<()> {
        while !into.is_empty() {
            let left = Some(time_left(deadline)?);
            let result = match self {
                Self::Tcp(stream) => stream.set_read_timeout(left).and_then(|()| stream.read(into)),
                Self::Unix(stream) => stream.set_read_timeout(left).and_then(|()| stream.read(into)),
            };
            match result {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => into = &mut into[count..],
                Err(error) if again(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(in crate::join) fn write_all(&mut self, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            let left = Some(time_left(deadline)?);
            let result = match self {
                Self::Tcp(stream) => stream.set_write_timeout(left).and_then(|()| stream.write(bytes)),
                Self::Unix(stream) => stream.set_write_timeout(left).and_then(|()| stream.write(bytes)),
            };
            match result {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if again(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(in crate::join) fn send(&mut self, message: &Message, deadline: Instant) -> io::Result<()> {
        self.write_all(&message.frame(), deadline)
    }

    pub(in crate::join) fn receive(&mut self, deadline: Instant) -> Result<Message, HandshakeError> {
        let mut prefix = [0; 4];
        self.read_exact(&mut prefix, deadline)?;
        let length = body_length(prefix).map_err(HandshakeError::UnexpectedPeer)?;
        let mut body = vec![0; length];
        self.read_exact(&mut body, deadline)?;
        Message::decode(&body).map_err(HandshakeError::UnexpectedPeer)
    }
}

fn time_left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn again(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn proof_mac(
    token: &AuthToken,
    role: &str,
    caller: &[u8; NONCE],
    callee: &[u8; NONCE],
) -> Option<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(token.expose().as_bytes()).ok()?;
    mac.update(role.as_bytes());
    mac.update(caller);
    mac.update(callee);
    Some(mac)
}

fn nonce() -> Result<[u8; NONCE], HandshakeError> {
    random().map_err(|error| HandshakeError::Io(io::Error::other(error)))
}

/// The caller's side.
pub(in crate::join) fn initiate(
    stream: &mut Stream,
    token: &AuthToken,
    deadline: Instant,
) -> Result<(), HandshakeError> {
    let mine = nonce()?;
    stream.write_all(&[&MAGIC[..], &mine].concat(), deadline)?;
    let mut word = [0; 8];
    stream.read_exact(&mut word, deadline)?;
    if word != MAGIC {
        return Err(HandshakeError::UnexpectedPeer("what answers there is not a rank of Brigade".into()));
    }
    let mut theirs = [0; NONCE];
    stream.read_exact(&mut theirs, deadline)?;
    let proof = proof_mac(token, "caller", &mine, &theirs).ok_or(HandshakeError::WrongToken)?;
    stream.write_all(&proof.finalize().into_bytes(), deadline)?;
    let mut reply = [0];
    stream.read_exact(&mut reply, deadline)?;
    if reply != [ACCEPTED] {
        return Err(HandshakeError::WrongToken);
    }
    let mut proof = [0; 32];
    stream.read_exact(&mut proof, deadline)?;
    let expected = proof_mac(token, "callee", &mine, &theirs).ok_or(HandshakeError::WrongToken)?;
    expected.verify_slice(&proof).map_err(|_| HandshakeError::WrongToken)
}

/// The callee's side.
pub(in crate::join) fn respond(
    stream: &mut Stream,
    token: &AuthToken,
    deadline: Instant,
) -> Result<(), HandshakeError> {
    let mut word = [0; 8];
    stream.read_exact(&mut word, deadline)?;
    if word != MAGIC {
        return Err(HandshakeError::UnexpectedPeer("what called is not a rank of Brigade".into()));
    }
    let mut theirs = [0; NONCE];
    stream.read_exact(&mut theirs, deadline)?;
    let mine = nonce()?;
    stream.write_all(&[&MAGIC[..], &mine].concat(), deadline)?;
    let mut proof = [0; 32];
    stream.read_exact(&mut proof, deadline)?;
    let expected = proof_mac(token, "caller", &theirs, &mine).ok_or(HandshakeError::WrongToken)?;
    if expected.verify_slice(&proof).is_err() {
        stream.write_all(&[0], deadline)?;
        return Err(HandshakeError::WrongToken);
    }
    let proof =
        proof_mac(token, "callee", &theirs, &mine).ok_or(HandshakeError::WrongToken)?.finalize().into_bytes();
    stream.write_all(&[&[ACCEPTED][..], &proof].concat(), deadline)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meet(caller: &str, callee: &str) -> (Result<(), HandshakeError>, Result<(), HandshakeError>) {
        let (near, far) = UnixStream::pair().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let (caller, callee) = (AuthToken::new(caller), AuthToken::new(callee));
        let called = std::thread::spawn(move || initiate(&mut Stream::Unix(near), &caller, deadline));
        let answered = respond(&mut Stream::Unix(far), &callee, deadline);
        (called.join().unwrap(), answered)
    }

    #[test]
    fn equal_tokens_meet_and_others_are_refused() {
        assert!(matches!(meet("secret", "secret"), (Ok(()), Ok(()))));
        assert!(matches!(
            meet("secret", "Secret"),
            (Err(HandshakeError::WrongToken), Err(HandshakeError::WrongToken))
        ));
    }

    #[test]
    fn silence_ends_at_the_deadline() {
        let (_near, far) = UnixStream::pair().unwrap();
        let deadline = Instant::now() + Duration::from_millis(50);
        let error = respond(&mut Stream::Unix(far), &AuthToken::new("t"), deadline).unwrap_err();
        assert!(matches!(error, HandshakeError::Io(error) if error.kind() == ErrorKind::TimedOut));
    }

    #[test]
    fn garbage_learns_nothing() {
        let (mut near, far) = UnixStream::pair().unwrap();
        near.write_all(&[b'G'; 200]).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let error = respond(&mut Stream::Unix(far), &AuthToken::new("t"), deadline).unwrap_err();
        assert!(matches!(error, HandshakeError::UnexpectedPeer(_)));
        let mut answer = Vec::new();
        let _ = near.read_to_end(&mut answer);
        assert!(answer.is_empty());
    }
}
