//! What to launch.

use std::{ffi::OsString, fmt, path::PathBuf, sync::Arc, time::Duration};

use brigade_comm::{AuthToken, MAX_WORLD_SIZE, allowed_world_size};

use crate::{
    args::LaunchArgs,
    endpoint::Endpoint,
    environment::NodeInfo,
    error::{Error, Result},
    interrupt::DEFAULT_PREEMPTION_GRACE,
    rank::restart::MAX_RESTARTS,
};

/// A format of the lines on standard error.
#[derive(Debug, Clone, Copy)]
pub struct LineFormat {
    /// The line of a rank in the format; one that is in it already stays.
    pub write: fn(usize, &str) -> String,
    /// The text that a line in the format stands for, as a report shows it; `None` for another line.
    pub read: fn(&str) -> Option<String>,
}

/// What rank 0 has for standard input and output. Standard error, and all that other ranks print, goes into the logs in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StandardStreams {
    /// What it prints goes into its log and, beside that, to the launcher's output; its input is empty.
    #[default]
    Logged,
    /// What it prints is the result of the run: it has the launcher's standard output itself, so that it knows when that cannot be written. As
    /// there is nothing to save, every signal to the launcher interrupts the run.
    Results,
    /// As results, and it reads the launcher's standard input.
    Dialogue,
}

/// Default of [`LaunchConfig::grace_period`].
pub const DEFAULT_GRACE_PERIOD: Duration = Duration::from_millis(1500);

/// Default of [`LaunchConfig::heartbeat_timeout`].
pub const DEFAULT_HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(600);

/// Default of [`LaunchConfig::stopped_timeout`]: that of an operation between ranks, so that a rank that is alone and stopped
/// is noticed as soon as one that others wait for.
pub const DEFAULT_STOPPED_TIMEOUT: Duration = Duration::from_secs(100);

/// Default of [`LaunchConfig::host_timeout`].
pub const DEFAULT_HOST_TIMEOUT: Duration = Duration::from_secs(30);

/// How long after the deadline for silence ([`LaunchConfig::host_timeout`]) a replacement may still be refused: by then node 0 has noticed that it
/// lost the launcher, or the coordinator that it lost the worker.
pub const REFUSALS: Duration = Duration::from_secs(5);

/// Default of [`LaunchConfig::init_timeout`].
pub const DEFAULT_INIT_TIMEOUT: Duration = Duration::from_secs(300);

/// Default of [`LaunchConfig::restart_delay`].
pub const DEFAULT_RESTART_DELAY: Duration = Duration::from_secs(1);

/// Default of [`Elastic::last_call`], as torchrun's.
pub const DEFAULT_LAST_CALL: Duration = Duration::from_secs(30);

/// Default of [`Elastic::resize_interval`].
pub const DEFAULT_RESIZE_INTERVAL: Duration = Duration::from_secs(60);

/// What a number of nodes needs: arguments for the ranks in addition to [`LaunchConfig::args`], or why ranks cannot run on
/// this many.
type NodeCountArgsFn = dyn Fn(usize) -> Result<Vec<String>, String> + Send + Sync;

/// How a world with fewer nodes than [`LaunchConfig::nnodes`] runs.
#[derive(Clone)]
pub struct Elastic {
    /// The fewest nodes; as many as there may be at most in a world that is not elastic.
    pub min_nodes: usize,
    /// How long node 0 waits for more nodes once there are `min_nodes`.
    pub last_call: Duration,
    /// How long ranks run at least before they are started again because a node came later.
    pub resize_interval: Duration,
    /// What must be the same on all nodes, as lines of text; a node with a different one is refused. It may be
    /// empty.
    pub configuration: String,
    /// What a number of nodes needs, on node 0, which tells the others: arguments of the ranks beside [`LaunchConfig::args`], or
    /// why ranks cannot run on this many.
    pub node_count_args: Arc<NodeCountArgsFn>,
}

impl Elastic {
    /// A world of exactly this many nodes.
    pub fn fixed(nodes: usize) -> Self {
        Self {
            min_nodes: nodes,
            last_call: DEFAULT_LAST_CALL,
            resize_interval: DEFAULT_RESIZE_INTERVAL,
            configuration: String::new(),
            node_count_args: Arc::new(|_| Ok(vec![])),
        }
    }
}

