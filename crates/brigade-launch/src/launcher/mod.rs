//! Starts the ranks of a node, watches over them, and starts them again when that may help.

mod alone;
mod description;
mod event;
mod failure;
mod lines;
mod outcome;
mod output;
mod process;
mod pulse;
mod report;
mod round;
mod signals;
mod terminal;
mod together;

use std::{
    sync::mpsc::{self, Receiver, Sender},
    time::{Duration, Instant},
};

use brigade_comm::{RAISE_OPEN_FILES, raise_open_files};
use signal_hook::consts::{SIGTSTP, SIGWINCH};

pub use self::{
    description::LaunchConfig,
    event::Event,
    failure::{NodeFailure, OtherRank, RankFailure, StoppedRank},
    outcome::{ExitReason, Outcome, RankExit},
};
pub(crate) use self::{event::Message, report::NodeReport};
use self::{
    process::{KILL_WAIT, Process, RankZero, Start},
    signals::SignalForwarder,
    terminal::Terminal,
};
use crate::{Error, Result, interrupt::InterruptKind};

/// Default of [`LaunchConfig::grace`]. An interrupted run is over within 2 s, a failed one within 5 s.
pub const DEFAULT_GRACE_PERIOD: Duration = Duration::from_millis(1500);

/// How long after the first failure others are let go on, so that the cause can show itself: a peer's death
/// is noticed by the other ranks about as fast as by the launcher.
pub const ROOT_CAUSE_WINDOW: Duration = Duration::from_millis(300);

/// Default of [`LaunchConfig::heartbeat_timeout`].
pub const DEFAULT_HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(600);

/// Default of [`LaunchConfig::stopped_timeout`]: that of an operation between ranks, so that a rank which is alone and stopped is
/// noticed as soon as one for which others wait.
pub const DEFAULT_STOPPED_TIMEOUT: Duration = Duration::from_secs(100);

/// Default of [`LaunchConfig::host_timeout`].
pub const DEFAULT_HOST_TIMEOUT: Duration = Duration::from_secs(30);

/// Default of [`LaunchConfig::init_timeout`].
pub const DEFAULT_INIT_TIMEOUT: Duration = Duration::from_secs(300);

/// Default of [`LaunchConfig::restart_delay`].
pub const DEFAULT_RESTART_DELAY: Duration = Duration::from_secs(1);

/// How much sooner a preempted rank ends itself than the launcher kills it.
const PREEMPTION_MARGIN: Duration = Duration::from_secs(1);

/// How long the output of ranks that have ended may still arrive.
const OUTPUT_DRAIN: Duration = Duration::from_millis(400);

const _: () = assert!(DEFAULT_GRACE_PERIOD.as_millis() + OUTPUT_DRAIN.as_millis() < 2000);
/// Another node learns of a failure by the next tick.
const _: () = assert!(
    (crate::nodes::TICK.as_millis()
        + ROOT_CAUSE_WINDOW.as_millis()
        + DEFAULT_GRACE_PERIOD.as_millis()
        + KILL_WAIT.as_millis()
        + OUTPUT_DRAIN.as_millis())
        < 5000
);

