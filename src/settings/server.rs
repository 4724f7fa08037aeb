//! Settings of the parameter server, checked against the others.

use brigade_core::compress::Method;
use brigade_core::{AsyncServer, DP, Mesh, PP, Rounds};

use super::{CollectivesBackend, OnNonFinite, SettingError, Settings, StrategyName, StrategySettings};

const SERVERS: &str = "strategy.servers (--servers)";
const STALENESS: &str = "strategy.staleness (--staleness)";
const DELAY: &str = "strategy.delay_compensation";

impl StrategySettings {
    fn is_server(&self) -> bool {
        self.name == StrategyName::AsyncServer
    }

    /// Ranks that are servers.
    pub(crate) fn resolved_servers(&self) -> usize {
        if self.is_server() { self.servers.max(1) } else { 0 }
    }

    /// How workers push to servers that apply each gradient at once; none if a step is one update.
    pub(super) fn rounds(&self) -> Option<Rounds> {
        (self.is_server() && self.staleness > 0).then_some(Rounds {
            steps: self.inner_steps,
            staleness: self.staleness,
            delay_compensation: self.delay_compensation,
        })
    }

    /// A line about servers and this many workers, if there are any.
    pub(crate) fn describe_servers(&self, workers: usize) -> Option<String> {
        let servers = self.resolved_servers();
        let many =
            |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
        let how = match self.rounds() {
            None => "add up the gradients of all workers, and make one update from the sum".to_owned(),
            Some(Rounds { steps, staleness, delay_compensation }) => format!(
                "make an update from each push, with the learning rate / {workers}{}; no worker is more than {} ahead of another, and all \
                wait for each other after every {}",
                if delay_compensation > 0.0 {
                    format!(" and delay compensation {delay_compensation}")
                } else {
                    String::new()
                },
                many(staleness as usize, "step"),
                many(steps as usize, "step"),
            ),
        };
        let who = format!("{} and {}", many(workers, "worker"), many(servers, "server"));
        (servers > 0).then(|| format!("{who}; servers are the last ranks, and {how}"))
    }

    /// Checks settings that only the parameter server has.
    pub(super) fn check_server(&self) -> Result<(), SettingError> {
        let only = |option, given: &dyn std::fmt::Display| {
            let allowed = "only --strategy async-server has servers; set 0, or that strategy";
            Err(SettingError::new(option, given, allowed))
        };
        if !(self.delay_compensation.is_finite() && self.delay_compensation >= 0.0) {
            let allowed = "it must be a number of at least 0, which turns it off";
            return Err(SettingError::new(DELAY, self.delay_compensation, allowed));
        }
        match () {
            () if self.is_server() && self.staleness == 0 && self.delay_compensation > 0.0 => {
                let allowed = format!("with {STALENESS} = 0 no gradient is late; set 0, or --staleness 1");
                Err(SettingError::new(DELAY, self.delay_compensation, allowed))
            }
            () if self.is_server() => Ok(()),
            () if self.servers > 0 => only(SERVERS, &self.servers),
            () if self.staleness > 0 => only(STALENESS, &self.staleness),
            () if self.delay_compensation > 0.0 => only(DELAY, &self.delay_compensation),
            () => Ok(()),
        }
    }
}

impl Settings {
    /// The mesh of this many ranks, the last of which are servers.
    pub(super) fn mesh_with_servers(&self, world: usize) -> Result<Mesh, SettingError> {
        let (servers, mesh) = (self.strategy.resolved_servers(), &self.mesh);
        if servers >= world {
            let allowed = match world {
                1 => "there is only one rank, and a server needs at least one worker; start at least 2 (--nproc-per-node 2)".into(),
                _ => format!("at least one of the {world} ranks must be a worker; it must be at most {}", world - 1),
            };
            return Err(SettingError::new(SERVERS, servers, allowed));
        }
        let workers = world - servers;
        let whole = "each worker of --strategy async-server is one rank with the whole model; it must be";
        let refused = [
            ("mesh.pp (--pp)", mesh.pp != 1, mesh.pp, format!("{whole} 1")),
            ("mesh.replicate (--replicate)", mesh.replicate != 1, mesh.replicate, format!("{whole} 1")),
            (
                "mesh.dp (--dp)",
                ![0, workers].contains(&mesh.dp),
                mesh.dp,
                format!(
                    "{world} ranks with {servers} of them servers leave {workers} workers; it must be {workers}, or 0"
                ),
            ),
            (
                "strategy.workers (--workers)",
                ![0, workers].contains(&self.strategy.workers),
                self.strategy.workers,
                format!(
                    "{world} ranks with {servers} of them servers leave {workers} workers; it must be {workers}, or 0"
                ),
            ),
        ];
        if let Some((option, _, given, allowed)) = refused.into_iter().find(|(_, is_wrong, ..)| *is_wrong) {
            return Err(SettingError::new(option, given, allowed));
        }
        Mesh::new(world, [(PP, 1), (DP, world)])
            .map_err(|error| SettingError::new("mesh", world, error.to_string()))
    }

    /// The parameter server; refuses what it cannot be combined with.
    pub(super) fn async_server(&self) -> Result<AsyncServer, SettingError> {
        let Self { strategy, train, zero, comm, .. } = self;
        let refuse = |option, given: &dyn std::fmt::Display, allowed: &str| {
            Err(SettingError::new(option, given, allowed))
        };
        if zero.stage > 0 {
            let allowed = "servers already shard the optimizer's state, and workers hold the whole model; it must be 0, or --strategy \
            sync";
            return refuse("zero.stage (--zero)", &zero.stage, allowed);
        }
        if comm.compress != Method::None {
            let allowed =
                "workers push gradients as compute.reduce_dtype; it must be none, or --strategy sync";
            return refuse("comm.compress (--compress)", &comm.compress, allowed);
        }
        if train.sync_every > 1 {
            let allowed = "workers push after every step; set 1, with more micro-batches in a step (--global-batch-size), or --strategy sync";
            return refuse("train.sync_every (--sync-every)", &train.sync_every, allowed);
        }
        let engine = match comm.collectives {
            CollectivesBackend::Mpi => Some("mpi"),
            CollectivesBackend::Nccl => Some("nccl"),
            CollectivesBackend::Auto if self.compute.backend.resolved() == super::Backend::Cuda => {
                Some("auto, which is nccl on CUDA,")
            }
            _ => None,
        };
        if let Some(engine) = engine {
            let allowed = "servers answer workers in order of arrival, which only Brigade's own connections can do; it must be host, \
            or --strategy sync";
            return refuse("comm.collectives (--collectives)", &engine, allowed);
        }
        if train.on_nonfinite == OnNonFinite::Rollback && strategy.staleness > 0 {
            let allowed = "a worker that finds a value that is not finite decides alone, and cannot roll back the others; it must be \
            stop or skip, or --staleness 0";
            return refuse("train.on_nonfinite", &"rollback", allowed);
        }
        Ok(AsyncServer { servers: strategy.resolved_servers(), rounds: strategy.rounds() })
    }
}
