//! A connection between two processes that know the same token, for what they agree on before there is a world.

use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::join::rendezvous::endpoint::dial;
use crate::join::wire::auth_token::AuthToken;
use crate::join::wire::handshake::{HANDSHAKE_TIMEOUT, HandshakeError, SecureStream, Stream, respond};
use crate::join::wire::message::Message;
use crate::join::wire::reach::reach;

/// Why a [`Channel`] cannot be opened, or carries nothing any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// The two sides know different tokens.
    #[error("its token is different")]
    WrongToken,
    /// The other side is not this version of Brigade.
    #[error("{0}")]
    UnexpectedPeer(String),
    /// The connection broke, or nothing came in time.
    #[error("{0}")]
    Broken(String),
}

impl From<HandshakeError> for ChannelError {
    fn from(error: HandshakeError) -> Self {
        match error {
            HandshakeError::WrongToken => Self::WrongToken,
            HandshakeError::UnexpectedPeer(text) => Self::UnexpectedPeer(text),
            error @ HandshakeError::Io(_) => Self::Broken(error.to_string()),
        }
    }
}

/// Texts in both directions over TCP, after the same handshake and with the same encryption as between ranks.
pub struct Channel(SecureStream);

impl Channel {
    /// Calls who listens at `endpoint` (`host:port`), again and again for up to `wait`.
    ///
    /// # Errors
    /// If nobody answers in time, or the peer is not a Brigade that knows the token.
    pub fn connect(endpoint: &str, token: &AuthToken, wait: Duration) -> Result<Self, ChannelError> {
        let deadline = Instant::now() + wait;
        Ok(Self(reach(|left| dial(endpoint, left), token, deadline, || false)?))
    }

    /// The address of this side.
    pub fn local_ip(&self) -> Option<IpAddr> {
        match &self.0.stream {
            Stream::Tcp(stream) => Some(stream.local_addr().ok()?.ip()),
            Stream::Unix(_) => None,
        }
    }

    /// Answers a caller. That it knows the token is certain once a text of it has been received.
    ///
    /// # Errors
    /// If the caller is not a Brigade that knows the token, or stays silent for 10 s.
    pub fn accept(caller: TcpStream, token: &AuthToken) -> Result<Self, ChannelError> {
        let stream = Stream::Tcp(caller);
        stream.set_blocking().map_err(HandshakeError::Io)?;
        Ok(Self(respond(stream, token, Instant::now() + HANDSHAKE_TIMEOUT)?))
    }

    /// Sends a text of up to a MiB (as JSON writes it).
    ///
    /// # Errors
    /// If it cannot be sent within `wait`.
    pub fn send(&mut self, text: &str, wait: Duration) -> Result<(), ChannelError> {
        let sent = self.0.send(&Message::Text(text.into()), Instant::now() + wait);
        sent.map_err(|error| HandshakeError::Io(error).into())
    }

    /// The next text of the other side.
    ///
    /// # Errors
    /// If none comes within `wait`, or something else does.
    pub fn receive(&mut self, wait: Duration) -> Result<String, ChannelError> {
        match self.0.receive(Instant::now() + wait)? {
            Message::Text(text) => Ok(text),
            Message::Refused { reason, .. } => Err(ChannelError::UnexpectedPeer(reason)),
            _ => Err(ChannelError::UnexpectedPeer("it wants to join a different kind of world".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const WAIT: Duration = Duration::from_secs(10);

    fn open(callers: &str) -> (Result<Channel, ChannelError>, Result<Channel, ChannelError>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let callers = AuthToken::new(callers);
        let caller = std::thread::spawn(move || Channel::connect(&endpoint, &callers, WAIT));
        let answered = Channel::accept(listener.accept().unwrap().0, &AuthToken::new("a-token-of-a-world"));
        (caller.join().unwrap(), answered)
    }

    #[test]
    fn texts_go_both_ways_and_silence_has_a_limit() {
        let (caller, callee) = open("a-token-of-a-world");
        let (mut caller, mut callee) = (caller.unwrap(), callee.unwrap());
        let long = "ü\"\n".repeat(100_000);
        caller.send(&long, WAIT).unwrap();
        assert!(callee.receive(WAIT).unwrap() == long);
        callee.send("", WAIT).unwrap();
        assert_eq!(caller.receive(WAIT).unwrap(), "");
        assert!(matches!(caller.receive(Duration::from_millis(50)), Err(ChannelError::Broken(_))));
        drop(callee);
        assert!(matches!(caller.receive(WAIT), Err(ChannelError::Broken(_))));
    }

    #[test]
    fn another_token_is_named() {
        let (caller, callee) = open("a-token-of-another");
        assert_eq!(caller.err(), Some(ChannelError::WrongToken));
        assert!(callee.is_err());
    }
}
