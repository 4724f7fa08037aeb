//! How two processes convince each other that they know the token, without revealing it, and agree on keys that nobody else
//! can have, not even with the token later.
//!
//! The handshake is `Noise_NNpsk0_25519_AESGCM_SHA256` (Noise protocol, revision 34): the caller sends a fixed word and the first
//! message, which only those who know the token can make; the callee answers with the word, one byte, 1 for welcome or 0 for
//! refusal, and on welcome the second message. Everything after it is sealed ([`Session`]). The first message might be one that was
//! recorded earlier, but who repeats it cannot seal anything: until the first sealed message has come, nothing that a stranger sends
//! has any effect, and it learns nothing.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use snow::{Builder, HandshakeState};

use crate::join::wire::auth_token::AuthToken;
use crate::join::wire::message::{FrameBuffer, Message};
use crate::link::tcp::primitives::Primitives;
use crate::link::tcp::session::{LENGTH_BYTES, Session};
use crate::open_files::{explained, is_out_of_files};

/// Says that this is Brigade, and by its last byte with which handshake.
pub(in crate::join) const MAGIC: [u8; 8] = *b"BRIGADE2";
const PROTOCOL: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
/// Bytes of each of the two messages: a public key, and the authentication of nothing.
pub(in crate::join) const MESSAGE_BYTES: usize = 48;
pub(in crate::join) const ACCEPTED: u8 = 1;

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
}

fn time_left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn again(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// A connection after its handshake, on which messages are sent and received before a deadline.
pub(in crate::join) struct SecureStream {
    pub(in crate::join) stream: Stream,
    session: Session,
    received: FrameBuffer,
}

impl SecureStream {
    fn new(stream: Stream, handshake: HandshakeState) -> Result<Self, HandshakeError> {
        let unfinished = || HandshakeError::UnexpectedPeer("the handshake has not ended".into());
        let session = Session::new(handshake).ok_or_else(unfinished)?;
        Ok(Self { stream, session, received: FrameBuffer::default() })
    }

    pub(in crate::join) fn send(&mut self, message: &Message, deadline: Instant) -> io::Result<()> {
        self.send_frame(&message.frame(), deadline)
    }

    /// Sends what [`Message::frame`] gave.
    pub(in crate::join) fn send_frame(&mut self, frame: &[u8], deadline: Instant) -> io::Result<()> {
        let mut sealed = Vec::new();
        self.session.seal(frame, &mut sealed);
        self.stream.write_all(&sealed, deadline)
    }

    pub(in crate::join) fn receive(&mut self, deadline: Instant) -> Result<Message, HandshakeError> {
        loop {
            if let Some(message) = self.received.next().map_err(HandshakeError::UnexpectedPeer)? {
                return Ok(message);
            }
            let mut length = [0; LENGTH_BYTES];
            self.stream.read_exact(&mut length, deadline)?;
            let mut record = vec![0; u16::from_be_bytes(length).into()];
            self.stream.read_exact(&mut record, deadline)?;
            let opened = self.session.open(&mut record, 0);
            let count = opened.map_err(|problem| HandshakeError::UnexpectedPeer(problem.into()))?;
            self.received.push(&record[..count]);
        }
    }

    /// What it is made of, to continue with. What came after the last message that was received is lost: nothing must have been sent.
    pub(in crate::join) fn into_parts(self) -> (Stream, Session) {
        (self.stream, self.session)
    }
}

fn unexpected(error: snow::Error) -> HandshakeError {
    HandshakeError::UnexpectedPeer(format!("the handshake failed: {error}"))
}

/// The handshake under a key that follows from the token.
fn builder(key: &[u8; 32]) -> Result<Builder<'_>, HandshakeError> {
    let protocol = PROTOCOL.parse().map_err(unexpected)?;
    let builder = Builder::with_resolver(protocol, Box::new(Primitives)).prologue(&MAGIC);
    builder.and_then(|builder| builder.psk(0, key)).map_err(unexpected)
}

fn key(token: &AuthToken) -> [u8; 32] {
    blake3::derive_key("brigade 2026-11 the token of a world", token.expose().as_bytes())
}

/// Reads the fixed word, and says who else is there.
fn read_magic(stream: &mut Stream, who: &str, deadline: Instant) -> Result<(), HandshakeError> {
    let mut word = [0; MAGIC.len()];
    stream.read_exact(&mut word, deadline)?;
    if word == MAGIC {
        return Ok(());
    }
    let is_other_version = word[..MAGIC.len() - 1] == MAGIC[..MAGIC.len() - 1];
    Err(HandshakeError::UnexpectedPeer(match is_other_version {
        true => format!("{who} is a rank of a different version of Brigade"),
        false => format!("{who} is not a rank of Brigade"),
    }))
}

/// The caller's side.
pub(in crate::join) fn initiate(
    mut stream: Stream,
    token: &AuthToken,
    deadline: Instant,
) -> Result<SecureStream, HandshakeError> {
    let key = key(token);
    let mut handshake = builder(&key)?.build_initiator().map_err(unexpected)?;
    let mut message = [0; MESSAGE_BYTES];
    handshake.write_message(&[], &mut message).map_err(unexpected)?;
    stream.write_all(&[&MAGIC[..], &message].concat(), deadline)?;
    read_magic(&mut stream, "the peer", deadline)?;
    let mut reply = [0];
    stream.read_exact(&mut reply, deadline)?;
    if reply != [ACCEPTED] {
        return Err(HandshakeError::WrongToken);
    }
    stream.read_exact(&mut message, deadline)?;
    handshake.read_message(&message, &mut []).map_err(|_| HandshakeError::WrongToken)?;
    SecureStream::new(stream, handshake)
}

