//! A worker's side: it connects to the servers, and connects again when they are lost.

use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use brigade_comm::{AuthToken, Channel, ChannelError, Join, Timeouts, World};
use brigade_core::{Collectives, DP, Mesh};
use brigade_sorted::SortedMap;

use super::{ConnectRequest, FORMING, Reply, VERSION, receive, send, shared_configuration};
use crate::error::{Preempted, print_stderr};
use crate::run::Session;
use crate::train::workers::incarnation;
use crate::world::outer_join;

/// How long connecting may take, and between two tries.
const CONNECT: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(200);

/// A wait is not mentioned before.
const SILENT: Duration = Duration::from_secs(2);

/// How much longer than the timeout of a host a number may be taken.
const MARGIN: Duration = Duration::from_secs(1);

/// The servers that this worker works for.
pub(in crate::train) struct RemoteServers {
    /// `host:port` of the first.
    endpoint: String,
    servers: usize,
    worker: usize,
    process: u64,
    token: AuthToken,
    configuration: String,
    /// How long they may be unreachable.
    wait: Duration,
    /// How long they may take to notice that a process with this worker's number is gone.
    noticing: Duration,
}

/// A world of this worker and the servers.
pub(in crate::train) struct ServerLink {
    /// This worker, and then all servers.
    pub group: Arc<dyn Collectives>,
    world: World,
}

impl ServerLink {
    /// Leaves it together with the servers, as far as they are still there.
    pub(in crate::train) fn leave(self) {
        drop(self.group);
        drop(self.world.shutdown());
    }
}

/// Why there is no connection.
enum Failed {
    /// There may be one later.
    Now(String),
    /// Another process has this worker's number, or had it a moment ago.
    Taken,
    /// There never will be one.
    Forever(String),
}

impl From<ChannelError> for Failed {
    fn from(error: ChannelError) -> Self {
        match error {
            ChannelError::WrongToken => Self::Forever("they have a different token (BRIGADE_TOKEN)".into()),
            ChannelError::UnexpectedPeer(reason) => Self::Forever(reason),
            ChannelError::Broken(reason) => Self::Now(reason),
        }
    }
}

impl RemoteServers {
    /// The servers, if the settings name some. The `facts` must be the same on all workers and servers, as the configuration.
    pub(in crate::train) fn of(
        session: &Session,
        facts: &SortedMap<String, String>,
    ) -> anyhow::Result<Option<Self>> {
        let (strategy, comm) = (&session.settings.strategy, &session.settings.comm);
        if strategy.separate_worlds().is_none_or(|separate| separate.is_server) {
            return Ok(None);
        }
        Ok(Some(Self {
            endpoint: strategy.coordinator.clone(),
            servers: strategy.resolved_servers(),
            worker: strategy.worker,
            process: incarnation()?,
            token: session.token.clone(),
            configuration: shared_configuration(session, facts)?,
            wait: Duration::from_secs_f64(comm.init_timeout_seconds),
            noticing: Duration::from_secs_f64(comm.host_timeout_seconds) + MARGIN,
        }))
    }

    /// Connects to the servers, and waits for them if they are not there.
    ///
    /// # Errors
    /// If they refuse this worker, cannot be reached for too long, or the run was interrupted or preempted: a worker has nothing to save.
    pub(in crate::train) fn connect(&self, session: &Session) -> anyhow::Result<ServerLink> {
        let (begin, endpoint, mut told) = (Instant::now(), &self.endpoint, String::new());
        loop {
            session.heartbeat.send("connecting to the servers");
            session.check_interrupt()?;
            if session.is_preempted() {
                return Err(Preempted.into());
            }
            let why = match self.connect_all(session) {
                Ok(link) => return Ok(link),
                Err(Failed::Now(why)) => why,
                Err(Failed::Taken) if begin.elapsed() > self.noticing => {
                    let worker = self.worker;
                    bail!(
                        "the servers at {endpoint} already have a worker {worker}; give each its own strategy.worker (--worker)"
                    )
                }
                Err(Failed::Taken) => format!("there is already a worker {}", self.worker),
                Err(Failed::Forever(why)) => bail!("the servers at {endpoint} refuse this worker: {why}"),
            };
            if begin.elapsed() > self.wait {
                bail!(
                    "the servers at {endpoint} (strategy.coordinator, --coordinator) have not been reached for {} s \
                     (comm.init_timeout_seconds): {why}",
                    self.wait.as_secs_f64()
                );
            }
            if begin.elapsed() > SILENT && told != why && !session.quiet {
                print_stderr(format_args!("waiting for the servers at {endpoint}: {why}"));
                told = why;
            }
            thread::sleep(RETRY);
        }
    }

    fn connect_all(&self, session: &Session) -> Result<ServerLink, Failed> {
        let now = |error: &dyn std::fmt::Display| Failed::Now(error.to_string());
        let mut first = Channel::connect(&self.endpoint, &self.token, CONNECT)?;
        let address = first.local_ip().ok_or_else(|| now(&"the connection has no address"))?;
        let listener = TcpListener::bind((address, 0)).map_err(|error| now(&error))?;
        let endpoint = listener.local_addr().map_err(|error| now(&error))?.to_string();
        let request = ConnectRequest {
            version: VERSION,
            worker: self.worker,
            process: self.process,
            configuration: self.configuration.clone(),
            connection: incarnation().map_err(|error| now(&error))?,
            endpoint: endpoint.clone(),
        };
        let ports = ask(&mut first, &request)?;
        if ports.len() != self.servers {
            return Err(Failed::Forever(format!(
                "there are {} of them, and strategy.servers (--servers) is {} here",
                ports.len(),
                self.servers
            )));
        }
        let host = self.endpoint.rsplit_once(':').map_or(&*self.endpoint, |(host, _)| host);
        for port in &ports[1..] {
            ask(&mut Channel::connect(&format!("{host}:{port}"), &self.token, CONNECT)?, &request)?;
        }
        let ranks = 1 + self.servers;
        let join = outer_join(&session.settings.comm, self.token.clone(), FORMING);
        // Servers give no share while they validate or save.
        let timeouts = Timeouts { step: join.timeouts.step.max(self.wait), ..join.timeouts };
        let join = Join { rank: 0, world_size: ranks, endpoint, listener: Some(listener), timeouts, ..join };
        let world = brigade_comm::join(join).map_err(|error| now(&error))?;
        let mesh = Mesh::new(ranks, [(DP, ranks)]).map_err(|error| now(&error))?;
        let groups = session.host_groups(world.group(), mesh).map_err(|error| now(&error))?;
        Ok(ServerLink { group: groups.over(&[DP]), world })
    }
}

/// Says who this worker is; gives the ports of all servers.
fn ask(channel: &mut Channel, request: &ConnectRequest) -> Result<Vec<u16>, Failed> {
    send(channel, request)?;
    match receive(channel)? {
        Reply::Welcome { ports } => Ok(ports),
        Reply::Taken => Err(Failed::Taken),
        Reply::Refused { reason } => Err(Failed::Forever(reason)),
    }
}
