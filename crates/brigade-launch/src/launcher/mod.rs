//! Starts the ranks of a node, monitors them, and restarts them when that may help.
//!
//! - `config`: what to launch; `deadlines`: how long each part of ending a run may take.
//! - `process`: one rank as a process, with its output, terminal and heartbeats.
//! - `local_ranks`: the ranks of this node, from one start until all have exited.
//! - `single_node`, `multi_node`: the restarts, on one node alone or agreed with the `node_group`, the launchers of all nodes.
//! - `rendezvous`: which nodes an elastic world has.
//! - `outcome`: how it ended, and why.

pub mod config;
pub mod deadlines;
mod listener;
mod local_ranks;
mod message;
#[cfg(feature = "clusters")]
mod multi_node;
pub mod node_group;
pub mod outcome;
pub mod process;
#[cfg(feature = "clusters")]
mod rendezvous;
pub mod signals;
mod single_node;

use std::sync::mpsc;

use brigade_comm::{RAISE_OPEN_FILES, raise_open_files};

use self::{
    config::LaunchConfig,
    outcome::{Outcome, event::Event},
    signals::SignalForwarder,
};
use crate::{
    Error, Result,
    endpoint::{Endpoint, host_name},
    interrupt::learn_of_ends,
};

/// Starts the ranks of this node and returns when the run is over: all of them have exited, here and on the
/// other nodes, and are not to be restarted.
///
/// - **Output.** Both streams of rank `r` go to `<log_dir>/rank-<r>.log`, in whole lines and without the
///   redrawn states of progress bars. Rank 0's bytes also go, unchanged, to the launcher's own standard
///   output and error; where these are a terminal, rank 0 has a (pseudo-)terminal too, so that its progress
///   bar works.
/// - **Failure.** A rank fails when it exits with a code other than 0 and [`PREEMPTED`](crate::exit::PREEMPTED), is killed,
///   sends no heartbeat for [`LaunchConfig::heartbeat_timeout`], or stays stopped for [`LaunchConfig::stopped_timeout`].
///   [`ROOT_CAUSE_WINDOW`](crate::ROOT_CAUSE_WINDOW) after the first failure the other ranks get SIGINT, and SIGKILL at the end of
///   [`LaunchConfig::grace_period`].
/// - **Restarts.** [`LaunchConfig::restart_delay`] after that all ranks are started again, up to [`LaunchConfig::max_restarts`]
///   times, with the number of the restart in `BRIGADE_RESTART_COUNT`. Never after exit codes 2 (usage), 75 (preempted) and
///   130 (interrupted), nor while a killed rank still hangs in the kernel.
/// - **Several nodes.** Their launchers meet at [`LaunchConfig::endpoint`] and come to the same decisions. What ends
///   the ranks of one node ends those of all. If a launcher dies, or is cut off or stopped (Ctrl-Z) for
///   [`LaunchConfig::host_timeout`], the others end their ranks, name its node and, if a restart is left, wait up to
///   [`LaunchConfig::init_timeout`] for a new launcher with the same `node_rank`.
/// - **Elastic worlds.** With [`Elastic::min_nodes`](config::Elastic) below [`LaunchConfig::nnodes`], the launchers that are left after a loss wait
///   [`Elastic::last_call`](config::Elastic) and continue without the node, and one that comes later is taken in: the ranks get SIGTERM, as at a
///   preemption, and are started again with the larger world. Neither counts as a restart after a failure. A signal to the launcher of
///   any node but 0 then takes only that node away. Without node 0's launcher the others end with
///   [`PREEMPTED`](crate::exit::PREEMPTED), unless it is started again within [`LaunchConfig::init_timeout`].
/// - **Signals.** Ctrl-C and SIGHUP end all ranks as a failure does. SIGTERM and SIGUSR1 mean preemption: the
///   ranks get SIGTERM and have [`LaunchConfig::preemption_grace`] to save and to exit with 75. A second signal
///   kills them at once. (A signal that was ignored from the start stays ignored.) Ranks are in process groups of
///   their own, so that Ctrl-C in a terminal reaches only the launcher and no process twice; Ctrl-Z stops and `fg`
///   continues the ranks with the launcher. After it returns, signals have their default effect again,
///   or none in a process that called [`exit_on_signal`](crate::interrupt::exit_on_signal).
/// - **A killed launcher.** On Linux the kernel kills the ranks with it (not what a rank itself has started).
///
/// # Errors
/// If the configuration makes no sense, there are several nodes and the program was built without the feature `clusters`, a rank's process cannot be started, or the launchers of several nodes do not find each other.
pub fn launch(config: &LaunchConfig, on_event: &mut dyn FnMut(Event)) -> Result<Outcome> {
    config.check()?;
    learn_of_ends();
    check_open_files(config.nproc, raise_open_files())?;
    let (sender, messages) = mpsc::channel();
    let _forwarder = SignalForwarder::start(sender.clone())
        .map_err(|source| Error::System { operation: "install signal handlers", source })?;
    let host = host_name();
    match config.nnodes {
        1 => single_node::run(config, &host, &sender, &messages, on_event),
        #[cfg(feature = "clusters")]
        _ => multi_node::run(config, host, sender, messages, on_event),
        #[cfg(not(feature = "clusters"))]
        nnodes => Err(Error::SingleNodeOnly { nnodes }),
    }
}

/// Refuses several nodes in a program that has only the launcher of a single one.
///
/// # Errors
/// If the program was built without the feature `clusters`, and there is more than one node.
pub fn check_nnodes(nnodes: usize) -> Result<()> {
    match nnodes {
        2.. if cfg!(not(feature = "clusters")) => Err(Error::SingleNodeOnly { nnodes }),
        _ => Ok(()),
    }
}

/// Refuses an endpoint at which the launcher of node 0 could not listen now; [`launch`] finds out again.
///
/// # Errors
/// If the address cannot be bound.
pub fn check_endpoint(endpoint: &Endpoint, nnodes: usize) -> Result<()> {
    listener::bind(Some(endpoint), nnodes).map(drop)
}

/// Descriptors of the launcher for each rank: its log, its heartbeats, both streams of its output, and a spare one.
const FILES_PER_RANK: u64 = 5;

/// Other descriptors of the launcher and of the program that it is part of.
const OTHER_FILES: u64 = 64;

/// Refuses more ranks than the launcher may have files open for.
fn check_open_files(nproc: usize, limit: Option<u64>) -> Result<()> {
    let need = OTHER_FILES + FILES_PER_RANK * nproc as u64;
    match limit {
        Some(limit) if limit < need => Err(Error::LaunchConfig {
            field: "nproc",
            value: nproc.to_string(),
            allowed: format!(
                "this process may have {limit} files open (ulimit -Hn), but starting this many ranks needs \
                {need}: {RAISE_OPEN_FILES}"
            ),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_open_files_that_is_too_low_for_the_ranks_is_named() {
        assert!(check_open_files(1024, None).is_ok() && check_open_files(100, Some(1024)).is_ok());
        let message = check_open_files(256, Some(1024)).unwrap_err().to_string();
        assert!(message.contains("nproc is 256; this process may have 1024 files"), "{message}");
        assert!(message.contains("needs 1344"), "{message}");
    }
}