impl fmt::Debug for Elastic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { min_nodes, last_call, resize_interval, .. } = self;
        let mut text = f.debug_struct("Elastic");
        text.field("min_nodes", min_nodes).field("last_call", last_call);
        text.field("resize_interval", resize_interval).finish_non_exhaustive()
    }
}

/// The ranks to start on one node.
///
/// Each rank runs `program args…` with the launcher's environment, `env`, and `RANK LOCAL_RANK WORLD_SIZE
/// LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT BRIGADE_TOKEN BRIGADE_LAUNCHED=1
/// BRIGADE_RESTART_COUNT TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS BRIGADE_PREEMPTION_GRACE
/// BRIGADE_HEARTBEAT_FD`; standard input is empty, but for a [dialogue](StandardStreams::Dialogue). Local rank `r` is rank `node_rank * nproc + r`
/// of the world, so all nodes need the same `nproc`. In an [elastic](Elastic) world the nodes that are there are numbered anew
/// for this, in their order.
#[derive(Debug, Clone)]
pub struct LaunchConfig {
    /// The program: a path, or a name to look up in `PATH`.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Further variables to set.
    pub env: Vec<(OsString, OsString)>,
    /// Whether the program calls [`interrupt::install`](crate::interrupt::install): its ranks then start with signals
    /// [blocked](crate::interrupt::block_signals), so that none ends them before that call.
    pub blocks_signals: bool,
    /// Ranks on this node. Over all nodes there are at most [`MAX_WORLD_SIZE`].
    pub nproc: usize,
    /// Nodes, at least one; the most that an elastic world has.
    pub nnodes: usize,
    /// How many nodes there may be instead.
    pub elastic: Elastic,
    /// This node's number, below `nnodes`.
    pub node_rank: usize,
    /// On a single node: where rank 0 waits for the others; `None` takes a free port of 127.0.0.1. On several nodes: where the
    /// nodes' launchers meet; the ranks get a free port of node 0's host, a new one at each start.
    pub endpoint: Option<Endpoint>,
    /// The secret by which the world's ranks authenticate each other.
    pub token: AuthToken,
    /// The folder of the logs, one file `rank-<r>.log` each; made if missing, files in it are overwritten unless `keeps_logs`. A
    /// restarted rank appends to its file, after a line with the number of the restart.
    pub log_dir: PathBuf,
    /// Whether this launch goes on with the work of an earlier one: its ranks append to the files of their logs, too.
    pub keeps_logs: bool,
    /// Also print the output of ranks other than 0, each line with `[rank r]` before it.
    pub tee: bool,
    /// What rank 0 has for standard input and output.
    pub streams: StandardStreams,
    /// How lines on standard error are written, if not as text. Ranks must write theirs so, too; what else is in their output is brought into it.
    pub format: Option<LineFormat>,
    /// How long after SIGINT a rank may continue before it is killed.
    pub grace_period: Duration,
    /// How often the ranks are restarted after a failure, 0 to [`MAX_RESTARTS`]. On several nodes node 0's
    /// number counts.
    pub max_restarts: u32,
    /// Between a failure and the restart, so that ranks that fail at once are not restarted in a busy loop.
    pub restart_delay: Duration,
    /// How long after SIGTERM or SIGUSR1 the ranks may take to save a checkpoint and exit.
    pub preemption_grace: Duration,
    /// How long a rank that has sent a [heartbeat](crate::HeartbeatSender) may go without another; `None` for ever.
    pub heartbeat_timeout: Option<Duration>,
    /// How long a rank that has sent a [heartbeat](crate::HeartbeatSender) may be stopped by a signal (SIGSTOP, SIGTSTP).
    pub stopped_timeout: Duration,
    /// On several nodes: how long their launchers wait for each other, at the start and for one that is lost.
    pub init_timeout: Duration,
    /// On several nodes: how long another node may be out of reach, or its launcher stopped, before it counts as lost. As TCP
    /// doubles its pauses between retries, an interruption of up to half of this is survived.
    pub host_timeout: Duration,
}

