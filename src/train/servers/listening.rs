//! The servers' side: a listener, and a thread for each worker that connects.

use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use brigade_comm::{AuthToken, Channel, ConnectionListener, Join};
use brigade_core::{DP, Mesh, WorkerLink, WorkerLinkSender, WorkerLinks};
use brigade_launch::first_difference;
use brigade_sorted::SortedMap;

use super::{ConnectRequest, FORMING, Reply, VERSION, receive, send, shared_configuration};
use crate::device::MakesHostGroups;
use crate::run::Session;
use crate::settings::{CommSettings, SettingError};
use crate::world::{all_gather_text, outer_join};

/// Connections at the same time; further ones are closed, and come again.
const MAX_CONNECTIONS: usize = 256;

/// How long the port of servers that were killed a moment ago may be taken.
const TAKEN: Duration = Duration::from_secs(20);

/// The workers of this server, until it is dropped.
pub(in crate::train) struct ServedWorkers {
    _connections: ConnectionListener,
    pub links: WorkerLinks,
}

impl ServedWorkers {
    /// Begins to listen, if the settings say that this world is that of servers. The `facts` must be the same on all workers, as the
    /// configuration. All ranks call it.
    pub(in crate::train) fn start(
        session: &Session,
        facts: &SortedMap<String, String>,
    ) -> anyhow::Result<Option<Self>> {
        let (strategy, comm) = (&session.settings.strategy, &session.settings.comm);
        let Some(separate) = strategy.separate_worlds().filter(|separate| separate.is_server) else {
            return Ok(None);
        };
        let listener = listener(session)?;
        let own = listener.local_addr()?.port().to_string();
        let ports = all_gather_text(session.group(), &own)?;
        let ports = ports.iter().map(|port| port.parse()).collect::<Result<Vec<u16>, _>>()?;
        let [patience, deadline] =
            [comm.init_timeout_seconds, comm.train_timeout_seconds].map(Duration::from_secs_f64);
        let links = WorkerLinks::new(patience, deadline);
        let acceptor = Acceptor {
            token: session.token.clone(),
            configuration: shared_configuration(session, facts)?,
            workers: separate.workers,
            server: session.rank(),
            ports,
            comm: comm.clone(),
            makes_groups: session.makes_host_groups(),
            sender: links.sender(),
            present: Mutex::default(),
        };
        let connections =
            ConnectionListener::listen(listener, "server", MAX_CONNECTIONS, move |stream, _| {
                if let Some(link) = acceptor.attend(stream) {
                    acceptor.sender.add(link);
                }
            });
        Ok(Some(Self { _connections: connections.context("cannot listen for workers")?, links }))
    }
}

/// Refuses servers of one launch on several hosts: workers call all of them at one address.
///
/// # Errors
/// If this world is that of servers, and on several hosts.
pub(in crate::train) fn check_servers_hosts(session: &Session) -> Result<(), SettingError> {
    let strategy = &session.settings.strategy;
    let is_server = strategy.separate_worlds().is_some_and(|separate| separate.is_server);
    check_hosts(is_server && session.group().spans_hosts(), &strategy.listen, session.world_size())
}

fn check_hosts(spans_hosts: bool, listen: &str, servers: usize) -> Result<(), SettingError> {
    if !spans_hosts {
        return Ok(());
    }
    let allowed = format!(
        "workers reach all servers at this address, but the servers are on several hosts; start them on one (--nnodes 1 --nproc-per-node {servers})"
    );
    Err(SettingError::new("strategy.listen (--listen)", listen, allowed))
}

