//! Worlds of the ranks of several workers, for one quorum or for as long as the same workers synchronise.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use brigade_comm::{Join, World};
use brigade_core::{Collectives, DP, Mesh, SingleRankGroup, WORKERS};

use crate::run::Session;
use crate::world::outer_join;

/// What rank 0 of a worker listens on while it asks for a quorum.
#[derive(Default)]
pub(crate) struct Listeners {
    pub(super) sums: Option<TcpListener>,
    pub(super) transfer: Option<TcpListener>,
}

impl Listeners {
    pub(super) fn open(address: IpAddr) -> anyhow::Result<Self> {
        let open = || TcpListener::bind((address, 0)).context("listening for the other workers");
        Ok(Self { sums: Some(open()?), transfer: Some(open()?) })
    }

    /// Where others reach them.
    pub(super) fn endpoints(&self, address: IpAddr) -> anyhow::Result<[String; 2]> {
        let endpoint = |listener: &Option<TcpListener>| -> anyhow::Result<String> {
            let port = listener.as_ref().context("no listener")?.local_addr()?.port();
            Ok(SocketAddr::new(address, port).to_string())
        };
        Ok([endpoint(&self.sums)?, endpoint(&self.transfer)?])
    }
}

/// The ranks at the same position in several workers.
pub(crate) enum OuterWorld {
    /// Only this worker.
    Alone,
    /// A world of all their ranks.
    Joined {
        /// The quorum that it was formed for.
        quorum: u64,
        world: World,
        workers: Arc<dyn Collectives>,
    },
}

impl OuterWorld {
    /// Forms the world of these workers, in their order. The first one's rank 0 listens. All their ranks call it together, or come within
    /// `wait`, as long as the first worker is there.
    ///
    /// # Errors
    /// If it cannot be formed in time, or the first worker is gone.
    pub(super) fn of(
        session: &Session,
        quorum: u64,
        workers: &[usize],
        (endpoint, listener): (&str, Option<TcpListener>),
        wait: Duration,
    ) -> anyhow::Result<Self> {
        let own = session.settings.strategy.worker;
        let place = workers.iter().position(|worker| *worker == own).context("this worker is not invited")?;
        if workers.len() == 1 {
            return Ok(Self::Alone);
        }
        let ranks = session.world_size();
        let rank = place * ranks + session.rank();
        let join = Join {
            listener: listener.filter(|_| rank == 0),
            is_listening: true,
            interfaces: session.settings.comm.interfaces.clone(),
            local_rank: session.local_rank,
            ..outer_join(&session.settings.comm, session.token.clone(), wait)
        };
        let join = Join { rank, world_size: workers.len() * ranks, endpoint: endpoint.into(), ..join };
        let world = brigade_comm::join(join)?;
        let mesh = Mesh::new(workers.len() * ranks, [(WORKERS, workers.len()), (DP, ranks)])?;
        let workers = session.host_groups(world.group(), mesh)?.over(&[WORKERS]);
        Ok(Self::Joined { quorum, world, workers })
    }

    /// The quorum that it was formed for; 0 without one.
    pub(super) fn quorum(&self) -> u64 {
        match self {
            Self::Alone => 0,
            Self::Joined { quorum, .. } => *quorum,
        }
    }

    /// The ranks at this one's position.
    pub(crate) fn workers(&self) -> Arc<dyn Collectives> {
        match self {
            Self::Alone => Arc::new(SingleRankGroup),
            Self::Joined { workers, .. } => workers.clone(),
        }
    }

    /// Leaves it together with the others, as far as they are still there.
    pub(super) fn shut_down(self) {
        if let Self::Joined { world, workers, .. } = self {
            drop(workers);
            drop(world.shutdown());
        }
    }
}

/// How long ranks may take to form a world: those who synchronise are all there, or lost.
pub(super) fn forming(session: &Session) -> Duration {
    const MOST: Duration = Duration::from_secs(30);
    Duration::from_secs_f64(session.settings.comm.init_timeout_seconds).min(MOST)
}

/// The same for those that join and come before the first worker, which makes the outer step first.
pub(super) fn forming_after_outer_step(session: &Session) -> Duration {
    let comm = &session.settings.comm;
    Duration::from_secs_f64(comm.init_timeout_seconds + comm.train_timeout_seconds)
}
