//! Settings of the parameter server, checked against the others.

use brigade_core::compress::Method;
use brigade_core::{AsyncServer, DP, Mesh, PP, ParameterServers, Rounds, SeparateWorlds};
use brigade_report::counted;

use super::{StrategyName, StrategySettings, is_endpoint};
use crate::settings::{CollectivesBackend, OnNonFinite, SettingError, Settings};

const SERVERS: &str = "strategy.servers (--servers)";
const STALENESS: &str = "strategy.staleness (--staleness)";
const LISTEN: &str = "strategy.listen (--listen)";
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
    pub(crate) fn rounds(&self) -> Option<Rounds> {
        (self.is_server() && self.staleness > 0).then_some(Rounds {
            steps: self.inner_steps,
            staleness: self.staleness,
            delay_compensation: self.delay_compensation,
        })
    }

    /// Whether servers and workers are launched separately, and which of them this launch is.
    pub(crate) fn separate_worlds(&self) -> Option<SeparateWorlds> {
        let is_server = !self.listen.is_empty();
        let is_separate = self.is_server() && (is_server || !self.coordinator.is_empty());
        is_separate.then_some(SeparateWorlds { is_server, workers: self.workers })
    }

    /// A line about servers and this many workers, if there are any.
    pub(crate) fn describe_servers(&self, workers: usize) -> Option<String> {
        let servers = self.resolved_servers();
        let how = match self.rounds() {
            None => "add up the gradients of all workers, and make one update from the sum".to_owned(),
            Some(Rounds { steps, staleness, delay_compensation }) => format!(
                "make an update from each push, with the learning rate / {workers}{}; no worker takes parameters more than {} ahead of those \
                that another one still computes with, so that gradients are less than {} steps late, and all wait for each other after every {}",
                if delay_compensation > 0.0 {
                    format!(" and delay compensation {delay_compensation}")
                } else {
                    String::new()
                },
                counted(staleness as usize, "step"),
                staleness + 2,
                counted(steps as usize, "step"),
            ),
        };
        let who = format!("{} and {}", counted(workers, "worker"), counted(servers, "server"));
        let place = match self.separate_worlds() {
            None => "servers are the last ranks, and".to_owned(),
            Some(separate) if separate.is_server => {
                format!("this launch has the servers, which listen at {}, and", self.listen)
            }
            Some(_) => format!(
                "this launch is worker {}; the servers listen at {}, and",
                self.worker, self.coordinator
            ),
        };
        (servers > 0).then(|| format!("{who}; {place} {how}"))
    }

    /// Checks settings that only the parameter server has.
    pub(crate) fn check_server(&self) -> Result<(), SettingError> {
        let only = |option, given: &dyn std::fmt::Display| {
            let allowed = "only --strategy async-server has servers; set 0, or that strategy";
            Err(SettingError::new(option, given, allowed))
        };
        if !(self.delay_compensation.is_finite() && self.delay_compensation >= 0.0) {
            let allowed = "it must be a number of at least 0, which turns it off";
            return Err(SettingError::new(DELAY, self.delay_compensation, allowed));
        }
        self.check_separate()?;
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

    /// Checks settings of separately launched servers and workers.
    fn check_separate(&self) -> Result<(), SettingError> {
        let listen = |allowed| Err(SettingError::new(LISTEN, &self.listen, allowed));
        if !self.listen.is_empty() {
            match () {
                () if !self.is_server() => listen("only --strategy async-server has servers; leave it out")?,
                () if !is_endpoint(&self.listen) => {
                    listen("it must be host:port, as in 10.0.0.1:29600, where workers call (--coordinator)")?
                }
                () if !self.coordinator.is_empty() => {
                    listen("servers listen, and workers have a --coordinator; set only one of the two")?
                }
                () if self.workers == 0 => {
                    let allowed = "with --listen it must say how many workers there may be";
                    Err(SettingError::new("strategy.workers (--workers)", 0, allowed))?
                }
                () => {}
            }
        }
        match self.separate_worlds() {
            Some(_) if self.staleness == 0 => {
                let allowed = "with 0 all workers make each update together, so they cannot come and go (--listen, --coordinator); it must be \
                at least 1";
                Err(SettingError::new(STALENESS, 0, allowed))
            }
            _ => Ok(()),
        }
    }
}

