//! What carries tensors through host memory.

#[cfg(feature = "mpi")]
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "mpi")]
use brigade_comm::AuthToken;
use brigade_comm::{Group, ProcessGroup};
#[cfg(feature = "mpi")]
use brigade_launch::Endpoint;
use brigade_launch::{Detected, RankInfo};

use super::join::Rendezvous;
#[cfg(feature = "mpi")]
use crate::settings::SumOrder;
use crate::settings::{CollectivesBackend, CommSettings};

/// What carries tensors through host memory. The world that a rank has joined stays the way for everything else.
#[derive(Debug, Clone)]
pub(crate) enum HostEngine {
    /// Brigade's own.
    Streams,
    /// MPI.
    #[cfg(feature = "mpi")]
    Mpi(Arc<brigade_mpi::Mpi>, brigade_mpi::Order),
}

impl HostEngine {
    /// What the settings ask for. MPI is initialised, which waits for all ranks.
    ///
    /// # Errors
    /// If MPI cannot be used, or the rank is another for MPI.
    #[cfg_attr(not(feature = "mpi"), expect(unused_variables, clippy::unnecessary_wraps))]
    pub(crate) fn open(comm: &CommSettings, info: &RankInfo) -> anyhow::Result<Self> {
        #[cfg(feature = "mpi")]
        if comm.collectives == CollectivesBackend::Mpi {
            let mpi = brigade_mpi::Mpi::init(Duration::from_secs_f64(comm.init_timeout_seconds))?;
            mpi.check_rank(info.rank, info.world_size)?;
            return Ok(Self::Mpi(Arc::new(mpi), comm.order.into()));
        }
        Ok(Self::Streams)
    }

    /// Refuses early what [`rendezvous`](Self::rendezvous) would refuse: that there is no secret, or a wrong one.
    ///
    /// # Errors
    /// If so.
    pub(crate) fn check_token(comm: &CommSettings, detected: &Detected) -> anyhow::Result<()> {
        match detected.token(&|name| std::env::var(name).ok()) {
            // MPI tells the others one.
            Err(brigade_launch::Error::NoToken { .. }) if comm.collectives == CollectivesBackend::Mpi => {
                Ok(())
            }
            token => Ok(token.map(drop)?),
        }
    }

    /// How ranks find each other: as the environment says. What it leaves open, rank 0 chooses where MPI can tell the others: the secret,
    /// and on one host the port.
    ///
    /// # Errors
    /// If there is no secret, or MPI fails.
    pub(crate) fn rendezvous(&self, info: &RankInfo, detected: &Detected) -> anyhow::Result<Rendezvous> {
        let token = || detected.token(&|name| std::env::var(name).ok());
        match self {
            Self::Streams => Ok(Rendezvous {
                endpoint: info.endpoint.to_string(),
                listener: brigade_launch::inherited_listener()?,
                token: token()?,
            }),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi, _) => {
                let is_local = info.endpoint.host == Ipv4Addr::LOCALHOST.to_string();
                let listens = info.rank == 0 && is_local;
                let listener = listens.then(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).transpose()?;
                let own = listener.as_ref().map(TcpListener::local_addr).transpose()?;
                let port = own.map_or(info.endpoint.port, |own| own.port());
                let mut secret = [0; 32];
                getrandom::fill(&mut secret)?;
                let shared = mpi.share([&secret[..], &port.to_le_bytes()].concat())?;
                let (secret, port) = shared.split_at(secret.len());
                let port = port.first_chunk().map_or(info.endpoint.port, |port| u16::from_le_bytes(*port));
                let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
                Ok(Rendezvous {
                    endpoint: Endpoint { port, ..info.endpoint.clone() }.to_string(),
                    listener,
                    token: match token() {
                        Err(brigade_launch::Error::NoToken { .. }) => AuthToken::new(&secret),
                        token => token?,
                    },
                })
            }
        }
    }

    /// The group of all ranks; they call it together.
    ///
    /// # Errors
    /// If MPI fails, or not all ranks call it in time.
    #[cfg_attr(not(feature = "mpi"), expect(clippy::unnecessary_wraps))]
    pub(crate) fn group(&self, world: &Group) -> anyhow::Result<Arc<dyn ProcessGroup>> {
        match self {
            Self::Streams => Ok(Arc::new(world.clone())),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi, order) => Ok(Arc::new(mpi.group(world, *order)?)),
        }
    }

    /// The end of its use, after all ranks have left the world.
    ///
    /// # Errors
    /// If MPI fails, or not all ranks come in time.
    #[cfg_attr(not(feature = "mpi"), expect(unused_variables, clippy::unnecessary_wraps))]
    pub(crate) fn close(&self, timeout: Duration) -> anyhow::Result<()> {
        match self {
            Self::Streams => Ok(()),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi, _) => Ok(mpi.finalize(timeout)?),
        }
    }
}

#[cfg(feature = "mpi")]
impl From<SumOrder> for brigade_mpi::Order {
    fn from(order: SumOrder) -> Self {
        match order {
            SumOrder::Tree => Self::Tree,
            SumOrder::Engine => Self::Engine,
        }
    }
}
