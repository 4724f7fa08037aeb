//! What can go wrong before the ranks run.

use std::{io, path::PathBuf};

use crate::exit;

/// Shorthand for this crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong before the ranks run. How a run that did start ended is an [`Outcome`](crate::Outcome).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An environment variable has a value that makes no sense.
    #[error("environment variable {name}={value:?} is not valid: {allowed}")]
    Variable {
        /// The variable.
        name: String,
        /// Its value (the first 200 characters).
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// Some, but not all, variables of a set are there.
    #[error("{present} is set but {missing} is not: {hint}")]
    Incomplete {
        /// The variable that is set.
        present: String,
        /// The variable that is missing.
        missing: String,
        /// What to do.
        hint: String,
    },
    /// A command-line option has a value that makes no sense.
    #[error("{option} {value} is not valid: {allowed}")]
    Flag {
        /// The option's full name.
        option: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// A command-line option needs another one.
    #[error("{option} needs {needs}: {reason}")]
    FlagNeeds {
        /// The option that was given.
        option: &'static str,
        /// The option that is missing.
        needs: &'static str,
        /// Why.
        reason: &'static str,
    },
    /// Several nodes, or ranks that another launcher started, have no common token.
    #[error(
        "BRIGADE_TOKEN is not set: {why}, and they authenticate each other with it. Set it to the same secret \
         everywhere, e.g. export BRIGADE_TOKEN=$(od -An -tx1 -N32 /dev/urandom | tr -d ' \\n'), or BRIGADE_TOKEN_FILE \
         to the path of a file with it"
    )]
    NoToken {
        /// Who needs it.
        why: String,
    },
    /// `BRIGADE_TOKEN` cannot be a token. The value is not shown.
    #[error(
        "BRIGADE_TOKEN (or the file of BRIGADE_TOKEN_FILE) is not valid: it has {found}; allowed are 16 to 256 visible ASCII characters"
    )]
    BadToken {
        /// What is wrong with it.
        found: String,
    },
    /// The file with the token cannot be read.
    #[error("BRIGADE_TOKEN_FILE = {path} cannot be read: {reason}")]
    TokenFile {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
    /// The system provided no random numbers for the token.
    #[error("the system provided no random numbers for the token: {0}")]
    Random(brigade_comm::Error),
    /// The configuration of the launch makes no sense.
    #[error("cannot launch: {field} is {value}; {allowed}")]
    LaunchConfig {
        /// The field of [`LaunchConfig`](crate::LaunchConfig).
        field: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// There are several nodes, and the program was built without the feature `clusters`.
    #[error(
        "there are {nnodes} nodes, but this program has only the launcher of a single node: build it with the feature `clusters` of \
         `brigade`, or have each rank started by srun, mpirun or torchrun"
    )]
    SingleNodeOnly {
        /// Nodes of the world.
        nnodes: usize,
    },
    /// The rendezvous address cannot be bound.
    #[error("cannot listen on {address} for the rendezvous: {source}")]
    Bind {
        /// The address.
        address: String,
        /// The reason, e.g. that the port is in use.
        source: io::Error,
    },
    /// The listening socket of the launcher is missing.
    #[error("BRIGADE_RDZV_FD={value:?} is not the launcher's listening socket: {reason}")]
    Listener {
        /// The variable's value.
        value: String,
        /// What was found.
        reason: String,
    },
    /// A log file or its folder cannot be made.
    #[error("cannot create the log {path}: {source}")]
    Log {
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The launchers of several nodes did not find each other.
    #[error(
        "node {node} cannot join the launchers of the other nodes at {endpoint} (each launcher is a rank there): {reason}"
    )]
    NodeRendezvous {
        /// This node.
        node: usize,
        /// Where they meet.
        endpoint: String,
        /// What went wrong.
        reason: String,
    },
    /// Node 0 does not let this node take part.
    #[error("node {node} cannot join the launchers of the other nodes at {endpoint}: {reason}")]
    NodeRefused {
        /// This node.
        node: usize,
        /// Where they meet.
        endpoint: String,
        /// What does not fit, as node 0 says it.
        reason: String,
    },
    /// A launcher of another node is gone before any rank was started.
    #[error("{} was lost before ranks were started: {reason}", node.map_or("another node".into(), |node| format!("node {node}")))]
    NodeLost {
        /// Which one, where it is known.
        node: Option<usize>,
        /// What was noticed.
        reason: String,
    },
    /// A rank's process cannot be started. Ranks that had been started were killed.
    #[error("cannot start rank {rank}: {program}: {source}")]
    Start {
        /// The rank.
        rank: usize,
        /// The program.
        program: String,
        /// The reason.
        source: io::Error,
    },
    /// A worker cannot take part in its run.
    #[error("the coordinator of the workers at {endpoint} (strategy.coordinator, --coordinator): {reason}")]
    Coordinator {
        /// Where it listens.
        endpoint: String,
        /// What went wrong.
        reason: String,
    },
    /// The system refused something else that the launcher needs.
    #[error("cannot {operation}: {source}")]
    System {
        /// What was tried.
        operation: &'static str,
        /// The reason.
        source: io::Error,
    },
}

impl Error {
    /// The exit code that a command gives this error: [`exit::USAGE`] for what the user can correct on the
    /// command line or in the environment, else [`exit::FAILED`].
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Variable { .. }
            | Self::Incomplete { .. }
            | Self::Flag { .. }
            | Self::FlagNeeds { .. }
            | Self::NoToken { .. }
            | Self::BadToken { .. }
            | Self::TokenFile { .. }
            | Self::LaunchConfig { .. }
            | Self::SingleNodeOnly { .. }
            | Self::NodeRefused { .. }
            | Self::Bind { .. } => exit::USAGE,
            _ => exit::FAILED,
        }
    }

    /// A malformed variable; long values are cut.
    pub(crate) fn variable(name: &str, value: &str, allowed: impl Into<String>) -> Self {
        Self::Variable {
            name: name.into(),
            value: value.chars().take(200).collect(),
            allowed: allowed.into(),
        }
    }
}
