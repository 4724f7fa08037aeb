//! A world of processes: rendezvous, control plane, and the links of its groups.

mod acceptor;
mod auth_token;
mod connection;
mod connector;
mod control;
mod descriptors;
mod dialer;
pub(crate) mod fuzz;
mod handshake;
mod host;
mod message;
mod rendezvous;
mod status_query;

use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};

use serde::{Deserialize, Serialize};

pub use crate::call::PROTOCOL_VERSION;
pub use auth_token::AuthToken;
pub use host::host_identity;
pub use message::{MAX_FRAME_BYTES, MAX_WORLD_SIZE};

use crate::Result;
use crate::connector::{Connector, LinkSpec, LinkUnavailable};
use crate::engine::Context;
use crate::error::Error;
use crate::fault::Fault;
use crate::flight::Recorder;
use crate::group::Group;
use crate::link::{EventFd, Link};
use crate::open_files::{explained, raise_open_files, shortage};
use crate::timeouts::{OpTimeout, Timeouts};
use acceptor::AcceptorThread;
use connector::ProcessConnector;
use control::Control;
use dialer::{DialQueue, Dialer};
use message::{Hello, MAX_TEXT_BYTES, RankAddress, RankTable};

/// What carries the bytes between two ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transport {
    /// Shared memory where two ranks have the same host identity, TCP elsewhere.
    #[default]
    Auto,
    /// Shared memory with every rank, or an error.
    SharedMemory,
    /// TCP with every rank, also on the same host.
    Tcp,
}

/// What a process gives to become a rank of a world.
#[derive(Debug)]
pub struct Join {
    /// This rank, below `world_size`.
    pub rank: usize,
    /// The number of ranks, from 1 to [`MAX_WORLD_SIZE`].
    pub world_size: usize,
    /// `host:port` where rank 0 listens and the others find it.
    pub endpoint: String,
    /// Rank 0 may be given a socket that already listens at the endpoint.
    pub listener: Option<TcpListener>,
    /// The world's secret.
    pub token: AuthToken,
    /// How often the world has been started before, 0 at first. A rank of an earlier start is refused and does not
    /// disturb a later one.
    pub restart: u32,
    /// How this rank talks to the others.
    pub transport: Transport,
    /// The world's deadlines.
    pub timeouts: Timeouts,
    /// Instead of [`host_identity`], to make ranks on one host behave as if they were on several.
    pub host: Option<String>,
}

/// A rank's membership in a world of processes. Dropping it without [`shutdown`](Self::shutdown) tells the others
/// that this rank failed.
pub struct World {
    group: Group,
    rank: usize,
    fault: Arc<Fault>,
    timeouts: Timeouts,
    done: bool,
    // A world of one rank has nobody to talk to.
    control: Option<Control>,
    _acceptor_thread: Option<AcceptorThread>,
}

/// Joins a world: returns once all ranks are there. Two of them connect when they first have something for each other.
///
/// # Errors
/// [`Error::Option`] for values that cannot be; [`Error::Listen`], [`Error::Unreachable`], [`Error::Missing`],
/// [`Error::Rendezvous`], [`Error::Refused`] and [`Error::Connect`] for what goes wrong on the way.
pub fn join(join: Join) -> Result<World> {
    check(&join)?;
    let fault = Arc::new(Fault::default());
    let Join { rank, world_size, restart, timeouts, .. } = join;
    let recorder = Arc::new(Recorder::new(rank, world_size, restart));
    let timeout = OpTimeout::new(timeouts);
    if world_size == 1 {
        let context =
            Context { connector: Arc::new(SingleRankConnector), fault: fault.clone(), recorder, timeout };
        let group = Group::world(context, vec![0])?;
        return Ok(World {
            group,
            rank,
            fault,
            timeouts,
            done: false,
            control: None,
            _acceptor_thread: None,
        });
    }
    let token = join.token.clone();
    let limit_of_files = raise_open_files();
    if let Some(reason) = shortage(limit_of_files, world_size).filter(|_| rank == 0) {
        return Err(Error::System { what: "connect all ranks", reason });
    }
    let (acceptor_thread, joined) = run_rendezvous(join, fault.clone())?;
    let Joined { table, streams, rank_0 } = joined;
    let control = Control::start(streams, timeouts.host, fault.clone(), recorder.clone())?;
    let dialer = Dialer {
        rank,
        table,
        rank_0,
        token,
        acceptor: acceptor_thread.acceptor.clone(),
        fault: fault.clone(),
        wait: timeouts.init,
        queue: Mutex::new(DialQueue::default()),
    };
    let network = ProcessConnector { dialer: Arc::new(dialer), control: control.shared.clone() };
    let context = Context { connector: Arc::new(network), fault: fault.clone(), recorder, timeout };
    let group = Group::world(context, (0..world_size).collect())
        .inspect_err(|error| fault.raise(rank, error.clone()))?;
    let (control, acceptor_thread) = (Some(control), Some(acceptor_thread));
    Ok(World { group, rank, fault, timeouts, done: false, control, _acceptor_thread: acceptor_thread })
}

/// What the rendezvous gives a rank.
struct Joined {
    table: RankTable,
    /// The control connections, with the ranks at their other ends.
    streams: Vec<(usize, TcpStream)>,
    /// Rank 0's address.
    rank_0: IpAddr,
}