/// The listener of this server: the first one's where the settings say, the others' at any port of the same address.
fn listener(session: &Session) -> anyhow::Result<TcpListener> {
    let given = &session.settings.strategy.listen;
    let address = match (session.rank(), given.rsplit_once(':')) {
        (1.., Some((host, _))) => format!("{host}:0"),
        _ => given.clone(),
    };
    let begin = Instant::now();
    let listener = loop {
        session.heartbeat.send("listening for workers");
        match TcpListener::bind(&address) {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && begin.elapsed() < TAKEN => {
                session.check_interrupt()?;
                thread::sleep(Duration::from_millis(200));
            }
            bound => {
                break bound
                    .with_context(|| format!("cannot listen on {address} (strategy.listen, --listen)"))?;
            }
        }
    };
    Ok(listener)
}

/// Accepts connections of workers.
struct Acceptor {
    token: AuthToken,
    configuration: String,
    /// The most workers that there may be.
    workers: usize,
    /// This server's number, and the ports of all of them.
    server: usize,
    ports: Vec<u16>,
    comm: CommSettings,
    makes_groups: MakesHostGroups,
    sender: WorkerLinkSender,
    /// The process behind each worker's number, and whether it is still connected.
    present: Mutex<SortedMap<usize, (u64, Weak<()>)>>,
}

impl Acceptor {
    /// One connection. Whatever breaks it, the worker finds out and connects again.
    fn attend(&self, stream: TcpStream) -> Option<WorkerLink> {
        let mut channel = Channel::accept(stream, &self.token).ok()?;
        let request: ConnectRequest = receive(&mut channel).ok()?;
        if let Some(reason) = self.mismatch(&request) {
            drop(send(&mut channel, &Reply::Refused { reason }));
            return None;
        }
        let Some(connected) = self.enter(&request) else {
            drop(send(&mut channel, &Reply::Taken));
            return None;
        };
        send(&mut channel, &Reply::Welcome { ports: self.ports.clone() }).ok()?;
        let ConnectRequest { worker, connection, endpoint, .. } = request;
        let ranks = 1 + self.ports.len();
        let join = outer_join(&self.comm, self.token.clone(), FORMING);
        let join = Join { rank: 1 + self.server, world_size: ranks, endpoint, ..join };
        let world = brigade_comm::join(join).ok()?;
        let mesh = Mesh::new(ranks, [(DP, ranks)]).ok()?;
        let group = (self.makes_groups)(world.group(), mesh).ok()?.over(&[DP]);
        let leave = Box::new(move || {
            drop(world.shutdown());
            drop(connected);
        });
        Some(WorkerLink { worker, connection, group, leave })
    }

    /// Takes down who has a number, until what is returned is dropped; none if another process has it. The same process may connect again, and
    /// what the first server says counts for all.
    fn enter(&self, request: &ConnectRequest) -> Option<Arc<()>> {
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        let is_taken = |(process, connected): &(u64, Weak<()>)| {
            *process != request.process && connected.strong_count() > 0
        };
        if self.server == 0 && present.get(&request.worker).is_some_and(is_taken) {
            return None;
        }
        let connected = Arc::new(());
        present.insert(request.worker, (request.process, Arc::downgrade(&connected)));
        Some(connected)
    }

    /// Why a worker does not fit.
    fn mismatch(&self, request: &ConnectRequest) -> Option<String> {
        if request.version != VERSION {
            return Some(format!(
                "its protocol has version {VERSION}, and this worker's {}",
                request.version
            ));
        }
        if request.worker >= self.workers {
            return Some(format!(
                "--worker {} is not valid: it must be below --workers {}",
                request.worker, self.workers
            ));
        }
        let (there, here) = first_difference(&self.configuration, &request.configuration)?;
        Some(format!(
            "this worker's configuration differs from that of the servers: {here} here, {there} there"
        ))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn servers_on_several_hosts_are_refused_with_what_to_do() {
        check_hosts(false, "10.0.0.1:29600", 2).unwrap();
        let error = check_hosts(true, "10.0.0.1:29600", 2).unwrap_err().to_string();
        let said = "strategy.listen (--listen) = 10.0.0.1:29600 is not possible: workers reach all servers";
        assert!(error.starts_with(said) && error.contains("--nnodes 1 --nproc-per-node 2"), "{error}");
    }
}