impl LaunchConfig {
    /// A world of `nproc` ranks on this machine alone.
    pub fn local(
        program: impl Into<OsString>,
        nproc: usize,
        token: AuthToken,
        log_dir: impl Into<PathBuf>,
    ) -> Self {
        Self {
            program: program.into(),
            args: vec![],
            env: vec![],
            blocks_signals: false,
            nproc,
            nnodes: 1,
            elastic: Elastic::fixed(1),
            node_rank: 0,
            endpoint: None,
            token,
            log_dir: log_dir.into(),
            keeps_logs: false,
            tee: false,
            streams: StandardStreams::Logged,
            format: None,
            grace_period: DEFAULT_GRACE_PERIOD,
            max_restarts: 0,
            restart_delay: DEFAULT_RESTART_DELAY,
            preemption_grace: DEFAULT_PREEMPTION_GRACE,
            heartbeat_timeout: Some(DEFAULT_HEARTBEAT_TIMEOUT),
            stopped_timeout: DEFAULT_STOPPED_TIMEOUT,
            init_timeout: DEFAULT_INIT_TIMEOUT,
            host_timeout: DEFAULT_HOST_TIMEOUT,
        }
    }

    /// The same as a node of the world that was [detected](crate::detect).
    pub fn on_node(self, node: &NodeInfo) -> Self {
        let NodeInfo { nnodes, min_nodes, node_rank, ref endpoint, .. } = *node;
        let elastic = Elastic { min_nodes, ..self.elastic };
        Self { nnodes, elastic, node_rank, endpoint: endpoint.clone(), ..self }
    }

    /// Whether the world may have fewer nodes.
    pub fn is_elastic(&self) -> bool {
        self.elastic.min_nodes < self.nnodes
    }

    /// The same with the flags for logs, restarts and deadlines applied. A flag that is not given changes nothing.
    pub fn with_flags(mut self, flags: &LaunchArgs) -> Self {
        self.tee |= flags.tee;
        self.max_restarts = flags.max_restarts.unwrap_or(self.max_restarts);
        self.preemption_grace = flags.preemption_grace.unwrap_or(self.preemption_grace);
        if let Some(timeout) = flags.heartbeat_timeout {
            self.heartbeat_timeout = Some(timeout).filter(|timeout| !timeout.is_zero());
        }
        self.init_timeout = flags.rdzv_timeout.unwrap_or(self.init_timeout);
        self.host_timeout = flags.host_timeout.unwrap_or(self.host_timeout);
        self.elastic.last_call = flags.last_call.unwrap_or(self.elastic.last_call);
        self.elastic.resize_interval = flags.resize_interval.unwrap_or(self.elastic.resize_interval);
        if let Some(folder) = &flags.log_dir {
            self.log_dir.clone_from(folder);
        }
        self
    }

    pub(crate) fn first_rank(&self) -> usize {
        self.node_rank * self.nproc
    }

    pub(crate) fn check(&self) -> Result<()> {
        let within = |field, value: usize, least: usize, most: usize| match (least..=most).contains(&value) {
            true => Ok(()),
            false => {
                let allowed = format!("it must be from {least} to {most}");
                Err(Error::LaunchConfig { field, value: value.to_string(), allowed })
            }
        };
        let ranks = self.nproc.saturating_mul(self.nnodes);
        for (field, value) in [("nproc", self.nproc), ("nnodes", self.nnodes), ("nproc × nnodes", ranks)] {
            if !(1..=MAX_WORLD_SIZE).contains(&value) {
                return Err(Error::LaunchConfig {
                    field,
                    value: value.to_string(),
                    allowed: allowed_world_size(),
                });
            }
        }
        within("elastic.min_nodes", self.elastic.min_nodes, 1, self.nnodes)?;
        within("node_rank", self.node_rank, 0, self.nnodes - 1)?;
        within("max_restarts", self.max_restarts as usize, 0, MAX_RESTARTS as usize)?;
        if self.nnodes > 1 && self.endpoint.is_none() {
            let allowed = "several nodes need the address of node 0".into();
            return Err(Error::LaunchConfig { field: "endpoint", value: "not set".into(), allowed });
        }
        Ok(())
    }
}