/// The callee's side. Whether the caller knows the token is certain once a message of it has been received.
pub(in crate::join) fn respond(
    mut stream: Stream,
    token: &AuthToken,
    deadline: Instant,
) -> Result<SecureStream, HandshakeError> {
    let key = key(token);
    let mut handshake = builder(&key)?.build_responder().map_err(unexpected)?;
    read_magic(&mut stream, "what called", deadline)?;
    let mut message = [0; MESSAGE_BYTES];
    stream.read_exact(&mut message, deadline)?;
    if handshake.read_message(&message, &mut []).is_err() {
        stream.write_all(&[&MAGIC[..], &[0]].concat(), deadline)?;
        return Err(HandshakeError::WrongToken);
    }
    handshake.write_message(&[], &mut message).map_err(unexpected)?;
    stream.write_all(&[&MAGIC[..], &[ACCEPTED], &message].concat(), deadline)?;
    SecureStream::new(stream, handshake)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Met = Result<SecureStream, HandshakeError>;

    fn deadline() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    fn meet(caller: &str, callee: &str) -> (Met, Met) {
        let (near, far) = UnixStream::pair().unwrap();
        let (caller, callee) = (AuthToken::new(caller), AuthToken::new(callee));
        let called = std::thread::spawn(move || initiate(Stream::Unix(near), &caller, deadline()));
        let answered = respond(Stream::Unix(far), &callee, deadline());
        (called.join().unwrap(), answered)
    }

    #[test]
    fn equal_tokens_meet_and_others_are_refused() {
        let (called, answered) = meet("secret", "secret");
        let (mut caller, mut callee) = (called.unwrap(), answered.unwrap());
        let reason = "x".repeat(200_000);
        let long = Message::Refused { reason, again: true };
        let sender = std::thread::spawn({
            let long = long.clone();
            move || caller.send(&long, deadline()).and_then(|()| caller.send(&Message::Done, deadline()))
        });
        assert_eq!(callee.receive(deadline()).unwrap(), long);
        assert_eq!(callee.receive(deadline()).unwrap(), Message::Done);
        sender.join().unwrap().unwrap();
        assert!(matches!(
            meet("secret", "Secret"),
            (Err(HandshakeError::WrongToken), Err(HandshakeError::WrongToken))
        ));
    }

    #[test]
    fn silence_ends_at_the_deadline() {
        let (_near, far) = UnixStream::pair().unwrap();
        let deadline = Instant::now() + Duration::from_millis(50);
        let error = respond(Stream::Unix(far), &AuthToken::new("t"), deadline).err().unwrap();
        assert!(matches!(error, HandshakeError::Io(error) if error.kind() == ErrorKind::TimedOut));
    }

    #[test]
    fn garbage_learns_nothing() {
        let (mut near, far) = UnixStream::pair().unwrap();
        near.write_all(&[b'G'; 200]).unwrap();
        let error = respond(Stream::Unix(far), &AuthToken::new("t"), deadline()).err().unwrap();
        assert!(matches!(error, HandshakeError::UnexpectedPeer(_)));
        let mut answer = Vec::new();
        let _ = near.read_to_end(&mut answer);
        assert!(answer.is_empty());
    }

    /// What a caller sends to a callee that it greets with a message.
    fn overheard(token: &AuthToken, message: &Message) -> Vec<u8> {
        let ((near, mut wire), (mut relay, far)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let (mut back, mut there) = (relay.try_clone().unwrap(), wire.try_clone().unwrap());
        let caller = std::thread::spawn({
            let (token, message) = (token.clone(), message.clone());
            move || initiate(Stream::Unix(near), &token, deadline()).unwrap().send(&message, deadline())
        });
        let answers = std::thread::spawn(move || io::copy(&mut back, &mut there));
        let callee = std::thread::spawn({
            let token = token.clone();
            move || respond(Stream::Unix(far), &token, deadline()).unwrap().receive(deadline())
        });
        let (mut all, mut bytes) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = wire.read(&mut bytes) {
            all.extend_from_slice(&bytes[..count]);
            relay.write_all(&bytes[..count]).unwrap();
        }
        caller.join().unwrap().unwrap();
        assert_eq!(callee.join().unwrap().unwrap(), *message);
        let _ = answers.join();
        all
    }

    #[test]
    fn what_is_overheard_says_nothing_and_repeating_it_has_no_effect() {
        let token = AuthToken::new("a token that nobody guesses");
        let message = Message::Refused { reason: "something that is said in private".into(), again: false };
        let sent = overheard(&token, &message);
        for text in ["token", "private", "Refused"] {
            assert!(!sent.windows(text.len()).any(|part| part == text.as_bytes()), "{text}");
        }
        let (mut near, far) = UnixStream::pair().unwrap();
        near.write_all(&sent).unwrap();
        let mut callee = respond(Stream::Unix(far), &token, deadline()).unwrap();
        let error = callee.receive(deadline()).unwrap_err().to_string();
        assert!(error.contains("are not those it sent"), "{error}");
    }
}
