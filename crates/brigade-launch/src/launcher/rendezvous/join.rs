//! The side of every node but node 0: it connects to node 0, and waits to be told to start.

use std::time::{Duration, Instant};

use brigade_comm::{AuthToken, Channel, ChannelError};

use super::{
    host::KEEPALIVE_INTERVAL,
    message::{NodeJoinRequest, RendezvousEnd, RendezvousReply, RendezvousRequest, Start, receive, send},
};
use crate::launcher::config::REFUSALS;

/// Between two connections.
const RETRY: Duration = Duration::from_millis(200);

/// Connects to node 0, again and again, until it lets this node take part. This node waits for as long as node 0 answers, and gives up when it has not
/// answered for `wait`.
pub fn join(
    endpoint: &str,
    token: &AuthToken,
    request: &NodeJoinRequest,
    wait: Duration,
    host_timeout: Duration,
) -> Result<Start, RendezvousEnd> {
    let mut answered = Instant::now();
    let mut refused: Option<Instant> = None;
    loop {
        let left = wait.saturating_sub(answered.elapsed());
        let reason = match join_once(endpoint, token, request, left, host_timeout, &mut answered) {
            Ok(RendezvousReply::Start(start)) => return Ok(start),
            Ok(RendezvousReply::Over { is_done }) => return Err(RendezvousEnd::Over { is_done }),
            Ok(RendezvousReply::Refused { reason, again }) => {
                let since = *refused.get_or_insert_with(Instant::now);
                if !again || since.elapsed() > host_timeout + REFUSALS {
                    return Err(RendezvousEnd::Refused(reason));
                }
                reason
            }
            Ok(RendezvousReply::Wait) => continue,
            Err(ChannelError::WrongToken) => {
                return Err(RendezvousEnd::Refused("node 0 has a different token (BRIGADE_TOKEN)".into()));
            }
            Err(ChannelError::UnexpectedPeer(reason)) => return Err(RendezvousEnd::Refused(reason)),
            Err(ChannelError::Broken(reason)) => reason,
        };
        if answered.elapsed() + RETRY >= wait {
            let reason = format!("node 0 has not been reached for {} s: {reason}", wait.as_secs_f64());
            return Err(RendezvousEnd::Unreachable(reason));
        }
        std::thread::sleep(RETRY);
    }
}

/// One connection, until node 0 has decided. Sets `answered` to when it last answered.
fn join_once(
    endpoint: &str,
    token: &AuthToken,
    request: &NodeJoinRequest,
    wait: Duration,
    host_timeout: Duration,
    answered: &mut Instant,
) -> Result<RendezvousReply, ChannelError> {
    let mut channel = Channel::connect(endpoint, token, wait)?;
    send(&mut channel, &RendezvousRequest::Join(request.clone()), host_timeout)?;
    loop {
        let answer = receive(&mut channel, host_timeout.max(KEEPALIVE_INTERVAL * 4))?;
        *answered = Instant::now();
        match answer {
            RendezvousReply::Wait => send(&mut channel, &RendezvousRequest::KeepAlive, host_timeout)?,
            answer => return Ok(answer),
        }
    }
}
