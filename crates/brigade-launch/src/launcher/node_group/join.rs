//! How a launcher joins the launchers of the other nodes.

use std::{
    io,
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use brigade_comm::{Algorithm, AuthToken, Encryption, Join, Timeouts, Transport, World};

use super::{
    clocks, gather,
    status::{NodeDescription, check_alike},
};
use crate::launcher::config::REFUSALS;

/// Between two tries to join.
const RETRY: Duration = Duration::from_millis(200);

/// Where and how the launchers meet.
pub struct NodeGroupConfig {
    pub node: usize,
    pub nnodes: usize,
    pub endpoint: String,
    /// Node 0's socket at the endpoint.
    pub listener: Option<TcpListener>,
    pub token: AuthToken,
    pub timeout: Duration,
    /// How long a launcher may keep the others waiting, or be out of reach, before it counts as lost. One that died is
    /// noticed at once.
    pub host_timeout: Duration,
    /// Whether this launcher has joined before. If so, failures are retried until the timeout, since launchers come and go.
    pub is_rejoin: bool,
    pub description: NodeDescription,
}

/// The launchers' world, and what each says of itself: by its node.
pub struct Joined {
    pub world: World,
    pub descriptions: Vec<NodeDescription>,
    pub clocks: Vec<i64>,
    /// Whether they [are alike](check_alike). If not, they only leave, all of them.
    pub fits: bool,
}

/// Joins the other launchers, trying again while that may help.
pub fn join(config: &NodeGroupConfig) -> brigade_comm::Result<Joined> {
    let begin = Instant::now();
    let refusals = config.host_timeout + REFUSALS;
    let patience = if config.is_rejoin { config.timeout } else { refusals.min(config.timeout) };
    loop {
        match try_once(config, config.timeout.saturating_sub(begin.elapsed())) {
            Err(error)
                if begin.elapsed() + RETRY < patience && may_succeed_later(&error, config.is_rejoin) =>
            {
                thread::sleep(RETRY);
            }
            joined => return joined,
        }
    }
}

fn try_once(config: &NodeGroupConfig, init: Duration) -> brigade_comm::Result<Joined> {
    let system = |error: io::Error| brigade_comm::Error::System {
        what: "share the socket of the rendezvous",
        reason: error.to_string(),
    };
    let listener = config.listener.as_ref().map(TcpListener::try_clone).transpose().map_err(system)?;
    let timeouts = Timeouts { init, step: config.host_timeout, host: config.host_timeout };
    let NodeGroupConfig { node, nnodes, .. } = *config;
    let world = world(node, nnodes, config.endpoint.clone(), listener, config.token.clone(), timeouts)?;
    let json = serde_json::to_vec(&config.description).unwrap_or_default();
    let descriptions = gather::values(world.group(), json)?;
    let fits = check_alike(&descriptions, node).is_ok();
    let clocks = if fits { clocks::gather(world.group())? } else { Vec::new() };
    Ok(Joined { world, descriptions, clocks, fits })
}

/// The world of the launchers, whose ranks are the nodes.
pub fn world(
    node: usize,
    nnodes: usize,
    endpoint: String,
    listener: Option<TcpListener>,
    token: AuthToken,
    timeouts: Timeouts,
) -> brigade_comm::Result<World> {
    brigade_comm::join(Join {
        rank: node,
        world_size: nnodes,
        endpoint,
        listener,
        is_listening: false,
        token,
        // A launcher that was started again cannot know the number of restarts.
        restart: 0,
        transport: Transport::Tcp,
        encryption: Encryption::BetweenHosts,
        interfaces: Vec::new(),
        local_rank: 0,
        algorithm: Algorithm::Auto,
        timeouts,
        host: None,
    })
}

/// Whether the next try may succeed: a node 0 that has not yet noticed a loss refuses newcomers, and
/// launchers may start and die while the others still wait.
fn may_succeed_later(error: &brigade_comm::Error, is_rejoin: bool) -> bool {
    use brigade_comm::Error as E;
    match error {
        E::Refused { reason, .. } => !reason.contains("token"),
        E::PeerDied { .. } | E::PeerFailed { .. } | E::Connect { .. } => true,
        E::Rendezvous { .. } => is_rejoin,
        _ => false,
    }
}
