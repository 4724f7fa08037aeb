//! Starts the ranks of a node and watches over them.

mod lines;
mod outcome;
mod output;
mod process;
mod signals;
mod terminal;

use std::{
    ffi::OsString,
    io,
    path::PathBuf,
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

use rustix::process::Signal;
use signal_hook::consts::{SIGTSTP, SIGWINCH};

pub use self::outcome::{Ending, Failure, Outcome, RankEnd};
use self::{
    outcome::{root_cause, signal_name},
    process::{KILL_WAIT, Process, RankZero},
    signals::Forwarding,
    terminal::Terminal,
};
use crate::{Endpoint, Error, MAX_LOCAL_RANKS, MAX_NODES, MAX_RANKS, NodeInfo, Result, Token, handover};

/// Default of [`Launch::grace`]. An interrupted run is over within 2 s, a failed one within 5 s.
pub const GRACE: Duration = Duration::from_millis(1500);

/// How long after the first failure others are let go on, so that the cause can show itself: a peer's death
/// is noticed by the other ranks about as fast as by the launcher.
pub const SETTLE: Duration = Duration::from_millis(300);

/// How long the output of ranks that have ended may still arrive.
const DRAIN: Duration = Duration::from_millis(400);

const _: () = assert!(GRACE.as_millis() + DRAIN.as_millis() < 2000);
const _: () =
    assert!((SETTLE.as_millis() + GRACE.as_millis() + KILL_WAIT.as_millis() + DRAIN.as_millis()) < 5000);

/// The ranks of one node to start.
///
/// Each rank runs `program args…` with the launcher's environment, `env`, and `RANK LOCAL_RANK WORLD_SIZE
/// LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT BRIGADE_TOKEN BRIGADE_LAUNCHED=1`; standard input is
/// empty. The rank `r` of the node is rank `node_rank * nproc + r` of the world, so all nodes need the same
/// `nproc`.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The program: a path, or a name that is looked for in `PATH`.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Variables to set besides.
    pub env: Vec<(OsString, OsString)>,
    /// Ranks on this node, 1 to [`MAX_LOCAL_RANKS`].
    pub nproc: usize,
    /// Nodes, 1 to [`MAX_NODES`].
    pub nnodes: usize,
    /// This node's number, below `nnodes`.
    pub node_rank: usize,
    /// Where rank 0 waits; may be `None` on a single node, which takes a free port of 127.0.0.1.
    pub endpoint: Option<Endpoint>,
    /// The world's secret.
    pub token: Token,
    /// Where the logs go, one file `rank-<r>.log` each; made if missing, files in it are overwritten.
    pub log_dir: PathBuf,
    /// Also print the output of ranks other than 0, each line with `[rank r]` before it.
    pub tee: bool,
    /// How long after SIGTERM a rank may go on before it is killed.
    pub grace: Duration,
}

impl Launch {
    /// A world of `nproc` ranks on this machine alone.
    pub fn local(
        program: impl Into<OsString>,
        nproc: usize,
        token: Token,
        log_dir: impl Into<PathBuf>,
    ) -> Self {
        Self {
            program: program.into(),
            args: vec![],
            env: vec![],
            nproc,
            nnodes: 1,
            node_rank: 0,
            endpoint: None,
            token,
            log_dir: log_dir.into(),
            tee: false,
            grace: GRACE,
        }
    }

    /// The same as a node of the world that was [detected](crate::detect).
    pub fn on_node(self, node: &NodeInfo) -> Self {
        Self { nnodes: node.nnodes, node_rank: node.node_rank, endpoint: node.endpoint.clone(), ..self }
    }

    fn first_rank(&self) -> usize {
        self.node_rank * self.nproc
    }

    fn check(&self) -> Result<()> {
        let within = |field, value: usize, least: usize, most: usize| match (least..=most).contains(&value) {
            true => Ok(()),
            false => {
                let allowed = format!("it must be from {least} to {most}");
                Err(Error::Launch { field, value: value.to_string(), allowed })
            }
        };
        within("nproc", self.nproc, 1, MAX_LOCAL_RANKS)?;
        within("nnodes", self.nnodes, 1, MAX_NODES)?;
        within("node_rank", self.node_rank, 0, self.nnodes - 1)?;
        within("nproc × nnodes", self.nproc * self.nnodes, 1, MAX_RANKS)?;
        if self.nnodes > 1 && self.endpoint.is_none() {
            let allowed = "several nodes need the address of rank 0".into();
            return Err(Error::Launch { field: "endpoint", value: "not set".into(), allowed });
        }
        Ok(())
    }
}

