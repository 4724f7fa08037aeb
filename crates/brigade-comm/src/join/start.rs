//! How a process becomes a rank: rendezvous, control plane, group of all ranks.

use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use super::control::thread::Control;
use super::host_identity::host_identity;
use super::interfaces::Interfaces;
use super::network::connector::ProcessConnector;
use super::options::{Join, check};
use super::rendezvous::endpoint::{listen, parse_endpoint};
use super::rendezvous::{other_ranks, rank_0};
use super::single_rank::SingleRankConnector;
use super::wire::message::{Hello, RankAddress, RankTable};
use super::world::World;
use crate::Result;
use crate::error::Error;
use crate::fault::Fault;
use crate::flight::Recorder;
use crate::group::handle::Group;
use crate::join::network::acceptor::AcceptorThread;
use crate::join::network::dialer::{DialQueue, Dialer};
use crate::link::tcp::session::Session;
use crate::locality::{Locality, numa_node};
use crate::op::header::PROTOCOL_VERSION;
use crate::open_files::{explained, raise_open_files, shortage};
use crate::progress::context::Context;
use crate::timeouts::{OpTimeout, Timeouts};

/// Joins a world, and returns once all ranks have joined. Two ranks connect when they first communicate.
///
/// # Errors
/// [`Error::Option`] for values that are not allowed; [`Error::Listen`], [`Error::Unreachable`], [`Error::Missing`],
/// [`Error::Rendezvous`], [`Error::Refused`] and [`Error::Connect`] for failures during the rendezvous.
pub fn join(join: Join) -> Result<World> {
    check(&join)?;
    let fault = Arc::new(Fault::default());
    let Join { rank, world_size, restart, timeouts, algorithm, .. } = join;
    let recorder = Arc::new(Recorder::new(rank, world_size, restart));
    let timeout = OpTimeout::new(timeouts);
    if world_size == 1 {
        let context = Context {
            connector: Arc::new(SingleRankConnector),
            fault: fault.clone(),
            recorder,
            timeout,
            localities: [Locality { numa: numa_node(), ..Locality::default() }].into(),
            algorithm,
            table: [].into(),
        };
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
    let interfaces = Interfaces::of(&join.interfaces, join.local_rank)?;
    let address = interfaces.as_ref().map(Interfaces::own);
    let (acceptor_thread, joined) = run_rendezvous(join, address, fault.clone())?;
    let Joined { table, streams, rank_0 } = joined;
    let control = Control::start(streams, timeouts.host, fault.clone(), recorder.clone())?;
    let localities = table.localities();
    let dialer = Dialer {
        rank,
        table,
        rank_0,
        interfaces,
        token,
        acceptor: acceptor_thread.acceptor.clone(),
        fault: fault.clone(),
        wait: timeouts.init,
        unreachable: unreachable(timeouts),
        queue: Mutex::new(DialQueue::default()),
    };
    let network = ProcessConnector { dialer: Arc::new(dialer), control: control.plane.clone() };
    let connector = Arc::new(network);
    let context = Context {
        connector,
        fault: fault.clone(),
        recorder,
        timeout,
        localities,
        algorithm,
        table: [].into(),
    };
    let group = Group::world(context, (0..world_size).collect())
        .inspect_err(|error| fault.raise(rank, error.clone()))?;
    let (control, acceptor_thread) = (Some(control), Some(acceptor_thread));
    Ok(World { group, rank, fault, timeouts, done: false, control, _acceptor_thread: acceptor_thread })
}

fn listen_for_links(address: IpAddr) -> Result<TcpListener> {
    TcpListener::bind((address, 0)).map_err(|error| Error::System {
        what: "listen for other ranks on a chosen interface",
        reason: format!("{address}: {}", explained(&error)),
    })
}

/// How long an address may not answer. A host that is gone is noticed before that, and the operation that waits for the connection ends
/// after it.
fn unreachable(timeouts: Timeouts) -> Duration {
    timeouts.init.min(timeouts.host.mul_f64(1.25)).min(timeouts.step.mul_f64(0.75))
}

/// What the rendezvous gives a rank.
struct Joined {
    table: RankTable,
    /// The control connections, with the ranks at their other ends.
    streams: Vec<(usize, (TcpStream, Session))>,
    /// Rank 0's address.
    rank_0: IpAddr,
}

fn run_rendezvous(
    join: Join,
    address: Option<IpAddr>,
    fault: Arc<Fault>,
) -> Result<(AcceptorThread, Joined)> {
    let Join {
        rank,
        world_size,
        endpoint,
        listener,
        is_listening,
        token,
        restart,
        transport,
        encryption,
        algorithm,
        timeouts,
        host,
        ..
    } = join;
    let (name, port) = parse_endpoint(&endpoint).unwrap_or(("", 0));
    let listener = match (listener, address) {
        (Some(listener), _) => Some(Ok(listener)),
        (None, _) if rank == 0 => Some(listen(name, port)),
        (None, None) => Some(listen(name, 0)),
        (None, Some(_)) => None,
    };
    let listener = listener.transpose().map_err(|error| match rank {
        0 => Error::Listen { endpoint: endpoint.clone(), reason: explained(&error) },
        _ => Error::system("listen for other ranks", error),
    })?;
    // Links come by the interface, wherever the rendezvous is.
    let of_links = address.map(listen_for_links).transpose()?;
    let listeners = listener.into_iter().chain(of_links).collect();
    let (sender, requests) = mpsc::channel();
    let requests_to = (rank == 0).then_some(sender);
    let acceptor_thread =
        AcceptorThread::start(rank, listeners, token.clone(), timeouts.step, requests_to, fault)?;
    let place = RankAddress {
        host: host.unwrap_or_else(host_identity),
        transport,
        encryption,
        address,
        port: acceptor_thread.port,
        socket: acceptor_thread.socket.clone(),
        numa: numa_node(),
    };
    let hello = Hello { version: PROTOCOL_VERSION, rank, world_size, restart, algorithm, place };
    if rank == 0 {
        let acceptor = &acceptor_thread.acceptor;
        let (table, streams) = rank_0::serve(&endpoint, hello, &requests, acceptor, timeouts.init)?;
        let (streams, rank_0) = ((1..).zip(streams).collect(), Ipv4Addr::LOCALHOST.into());
        return Ok((acceptor_thread, Joined { table, streams, rank_0 }));
    }
    let (table, stream) = other_ranks::join_rank_0(&endpoint, is_listening, &token, &hello, timeouts.init)?;
    let rank_0 = stream
        .0
        .peer_addr()
        .map_err(|error| Error::PeerDied {
            peer: 0,
            reason: format!("its control connection broke: {error}"),
        })?
        .ip();
    Ok((acceptor_thread, Joined { table, streams: vec![(0, stream)], rank_0 }))
}
