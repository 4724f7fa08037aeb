//! Finds the world that a process belongs to, or launches one and monitors its ranks.
//!
//! - [`detect`] reads the flags ([`LaunchArgs`]) and the environment and returns a [`Detected`]: this process
//!   *is* a rank ([`RankInfo`]), or it should start the ranks of a node ([`NodeInfo`]).
//! - [`launch`] corresponds to TorchElastic's agent: it starts the ranks of a node as processes, writes their logs, restarts
//!   all of them after a failure, and returns when they have finally exited. On several nodes the launchers do this together.
//! - In a rank: [`interrupt::install`] returns a flag that signals set (stop, or save and exit), and limits how long the rank
//!   may run after that; [`HeartbeatSender`] tells the launcher how far the rank is; [`restart_count`] says how often the
//!   ranks were restarted; [`inherited_listener`] takes over, in rank 0, the rendezvous socket that the launcher has bound.
//!
//! A program that starts itself once for each rank:
//! ```no_run
//! use brigade_launch::{Detected, LaunchArgs, LaunchConfig, detect, launch};
//!
//! let env = |name: &str| std::env::var(name).ok();
//! let found = detect(&LaunchArgs::default(), &env)?;
//! println!("{found}");
//! let token = found.token(&env)?;
//! match found {
//!     Detected::Rank(rank) => println!("train as rank {} at {}", rank.rank, rank.endpoint),
//!     Detected::Node(node) => {
//!         let program = std::env::current_exe().unwrap_or_default();
//!         let ranks = node.nproc_per_node.unwrap_or(2);
//!         let mut world = LaunchConfig::local(program, ranks, token, "runs/a/logs").on_node(&node);
//!         world.args = std::env::args_os().skip(1).collect();
//!         let outcome = launch(&world, &mut |event| eprintln!("{event:?}"))?;
//!         eprintln!("{outcome}");
//!         std::process::exit(outcome.exit_code().into());
//!     }
//! }
//! # Ok::<(), brigade_launch::Error>(())
//! ```
//!
//! # Invariants
//! - A variable or option that is set but invalid is an error that names it; it is never skipped in favour of
//!   the next source.
//! - The precedence of sources is fixed (see [`detect`]) and the result says which one was used.
//! - All nodes come to the same decisions: their launchers exchange what they know in lockstep and apply
//!   the same rules to the same statuses. No decision depends on what only one of them has seen.
//! - No process outlives [`launch`]: each rank leads its own process group, which is killed before the rank's
//!   process id is returned to the system. On Linux the ranks also die with a launcher that is killed.
//! - If several ranks fail, the report names the first one in time as the root cause, on any node, except that a rank that was
//!   killed, panicked or sent no heartbeat comes before one that only exited with an error within [`ROOT_CAUSE_WINDOW`] of the
//!   first failure (most likely because its peer was gone).
//! - Every wait has a deadline except the one for the ranks themselves to finish; a rank with a [`HeartbeatSender`] must send a
//!   heartbeat within [`LaunchConfig::heartbeat_timeout`].
//! - SIGTERM to a rank means one thing only: save and exit. To stop a rank the launcher uses SIGINT and SIGKILL.
//! - [`workers`] says which workers of an elastic run meet when; it supervises no process.
//! - This crate knows no tensors, and no communicator but the one between the launchers.
//!
//! Without the feature `clusters`, [`launch`] starts the ranks of a single node. Ranks that another launcher has started on several nodes
//! need nothing of it.
//!
//! Unix only; behaviour that only Linux has is documented as such.

// What only several nodes need.
#![cfg_attr(not(feature = "clusters"), allow(dead_code, unused_imports))]

mod args;
mod auth_token;
mod endpoint;
mod environment;
mod error;
pub mod exit;
#[doc(hidden)]
pub mod fuzzing;
pub mod interrupt;
mod launcher;
mod node_count;
mod parse;
mod rank;
mod secrets;
mod text_difference;
pub mod workers;

pub use args::{LaunchArgs, NprocPerNode};
pub use auth_token::{TOKEN_VARIABLE, parse_token};
pub use brigade_comm::{AuthToken, MAX_WORLD_SIZE};
pub use endpoint::{DEFAULT_MASTER_PORT, DEFAULT_RDZV_PORT, Endpoint};
pub use environment::{Detected, LAUNCHED_VARIABLE, NodeInfo, RankInfo, Source, detect, server_nodes};
pub use error::{Error, Result};
pub use launcher::{
    check_endpoint, check_nnodes,
    config::{
        DEFAULT_GRACE_PERIOD, DEFAULT_HEARTBEAT_TIMEOUT, DEFAULT_HOST_TIMEOUT, DEFAULT_INIT_TIMEOUT,
        DEFAULT_LAST_CALL, DEFAULT_RESIZE_INTERVAL, DEFAULT_RESTART_DELAY, DEFAULT_STOPPED_TIMEOUT, Elastic,
        LaunchConfig, LineFormat, StandardStreams,
    },
    deadlines::ROOT_CAUSE_WINDOW,
    launch,
    node_group::LauncherGroup,
    outcome::{
        Outcome,
        event::Event,
        failure::{NodeFailure, OtherRank, RankFailure, StoppedRank},
        rank_exit::{ExitReason, RankExit},
    },
    process::TERMINAL_INPUT_VARIABLE,
    signals::stop_launches,
};
pub use node_count::NodeCount;
pub use rank::{
    heartbeat::{self, HeartbeatSender},
    listener::{LISTENER_VARIABLE, inherited_listener},
    restart::{MAX_RESTARTS, RESTART_VARIABLE, restart_count},
};
pub use secrets::{is_secret_name, looks_like_secret, secret_in_command};
pub use text_difference::first_difference;
