//! A worker's side: a thread that reports to the coordinator, again and again.

use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use brigade_comm::{AuthToken, Channel, ChannelError};

use super::message::{Base, CoordinatorReply, Quorum, Report, Status, WorkerJoinRequest};
use crate::error::{Error, Result};
use crate::launcher::config::REFUSALS;

/// Between two reports of a worker that asks for something, and of any other.
const ASKING: Duration = Duration::from_millis(20);
const REPORTING: Duration = Duration::from_millis(250);

/// Between two connections, where the connection broke.
const RETRY: Duration = Duration::from_millis(200);

/// This worker among the workers, until it is dropped.
pub struct Member {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// How long the coordinator may be unreachable while this worker asks it for something.
    wait: Duration,
}

/// What the coordinator decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CoordinatorDecision {
    /// To train: this worker has the newest parameters.
    Train,
    /// To ask for a quorum, because others have newer parameters.
    Join,
    /// To meet.
    Quorum(Quorum),
}

struct Shared {
    endpoint: String,
    token: AuthToken,
    join_request: WorkerJoinRequest,
    host_timeout: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    base: Base,
    status: Status,
    /// How often the status has changed; and the answer to the status as it is, if there is one.
    version: u64,
    answer: Option<CoordinatorReply>,
    /// Why the coordinator cannot be reached, and since when.
    unreachable: Option<(String, Instant)>,
    /// Why it never will.
    refused: Option<String>,
    /// The address from which it is reached.
    address: Option<IpAddr>,
    closing: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Member {
    /// Begins to report to the coordinator at `endpoint` (`host:port`). Answers may take `wait`, and its silence `host_timeout`.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(
        endpoint: String,
        token: AuthToken,
        join_request: WorkerJoinRequest,
        base: Base,
        wait: Duration,
        host_timeout: Duration,
    ) -> Result<Self> {
        let state = State {
            base,
            status: Status::Starting,
            version: 0,
            answer: None,
            unreachable: None,
            refused: None,
            address: None,
            closing: false,
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let shared = Arc::new(Shared { endpoint, token, join_request, host_timeout, state, changed });
        let reporting = Arc::clone(&shared);
        let thread = thread::Builder::new().name("worker-member".into()).spawn(move || reporting.run());
        let thread = thread.map_err(|source| Error::System { operation: "start a thread", source })?;
        Ok(Self { shared, thread: Some(thread), wait })
    }

    /// Sets what this worker does from now on, and which parameters it has.
    pub fn set(&self, base: Base, status: Status) {
        let mut state = lock(&self.shared.state);
        if (state.base, &state.status) != (base, &status) {
            (state.base, state.status, state.answer) = (base, status, None);
            state.version += 1;
            self.shared.changed.notify_all();
        }
    }

    /// The coordinator's decision on what this worker asks for, if there is one within `limit`.
    ///
    /// # Errors
    /// [`Error::Coordinator`] if it refuses this worker, cannot be reached for too long, or says that the run is over.
    pub fn decision(&self, limit: Duration) -> Result<Option<CoordinatorDecision>> {
        let failed = |reason| Err(Error::Coordinator { endpoint: self.shared.endpoint.clone(), reason });
        let deadline = Instant::now() + limit;
        let mut state = lock(&self.shared.state);
        loop {
            if let Some(reason) = &state.refused {
                return failed(reason.clone());
            }
            match &state.answer {
                Some(CoordinatorReply::Train) => return Ok(Some(CoordinatorDecision::Train)),
                Some(CoordinatorReply::Join) => return Ok(Some(CoordinatorDecision::Join)),
                Some(CoordinatorReply::Quorum { request, quorum }) if matches!(&state.status, Status::Waiting(asked) if asked.number == *request) =>
                {
                    return Ok(Some(CoordinatorDecision::Quorum(quorum.clone())));
                }
                Some(CoordinatorReply::Over { step }) => {
                    return failed(format!(
                        "the other workers have ended the run after step {step} without this one; the weights are in their folders"
                    ));
                }
                _ => {}
            }
            if let Some((reason, since)) = &state.unreachable
                && since.elapsed() > self.wait
            {
                return failed(format!(
                    "it has not been reached for {} s: {reason}",
                    self.wait.as_secs_f64()
                ));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Which workers that have not come yet the coordinator waits for, in words, if it does.
    pub fn expects(&self) -> Option<String> {
        match &lock(&self.shared.state).answer {
            Some(CoordinatorReply::Expects { expects }) => Some(expects.clone()),
            _ => None,
        }
    }

    /// The address of this host by which it reaches the coordinator, once it has.
    pub fn address(&self) -> Option<IpAddr> {
        lock(&self.shared.state).address
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        lock(&self.shared.state).closing = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut refused: Option<Instant> = None;
        loop {
            let reason = match self.connect_and_report(&mut refused) {
                Ok(()) => return,
                Err(ChannelError::WrongToken) => {
                    return self.refuse("it has a different token (BRIGADE_TOKEN)".into());
                }
                Err(ChannelError::UnexpectedPeer(reason)) => return self.refuse(reason),
                Err(ChannelError::Broken(reason)) => reason,
            };
            let mut state = lock(&self.state);
            if state.closing {
                return;
            }
            state.unreachable.get_or_insert_with(|| (String::new(), Instant::now())).0 = reason;
            self.changed.notify_all();
            drop(self.changed.wait_timeout(state, RETRY));
        }
    }

    fn refuse(&self, reason: String) {
        lock(&self.state).refused = Some(reason);
        self.changed.notify_all();
    }

    /// One connection, until this worker ends or it breaks.
    fn connect_and_report(&self, refused: &mut Option<Instant>) -> Result<(), ChannelError> {
        let mut channel = Channel::connect(&self.endpoint, &self.token, RETRY * 5)?;
        let address = channel.local_ip();
        let mut is_introduced = false;
        loop {
            let (version, base, status, closing) = {
                let state = lock(&self.state);
                (state.version, state.base, state.status.clone(), state.closing)
            };
            let asks = matches!(status, Status::Starting | Status::Waiting(_));
            let report = match is_introduced {
                false => Report::JoinRequest(self.join_request.clone(), base, status.clone()),
                true => Report::Status(base, status.clone()),
            };
            // Plain data in memory have a JSON form.
            channel.send(&serde_json::to_string(&report).unwrap_or_default(), self.host_timeout)?;
            let answer = channel.receive(self.host_timeout)?;
            let answer: CoordinatorReply = serde_json::from_str(&answer).map_err(|_| {
                let what =
                    "it sent something that this worker cannot read; is it a different version of Brigade?";
                ChannelError::UnexpectedPeer(what.into())
            })?;
            if let CoordinatorReply::Refused { reason, again } = &answer {
                let since = *refused.get_or_insert_with(Instant::now);
                return match *again && since.elapsed() < self.host_timeout + REFUSALS {
                    true => Err(ChannelError::Broken(reason.clone())),
                    false => Err(ChannelError::UnexpectedPeer(reason.clone())),
                };
            }
            (is_introduced, *refused) = (true, None);
            let mut state = lock(&self.state);
            (state.unreachable, state.address) = (None, address);
            if state.version == version {
                state.answer = Some(answer);
                self.changed.notify_all();
                // The last status is sent even if this ends right after it was set.
                if closing || status == Status::Done {
                    return Ok(());
                }
                let pause = if asks { ASKING } else { REPORTING };
                drop(
                    self.changed
                        .wait_timeout_while(state, pause, |state| state.version == version && !state.closing),
                );
            }
        }
    }
}