/// What happens during [`launch`], for whoever wants to print it.
#[derive(Debug)]
pub enum Event {
    /// A rank's process was started.
    Started {
        /// The rank.
        rank: usize,
        /// Its process id, which is also its process group.
        pid: u32,
    },
    /// A rank ended.
    Ended(RankEnd),
    /// The launcher got a signal that ends the run. The second one kills the ranks at once.
    Interrupted {
        /// The signal's name.
        signal: String,
    },
    /// These ranks still ran when their grace was over, and were killed.
    Killed {
        /// The ranks.
        ranks: Vec<usize>,
    },
    /// A rank's log cannot be written any more; the run goes on.
    LogLost {
        /// The rank.
        rank: usize,
        /// Its log.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
}

/// What the threads of the supervisor tell it. The numbers are local ranks.
enum Message {
    Ended(usize, Instant),
    StreamEnded(usize),
    LogLost(usize, io::Error),
    Signal(i32),
}

/// Starts the ranks of this node and returns when all of them have ended.
///
/// - **Output.** Both streams of rank `r` go to `<log_dir>/rank-<r>.log`, in whole lines and without the
///   redrawn states of progress bars. Rank 0's bytes also go, unchanged, to the launcher's own standard
///   output and error; where these are a terminal, rank 0 has a (pseudo-)terminal too, so that its progress
///   bar works.
/// - **Failure.** [`SETTLE`] after the first rank that exits with another code than 0 or is killed, the
///   others get SIGTERM, and SIGKILL once [`Launch::grace`] is over.
/// - **Signals.** Ctrl-C, SIGTERM and SIGHUP (unless ignored from the start) end all ranks in the same way; a
///   second one kills them at once. Ranks are in process groups of their own, so that Ctrl-C in a terminal
///   reaches the launcher alone and nobody twice; Ctrl-Z stops and `fg` continues the ranks with the
///   launcher. After the return they have their default effect again.
/// - **A killed launcher.** On Linux the kernel kills the ranks with it (not what a rank itself has started).
pub fn launch(launch: &Launch, on_event: &mut dyn FnMut(Event)) -> Result<Outcome> {
    launch.check()?;
    let (sender, messages) = mpsc::channel();
    let (zero, endpoint) = match &launch.endpoint {
        Some(endpoint) if launch.node_rank > 0 => (None, endpoint.clone()),
        endpoint => {
            let (listener, endpoint) = handover::bind(endpoint.as_ref(), launch.nnodes)?;
            (Some(RankZero { listener, terminal: Terminal::open() }), endpoint)
        }
    };
    let _forwarding = Forwarding::start(sender.clone())
        .map_err(|source| Error::System { operation: "install signal handlers", source })?;
    let mut ranks = Vec::with_capacity(launch.nproc);
    for local_rank in 0..launch.nproc {
        let zero = zero.as_ref().filter(|_| local_rank == 0);
        let process = Process::start(launch, local_rank, &endpoint, zero, &sender)?;
        on_event(Event::Started { rank: process.rank, pid: process.pid });
        ranks.push(process);
    }
    // Only rank 0 holds the listener and its side of the terminal from here on, so that their end can be
    // seen.
    let terminal = zero.and_then(|zero| zero.terminal).map(|(terminal, _)| terminal);
    let supervisor = Supervisor {
        ranks,
        terminal,
        messages,
        grace: launch.grace,
        started: Instant::now(),
        phase: Phase::Running,
        interrupted: None,
        ends: vec![],
        on_event,
    };
    Ok(supervisor.run())
}

/// How far the end of the run has come, with the time of the next step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    Settling { until: Instant },
    Stopping { until: Instant },
    Killed { until: Instant },
}

struct Supervisor<'a> {
    ranks: Vec<Process>,
    terminal: Option<Terminal>,
    messages: Receiver<Message>,
    grace: Duration,
    started: Instant,
    phase: Phase,
    /// The signal that ended the run, if no failure came before it.
    interrupted: Option<String>,
    ends: Vec<RankEnd>,
    on_event: &'a mut dyn FnMut(Event),
}

