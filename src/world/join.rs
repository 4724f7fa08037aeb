//! Joining the world.

use std::net::TcpListener;
use std::time::Duration;

use anyhow::Context;
use brigade_comm::{Algorithm, AuthToken, Join, Timeouts, Transport, World};
use brigade_launch::RankInfo;

use crate::settings::CommSettings;

/// Overrides, for tests and clusters with unusual networking, which ranks share a host.
const HOST_ID: &str = "BRIGADE_HOST_ID";

pub(crate) fn timeouts(comm: &CommSettings) -> Timeouts {
    Timeouts {
        init: Duration::from_secs_f64(comm.init_timeout_seconds),
        step: Duration::from_secs_f64(comm.train_timeout_seconds),
        host: Duration::from_secs_f64(comm.host_timeout_seconds),
    }
}

/// How the ranks of a world find each other.
pub(crate) struct Rendezvous {
    /// `host:port`, where rank 0 listens.
    pub endpoint: String,
    /// Rank 0's socket, if it listens already.
    pub listener: Option<TcpListener>,
    pub token: AuthToken,
}

/// Joins the world that the launcher or the cluster described.
pub(crate) fn join(info: &RankInfo, rendezvous: Rendezvous, comm: &CommSettings) -> anyhow::Result<World> {
    let Rendezvous { endpoint, listener, token } = rendezvous;
    let world = brigade_comm::join(Join {
        rank: info.rank,
        world_size: info.world_size,
        endpoint,
        listener,
        restart: brigade_launch::restart_count()?,
        interfaces: comm.interfaces.clone(),
        local_rank: info.local_rank,
        ..as_set(comm, token)
    });
    world.with_context(|| format!("rank {} cannot join its world", info.rank))
}

/// How the ranks of several workers join a world, which may take `init`. Each worker has its own `[comm]`: the algorithm that it says, and
/// that memory is to be shared, are for the ranks within it.
pub(crate) fn outer_join(comm: &CommSettings, token: AuthToken, init: Duration) -> Join {
    let transport = match comm.transport {
        Transport::Tcp => Transport::Tcp,
        Transport::Auto | Transport::SharedMemory => Transport::Auto,
    };
    let timeouts = Timeouts { init, ..timeouts(comm) };
    Join { transport, algorithm: Algorithm::Auto, timeouts, ..as_set(comm, token) }
}

/// Joining as the settings say, still without a rank.
fn as_set(comm: &CommSettings, token: AuthToken) -> Join {
    Join {
        transport: comm.transport,
        encryption: comm.encryption,
        algorithm: comm.collectives.algorithm(),
        timeouts: timeouts(comm),
        host: std::env::var(HOST_ID).ok(),
        ..Join::new(0, 1, "", token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::CollectivesBackend;

    #[test]
    fn what_workers_set_differently_does_not_keep_them_apart() {
        for (transport, expected) in [
            (Transport::Auto, Transport::Auto),
            (Transport::SharedMemory, Transport::Auto),
            (Transport::Tcp, Transport::Tcp),
        ] {
            for collectives in [CollectivesBackend::Auto, CollectivesBackend::Flat] {
                let comm = CommSettings { collectives, transport, ..CommSettings::default() };
                let join = outer_join(&comm, AuthToken::new("a secret"), Duration::from_secs(7));
                assert_eq!((join.algorithm, join.transport), (Algorithm::Auto, expected));
                assert_eq!(join.timeouts.init, Duration::from_secs(7));
            }
        }
    }
}
