//! The coordinator of workers: its listener, and a thread for each worker.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use brigade_comm::{AuthToken, Channel, ConnectionListener};

use super::message::{Base, CoordinatorReply, Report, Status, VERSION, WorkerJoinRequest};
use super::quorum::Quorums;
use crate::error::{Error, Result};
use crate::text_difference::first_difference;

/// How long a worker may take to say who it is.
const JOIN_REQUEST: Duration = Duration::from_secs(10);

/// Connections at the same time; further ones are closed, and come again.
const MAX_CONNECTIONS: usize = 4096;

/// Accepts the workers' connections, and decides who meets, until it is dropped.
pub struct Coordinator {
    shared: Arc<Shared>,
    address: SocketAddr,
    _connections: ConnectionListener,
}

struct Shared {
    token: AuthToken,
    workers: usize,
    host_timeout: Duration,
    quorums: Mutex<Quorums>,
    /// That of the first of those that are there, which all others must match.
    first: Mutex<Option<WorkerJoinRequest>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Coordinator {
    /// Accepts connections of up to `workers` workers at `listener` from now on. Those that ask for a quorum wait for the others for up to `wait`; one
    /// that is silent for `host_timeout` is gone.
    ///
    /// # Errors
    /// If the listener or a thread cannot be used.
    pub fn start(
        listener: TcpListener,
        token: AuthToken,
        workers: usize,
        wait: Duration,
        host_timeout: Duration,
    ) -> Result<Self> {
        let failed = |source| Error::System { operation: "listen for workers", source };
        let address = listener.local_addr().map_err(failed)?;
        let shared = Arc::new(Shared {
            token,
            workers,
            host_timeout,
            quorums: Mutex::new(Quorums::new(workers, wait, host_timeout)),
            first: Mutex::new(None),
        });
        let attending = Arc::clone(&shared);
        let connections =
            ConnectionListener::listen(listener, "coordinator", MAX_CONNECTIONS, move |stream, closing| {
                attending.attend(stream, closing);
            });
        Ok(Self { shared, address, _connections: connections.map_err(failed)? })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What has happened since this was asked before: who came and went, and who met.
    pub fn drain_messages(&self) -> Vec<String> {
        lock(&self.shared.quorums).drain_messages()
    }

    /// Whether a worker has made the run's last step, and none is there any more.
    pub fn is_over(&self) -> bool {
        lock(&self.shared.quorums).is_over(Instant::now())
    }
}

/// Why a worker is not let in, and whether another try may be accepted.
struct Refusal {
    reason: String,
    again: bool,
}

impl Shared {
    /// One connection from its begin to its end. Whatever breaks it, the worker finds out and connects again.
    fn attend(&self, stream: TcpStream, closing: &AtomicBool) {
        let Ok(mut channel) = Channel::accept(stream, &self.token) else { return };
        let Some(Report::JoinRequest(who, base, status)) = receive(&mut channel, JOIN_REQUEST) else {
            return;
        };
        let identity = (who.worker, who.incarnation);
        if let Err(Refusal { reason, again }) = self.admit(who, base, &status) {
            let refused = CoordinatorReply::Refused { reason, again };
            return send(&mut channel, &refused, JOIN_REQUEST).unwrap_or(());
        }
        let mut said = (base, status);
        while !closing.load(Ordering::SeqCst) {
            let (base, status) = said;
            let answer = lock(&self.quorums).report(identity, base, status, Instant::now());
            if send(&mut channel, &answer, self.host_timeout).is_none() {
                break;
            }
            match receive(&mut channel, self.host_timeout) {
                Some(Report::Status(base, status)) => said = (base, status),
                _ => break,
            }
        }
        lock(&self.quorums).lose(identity, Instant::now());
    }

    /// Lets a worker in, if it fits to the others.
    fn admit(&self, who: WorkerJoinRequest, base: Base, status: &Status) -> Result<(), Refusal> {
        let (mut first, mut quorums) = (lock(&self.first), lock(&self.quorums));
        if quorums.is_empty(Instant::now()) {
            *first = None;
        }
        if let Some(reason) = self.mismatch(&who, first.as_ref()) {
            return Err(Refusal { reason, again: false });
        }
        let entered = quorums.enter((who.worker, who.incarnation), base, status.clone());
        // Another one of its number may be gone, and its connection not yet broken.
        entered.map_err(|reason| Refusal { reason, again: true })?;
        first.get_or_insert(who);
        Ok(())
    }

    /// Why a worker does not fit to the others, of whom this is the first.
    fn mismatch(&self, who: &WorkerJoinRequest, first: Option<&WorkerJoinRequest>) -> Option<String> {
        if who.version != VERSION {
            return Some(format!(
                "its protocol has version {}, but the coordinator has {VERSION}",
                who.version
            ));
        }
        if who.workers != self.workers {
            return Some(format!(
                "this worker has --workers {}, and the coordinator {}",
                who.workers, self.workers
            ));
        }
        if who.worker >= self.workers {
            return Some(format!(
                "--worker {} is not valid: it must be below --workers {}",
                who.worker, self.workers
            ));
        }
        let first = first?;
        if who.ranks != first.ranks {
            let ranks = |count| format!("{count} rank{}", if count == 1 { "" } else { "s" });
            let (own, other) = (ranks(who.ranks), ranks(first.ranks));
            let given = format!("this worker has {own}, and worker {} has {other}", first.worker);
            return Some(format!("{given}; all workers have the same mesh (--nproc-per-node, --pp, --zero)"));
        }
        let difference = first_difference(&first.configuration, &who.configuration)?;
        let (there, here) = difference;
        Some(format!(
            "this worker's configuration is not that of the others: {here} here, {there} on worker {}",
            first.worker
        ))
    }
}

fn send(channel: &mut Channel, answer: &CoordinatorReply, wait: Duration) -> Option<()> {
    channel.send(&serde_json::to_string(answer).ok()?, wait).ok()
}

fn receive(channel: &mut Channel, wait: Duration) -> Option<Report> {
    serde_json::from_str(&channel.receive(wait).ok()?).ok()
}
