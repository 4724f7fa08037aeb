//! The other ranks' side of the rendezvous.

use std::cell::Cell;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::endpoint::dial;
use crate::error::Error;
use crate::join::wire::auth_token::AuthToken;
use crate::join::wire::handshake::{HandshakeError, Stream};
use crate::join::wire::message::{Hello, Message, RankTable};
use crate::join::wire::reach::{RETRY, reach};
use crate::link::tcp::session::Session;
use crate::open_files::is_out_of_files;

/// How much longer than rank 0 the others wait, so that rank 0 can still tell them who is missing.
const GRACE: Duration = Duration::from_secs(5);

/// The side of every other rank: calls rank 0 and waits until all ranks have joined. Returns the table and the connection.
/// `is_listening`: whether rank 0 is gone if nobody listens.
pub(in crate::join) fn join_rank_0(
    endpoint: &str,
    is_listening: bool,
    token: &AuthToken,
    hello: &Hello,
    wait: Duration,
) -> Result<(RankTable, (TcpStream, Session)), Error> {
    let Hello { rank, world_size, .. } = *hello;
    let deadline = Instant::now() + wait;
    let unreachable =
        |reason: String| Error::Unreachable { rank, endpoint: endpoint.into(), waited: wait, reason };
    let refused = |reason| Error::Refused { rank, endpoint: endpoint.into(), reason };
    let is_gone = Cell::new(false);
    let open = |left| {
        let dialled = dial(endpoint, left);
        let is_refused = dialled.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
        is_gone.set(is_listening && is_refused);
        dialled
    };
    loop {
        let mut stream = reach(open, token, deadline, || is_gone.get()).map_err(|error| match error {
            _ if is_gone.get() => refused("it no longer listens".into()),
            HandshakeError::WrongToken => refused("its token is different".into()),
            HandshakeError::Io(error) if is_out_of_files(&error) => Error::system("connect to rank 0", error),
            error => unreachable(error.to_string()),
        })?;
        let told = stream.send(&Message::Join(hello.clone()), deadline);
        told.map_err(|error| unreachable(error.to_string()))?;
        return match stream.receive(deadline + GRACE) {
            Ok(Message::RankTable(table)) if table.addresses.len() == world_size => match stream.into_parts()
            {
                (Stream::Tcp(stream), session) => Ok((table, (stream, session))),
                (Stream::Unix(_), _) => Err(unreachable("it did not answer over TCP".into())),
            },
            // Rank 0's place is still taken by that of an earlier start.
            Ok(Message::Refused { again: true, .. }) if Instant::now() + RETRY < deadline => {
                std::thread::sleep(RETRY);
                continue;
            }
            Ok(Message::Refused { reason, .. }) => Err(refused(reason)),
            Ok(message) => Err(unreachable(format!("it answered with {message:?}"))),
            Err(error) => Err(unreachable(format!("it has sent nothing since it was reached: {error}"))),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;
    use crate::{Join, Timeouts, join};

    #[test]
    fn a_rank_0_that_listens_is_waited_for_only_as_long_as_it_does() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let endpoint = listener.local_addr().expect("its address").to_string();
        let begun = Instant::now();
        let init = Duration::from_secs(300);
        let joining = thread::spawn(move || {
            let timeouts = Timeouts { init, ..Timeouts::default() };
            let joining = Join::new(1, 2, endpoint, AuthToken::new("a secret"));
            join(Join { is_listening: true, timeouts, ..joining }).map(drop)
        });
        // It comes, and rank 0 does not answer.
        let (connection, _) = listener.accept().expect("a connection");
        assert!(!joining.is_finished());
        drop((connection, listener));
        let told = joining.join().expect("no panic").expect_err("nobody is there").to_string();
        assert!(told.contains("it no longer listens"), "{told}");
        assert!(begun.elapsed() < init / 2, "{:?}", begun.elapsed());
    }
}