impl Supervisor<'_> {
    fn run(mut self) -> Outcome {
        while self.ranks.iter().any(|rank| rank.end.is_none()) {
            match self.next_message() {
                Some(message) => self.take(message),
                None => self.next_phase(),
            }
        }
        self.drain();
        self.outcome()
    }

    /// The next message, or `None` when the phase is over.
    fn next_message(&self) -> Option<Message> {
        let until = match self.phase {
            // The supervisor's own ends of the channel are gone only with the threads, which end after the
            // ranks.
            Phase::Running => return self.messages.recv().ok(),
            Phase::Settling { until } | Phase::Stopping { until } | Phase::Killed { until } => until,
        };
        self.messages.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Ended(i, at) => self.ended(i, at),
            Message::StreamEnded(i) => self.ranks[i].open_streams -= 1,
            Message::LogLost(i, error) => {
                let Process { rank, log, .. } = &self.ranks[i];
                (self.on_event)(Event::LogLost { rank: *rank, path: log.path().to_owned(), error });
            }
            Message::Signal(SIGWINCH) => self.terminal.iter().for_each(Terminal::copy_size),
            Message::Signal(SIGTSTP) => self.suspend(),
            Message::Signal(signal) => self.interrupt(signal),
        }
    }

    fn ended(&mut self, i: usize, at: Instant) {
        if self.ranks[i].end.is_some() {
            return;
        }
        let stopped = matches!(self.phase, Phase::Stopping { .. } | Phase::Killed { .. });
        let end = self.ranks[i].reap(at.saturating_duration_since(self.started), stopped);
        self.ends.push(end);
        (self.on_event)(Event::Ended(end));
        if self.phase == Phase::Running && !end.ending.is_success() {
            self.phase = Phase::Settling { until: Instant::now() + SETTLE };
        }
    }

    fn interrupt(&mut self, signal: i32) {
        let signal = signal_name(signal);
        match self.phase {
            Phase::Running => self.interrupted = Some(signal.clone()),
            Phase::Settling { .. } => {}
            Phase::Stopping { .. } => return self.kill(),
            Phase::Killed { .. } => return,
        }
        (self.on_event)(Event::Interrupted { signal });
        self.stop();
    }

    fn next_phase(&mut self) {
        match self.phase {
            Phase::Running => self.abandon(),
            Phase::Settling { .. } => self.stop(),
            Phase::Stopping { .. } => self.kill(),
            Phase::Killed { .. } => self.abandon(),
        }
    }

    fn stop(&mut self) {
        self.phase = Phase::Stopping { until: Instant::now() + self.grace };
        self.signal(Signal::TERM);
        // A rank that somebody has stopped could not end.
        self.signal(Signal::CONT);
    }

    fn kill(&mut self) {
        self.phase = Phase::Killed { until: Instant::now() + KILL_WAIT };
        self.signal(Signal::KILL);
        let ranks = self.ranks.iter().filter(|rank| rank.end.is_none()).map(|rank| rank.rank).collect();
        (self.on_event)(Event::Killed { ranks });
    }

    fn abandon(&mut self) {
        let after = self.started.elapsed();
        for rank in self.ranks.iter_mut().filter(|rank| rank.end.is_none()) {
            let end = rank.abandon(after);
            self.ends.push(end);
            (self.on_event)(Event::Ended(end));
        }
    }

    /// Stops the ranks and then the launcher; goes on when the launcher is continued.
    fn suspend(&self) {
        self.signal(Signal::STOP);
        // It only fails for signals without a default action.
        drop(signal_hook::low_level::emulate_default_handler(SIGTSTP));
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        self.ranks.iter().for_each(|rank| rank.signal(signal));
    }

    /// Waits for the rest of the output, up to [`DRAIN`]: something that left a rank's process group may hold
    /// it open.
    fn drain(&mut self) {
        let deadline = Instant::now() + DRAIN;
        while self.ranks.iter().any(|rank| rank.open_streams > 0) {
            match self.messages.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Message::Signal(_)) => {}
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
    }

    fn outcome(self) -> Outcome {
        let excerpt = |rank: usize| {
            let found = self.ranks.iter().find(|process| process.rank == rank);
            found.map(|process| (process.log.excerpt(), process.log.path().to_owned()))
        };
        let panicked = |rank| excerpt(rank).is_some_and(|((panic, _), _)| !panic.is_empty());
        if let Some(signal) = self.interrupted {
            return Outcome::Interrupted { signal, ends: self.ends };
        }
        let Some(index) = root_cause(&self.ends, panicked) else { return Outcome::Done };
        let root = self.ends[index];
        let ((panic, last_lines), log) = excerpt(root.rank).unwrap_or_default();
        let others = self.ends.iter().filter(|end| end.rank != root.rank).copied().collect();
        Outcome::Failed(Failure { root, panic, last_lines, log, others })
    }
}