/// Starts the ranks of this node and returns when the run is over: all of them have ended, here and on the
/// other nodes, and are not to be started again.
///
/// - **Output.** Both streams of rank `r` go to `<log_dir>/rank-<r>.log`, in whole lines and without the
///   redrawn states of progress bars. Rank 0's bytes also go, unchanged, to the launcher's own standard
///   output and error; where these are a terminal, rank 0 has a (pseudo-)terminal too, so that its progress
///   bar works.
/// - **Failure.** [`ROOT_CAUSE_WINDOW`] after the first rank that exits with another code than 0 and
///   [`PREEMPTED`](crate::exit::PREEMPTED), or is killed, or falls silent ([`LaunchConfig::heartbeat_timeout`]) or
///   stays stopped ([`LaunchConfig::stopped_timeout`]), the others get SIGINT, and SIGKILL once [`LaunchConfig::grace`] is over.
/// - **Restarts.** [`LaunchConfig::restart_delay`] after that all ranks are started again, [`LaunchConfig::max_restarts`] times at
///   most, with their number in `BRIGADE_RESTART_COUNT`. Never after exit codes 2 (usage), 75 (preempted) and
///   130 (interrupted), nor while a killed rank still hangs in the kernel.
/// - **Several nodes.** Their launchers meet at [`LaunchConfig::endpoint`] and come to the same decisions. What ends
///   the ranks of one node ends those of all. Where a launcher dies, or is cut off or stopped
///   (Ctrl-Z) for [`LaunchConfig::host_timeout`], the others end their ranks, name its node and, if a restart is left, wait up to [`LaunchConfig::init_timeout`] for a new one with the same
///   `node_rank`.
/// - **Signals.** Ctrl-C and SIGHUP end all ranks as a failure does. SIGTERM and SIGUSR1 mean preemption: the
///   ranks get SIGTERM and have [`LaunchConfig::preemption_grace`] to save and to exit with 75. A second signal
///   kills them at once. (A signal that was ignored from the start stays so.) Ranks are in process groups of
///   their own, so that Ctrl-C in a terminal reaches the launcher alone and nobody twice; Ctrl-Z stops and `fg`
///   continues the ranks with the launcher. After the return they have their default effect again,
///   or none in a process that called [`exit_on_signal`](crate::interrupt::exit_on_signal).
/// - **A killed launcher.** On Linux the kernel kills the ranks with it (not what a rank itself has started).
pub fn launch(launch: &LaunchConfig, on_event: &mut dyn FnMut(Event)) -> Result<Outcome> {
    launch.check()?;
    enough_files(launch.nproc, raise_open_files())?;
    let (sender, messages) = mpsc::channel();
    let _forwarding = SignalForwarder::start(sender.clone())
        .map_err(|source| Error::System { operation: "install signal handlers", source })?;
    match launch.nnodes {
        1 => alone::run(launch, &sender, &messages, on_event),
        _ => together::run(launch, sender, messages, on_event),
    }
}

/// Descriptors of the launcher for each rank: its log, its heart, both streams of its output, and a spare one.
const FILES_OF_A_RANK: u64 = 5;

/// Descriptors of the launcher besides, with those of the program that it is in.
const FILES_BESIDES: u64 = 64;

/// Refuses more ranks than the launcher may have files open for.
fn enough_files(nproc: usize, limit: Option<u64>) -> Result<()> {
    let need = FILES_BESIDES + FILES_OF_A_RANK * nproc as u64;
    match limit {
        Some(limit) if limit < need => Err(Error::LaunchConfig {
            field: "nproc",
            value: nproc.to_string(),
            allowed: format!(
                "{limit} files may be open in this process (ulimit -Hn), to start so many ranks needs {need}: \
                 {RAISE_OPEN_FILES}"
            ),
        }),
        _ => Ok(()),
    }
}

/// The outcome when a signal comes while no rank runs.
fn ended_by(signal: String, kind: InterruptKind) -> Outcome {
    match kind {
        InterruptKind::Stop => Outcome::Interrupted { signal, ends: vec![] },
        InterruptKind::Preempt => Outcome::Preempted { signal, ends: vec![] },
    }
}

/// Waits for a message while no rank runs: those that concern ranks are of the past. `None` at the deadline.
fn next_between_rounds(messages: &Receiver<Message>, until: Instant) -> Option<Message> {
    loop {
        match messages.recv_timeout(until.saturating_duration_since(Instant::now())).ok()? {
            Message::Rank { .. } | Message::Signal(SIGWINCH) => {}
            Message::Signal(SIGTSTP) => drop(signal_hook::low_level::emulate_default_handler(SIGTSTP)),
            message => return Some(message),
        }
    }
}

/// The name of this host.
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Starts the processes of this node. The terminal that is given back is the launcher's side of rank 0's; what
/// rank 0 inherits is closed here, so that its end can be seen.
fn start_ranks(
    launch: &LaunchConfig,
    start: &Start,
    zero: Option<RankZero>,
    sender: &Sender<Message>,
    on_event: &mut dyn FnMut(Event),
) -> Result<(Vec<Process>, Option<Terminal>)> {
    let mut ranks = Vec::with_capacity(launch.nproc);
    for local_rank in 0..launch.nproc {
        let zero = zero.as_ref().filter(|_| local_rank == 0);
        let process = Process::start(launch, local_rank, start, zero, sender)?;
        on_event(Event::Started { rank: process.rank, pid: process.pid });
        ranks.push(process);
    }
    Ok((ranks, zero.and_then(|zero| zero.terminal).map(|(terminal, _)| terminal)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_open_files_that_is_too_low_for_the_ranks_is_named() {
        assert!(enough_files(1024, None).is_ok() && enough_files(100, Some(1024)).is_ok());
        let message = enough_files(256, Some(1024)).unwrap_err().to_string();
        assert!(message.contains("nproc is 256; 1024 files") && message.contains("1344"), "{message}");
    }
}