impl Settings {
    /// The mesh of this many ranks, the last of which are servers.
    pub(crate) fn mesh_with_servers(&self, world: usize) -> Result<Mesh, SettingError> {
        let (servers, mesh) = (self.strategy.resolved_servers(), &self.mesh);
        if let Some(separate) = self.strategy.separate_worlds() {
            return self.separate_mesh(world, separate);
        }
        if servers >= world {
            let allowed = match world {
                1 => "there is only one rank, and a server needs at least one worker; start at least 2 (--nproc-per-node 2)".into(),
                _ => format!("at least one of the {world} ranks must be a worker; it must be at most {}", world - 1),
            };
            return Err(SettingError::new(SERVERS, servers, allowed));
        }
        let workers = world - servers;
        let whole = "each worker of --strategy async-server is one rank with the whole model; it must be";
        let leave = format!(
            "{world} ranks with {servers} of them servers leave {}; it must be {workers}, or 0",
            counted(workers, "worker")
        );
        let refused = [
            ("mesh.pp (--pp)", mesh.pp != 1, mesh.pp, format!("{whole} 1")),
            ("mesh.replicate (--replicate)", mesh.replicate != 1, mesh.replicate, format!("{whole} 1")),
            ("mesh.dp (--dp)", ![0, workers].contains(&mesh.dp), mesh.dp, leave.clone()),
            (
                "strategy.workers (--workers)",
                ![0, workers].contains(&self.strategy.workers),
                self.strategy.workers,
                leave,
            ),
        ];
        if let Some((option, _, given, allowed)) = refused.into_iter().find(|(_, is_wrong, ..)| *is_wrong) {
            return Err(SettingError::new(option, given, allowed));
        }
        Mesh::new(world, [(PP, 1), (DP, world)])
            .map_err(|error| SettingError::new("mesh", world, error.to_string()))
    }

    /// The mesh of this many ranks, all of which are servers, or one of which is a worker.
    fn separate_mesh(&self, world: usize, separate: SeparateWorlds) -> Result<Mesh, SettingError> {
        let (servers, mesh) = (self.strategy.resolved_servers(), &self.mesh);
        let whole = "each worker of --strategy async-server is one rank with the whole model; it must be 1";
        let parts = [("mesh.pp (--pp)", mesh.pp), ("mesh.replicate (--replicate)", mesh.replicate)];
        if let Some((option, given)) = parts.into_iter().find(|(_, parts)| *parts != 1) {
            return Err(SettingError::new(option, given, whole));
        }
        if !separate.is_server && world != 1 {
            return Err(SettingError::new("the ranks of all nodes (--nproc-per-node)", world, whole));
        }
        if separate.is_server && world != servers {
            let allowed = format!("every rank of a launch with --listen is a server; it must be {world}");
            return Err(SettingError::new(SERVERS, servers, allowed));
        }
        if ![0, world].contains(&mesh.dp) {
            return Err(SettingError::new("mesh.dp (--dp)", mesh.dp, format!("it must be {world}, or 0")));
        }
        Mesh::new(world, [(PP, 1), (DP, world)])
            .map_err(|error| SettingError::new("mesh", world, error.to_string()))
    }

    /// The parameter server; refuses what it cannot be combined with.
    pub(crate) fn async_server(&self) -> Result<AsyncServer, SettingError> {
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
            _ => None,
        };
        if let Some(engine) = engine {
            let allowed = "servers answer workers in order of arrival, which only Brigade's own connections can do; it must be host or \
            auto, or --strategy sync";
            return refuse("comm.collectives (--collectives)", &engine, allowed);
        }
        if train.on_nonfinite == OnNonFinite::Rollback && strategy.staleness > 0 {
            let allowed = "a worker that finds a value that is not finite decides alone, and cannot roll back the others; it must be \
            stop or skip, or --staleness 0";
            return refuse("train.on_nonfinite", &"rollback", allowed);
        }
        Ok(AsyncServer(ParameterServers {
            count: strategy.resolved_servers(),
            rounds: strategy.rounds(),
            separate: strategy.separate_worlds(),
        }))
    }
}