fn run_rendezvous(join: Join, fault: Arc<Fault>) -> Result<(AcceptorThread, Joined)> {
    let Join { rank, world_size, endpoint, listener, token, restart, transport, timeouts, host } = join;
    let (name, port) = rendezvous::parse_endpoint(&endpoint).unwrap_or(("", 0));
    let listener = match listener {
        Some(listener) => Ok(listener),
        None => rendezvous::listen(name, if rank == 0 { port } else { 0 }),
    };
    let listener = listener.map_err(|error| match rank {
        0 => Error::Listen { endpoint: endpoint.clone(), reason: explained(&error) },
        _ => Error::system("listen for other ranks", error),
    })?;
    let (sender, requests) = mpsc::channel();
    let acceptor_thread =
        AcceptorThread::start(rank, listener, token.clone(), (rank == 0).then_some(sender), fault)?;
    let place = RankAddress {
        host: host.unwrap_or_else(host_identity),
        transport,
        address: None,
        port: acceptor_thread.port,
        socket: acceptor_thread.socket.clone(),
    };
    let hello = Hello { version: PROTOCOL_VERSION, rank, world_size, restart, place };
    if rank == 0 {
        let acceptor = &acceptor_thread.acceptor;
        let (table, streams) = rendezvous::host(&endpoint, hello, &requests, acceptor, timeouts.init)?;
        let (streams, rank_0) = ((1..).zip(streams).collect(), Ipv4Addr::LOCALHOST.into());
        return Ok((acceptor_thread, Joined { table, streams, rank_0 }));
    }
    let (table, stream) = rendezvous::join_rank_0(&endpoint, &token, &hello, timeouts.init)?;
    let rank_0 = stream
        .peer_addr()
        .map_err(|error| Error::PeerDied {
            peer: 0,
            reason: format!("its control connection broke: {error}"),
        })?
        .ip();
    Ok((acceptor_thread, Joined { table, streams: vec![(0, stream)], rank_0 }))
}

/// What a world's size may be, in words for errors about one that is not.
pub fn allowed_world_size() -> String {
    format!("a world has 1 to {MAX_WORLD_SIZE} ranks")
}

fn check(join: &Join) -> Result<()> {
    let refuse = |option, given: String, allowed: String| Err(Error::Option { option, given, allowed });
    if !(1..=MAX_WORLD_SIZE).contains(&join.world_size) {
        return refuse("world_size", join.world_size.to_string(), allowed_world_size());
    }
    if join.rank >= join.world_size {
        let allowed = format!("a number below the world size of {} is allowed", join.world_size);
        return refuse("rank", join.rank.to_string(), allowed);
    }
    if rendezvous::parse_endpoint(&join.endpoint).is_none() {
        let allowed = "host:port is allowed, as in 10.0.0.1:29400 or [::1]:29400";
        return refuse("endpoint", format!("\"{}\"", join.endpoint), allowed.into());
    }
    if join.token.expose().is_empty() {
        return refuse("token", "\"\"".into(), "a secret of at least one character is needed".into());
    }
    if join.listener.is_some() && join.rank != 0 {
        let allowed = format!("only rank 0 may be given one, this is rank {}", join.rank);
        return refuse("listener", "a socket".into(), allowed);
    }
    match &join.host {
        Some(host) if host.len() > MAX_TEXT_BYTES => {
            let allowed = format!("at most {MAX_TEXT_BYTES} bytes are allowed");
            refuse("host", format!("{} bytes", host.len()), allowed)
        }
        _ => Ok(()),
    }
}

impl World {
    /// The group of all ranks.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Waits until every rank has called it, and leaves. Operations on sub-groups and transfers must have been waited
    /// for. When it returns without an error, all ranks have done all their work.
    pub fn shutdown(mut self) -> Result<()> {
        self.group.barrier()?;
        if let Some(control) = &self.control
            && !control.leave(self.timeouts.step)?
        {
            let reason = format!("not all ranks left within {:?}", self.timeouts.step);
            let error = Error::Aborted { rank: self.rank, reason };
            self.fault.raise(self.rank, error.clone());
            return Err(error);
        }
        self.done = true;
        Ok(())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if !self.done {
            let reason = match std::thread::panicking() {
                true => "a thread that held its world panicked",
                false => "it dropped its world without shutting it down",
            };
            let error = Error::Aborted { rank: self.rank, reason: reason.into() };
            self.fault.raise(self.rank, error);
        }
    }
}

/// The fabric of a world of one rank.
struct SingleRankConnector;

impl Connector for SingleRankConnector {
    fn join_group(&self, _: u64, _: usize) -> Result<Arc<EventFd>> {
        EventFd::new().map(Arc::new)
    }

    fn leave_group(&self, _: u64, _: usize) {}

    fn link(&self, _: &LinkSpec<'_>) -> std::result::Result<Option<Link>, LinkUnavailable> {
        Ok(None)
    }

    fn diagnose(&self, _: usize) -> crate::error::Diagnosis {
        crate::error::Diagnosis::default()
    }

    fn has_core_per_rank(&self) -> bool {
        true
    }
}
