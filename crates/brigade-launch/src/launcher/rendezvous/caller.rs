//! The side of every node but node 0: it calls node 0, and waits for the order to start.

use std::time::{Duration, Instant};

use brigade_comm::{AuthToken, Channel, ChannelError};

use super::{
    host::HERE_EVERY,
    message::{Answer, Call, CallEnd, Candidate, Start, receive, send},
};

/// Between two calls.
const RETRY: Duration = Duration::from_millis(200);

/// How much longer than `host_timeout` a node 0 that has not noticed the loss of a launcher may refuse its replacement.
const REFUSALS: Duration = Duration::from_secs(5);

/// Calls node 0 until it lets this node take part. A node 0 that is reached may let it wait for as long as it gives signs of life; one
/// that is not reached for `wait` is given up.
pub fn call(
    endpoint: &str,
    token: &AuthToken,
    candidate: &Candidate,
    wait: Duration,
    host_timeout: Duration,
) -> Result<Start, CallEnd> {
    let mut answered = Instant::now();
    let mut refused: Option<Instant> = None;
    loop {
        let left = wait.saturating_sub(answered.elapsed());
        let reason = match call_once(endpoint, token, candidate, left, host_timeout, &mut answered) {
            Ok(Answer::Start(start)) => return Ok(start),
            Ok(Answer::Over { is_done }) => return Err(CallEnd::Over { is_done }),
            Ok(Answer::Refused { reason, again }) => {
                let since = *refused.get_or_insert_with(Instant::now);
                if !again || since.elapsed() > host_timeout + REFUSALS {
                    return Err(CallEnd::Refused(reason));
                }
                reason
            }
            Ok(Answer::Wait) => continue,
            Err(ChannelError::WrongToken) => {
                return Err(CallEnd::Refused("node 0 has a different token (BRIGADE_TOKEN)".into()));
            }
            Err(ChannelError::UnexpectedPeer(reason)) => return Err(CallEnd::Refused(reason)),
            Err(ChannelError::Broken(reason)) => reason,
        };
        if answered.elapsed() + RETRY >= wait {
            let reason = format!("node 0 has not been reached for {} s: {reason}", wait.as_secs_f64());
            return Err(CallEnd::Unreachable(reason));
        }
        std::thread::sleep(RETRY);
    }
}

/// One call, until node 0 has decided. Notes when it gave the last sign of life.
fn call_once(
    endpoint: &str,
    token: &AuthToken,
    candidate: &Candidate,
    wait: Duration,
    host_timeout: Duration,
    answered: &mut Instant,
) -> Result<Answer, ChannelError> {
    let mut channel = Channel::connect(endpoint, token, wait)?;
    send(&mut channel, &Call::Join(candidate.clone()), host_timeout)?;
    loop {
        let answer = receive(&mut channel, host_timeout.max(HERE_EVERY * 4))?;
        *answered = Instant::now();
        match answer {
            Answer::Wait => send(&mut channel, &Call::Here, host_timeout)?,
            answer => return Ok(answer),
        }
    }
}
