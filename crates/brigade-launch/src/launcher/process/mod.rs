//! One rank as a process.

mod command;
mod heartbeat;
mod lines;
mod output;
mod terminal;

use std::{
    io::{self, Read},
    net::TcpListener,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Child, ChildStdin},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process_group, waitid},
};

pub use self::{
    command::{StartInfo, TERMINAL_INPUT_VARIABLE},
    heartbeat::{HeartbeatMonitor, TICK},
    terminal::Terminal,
};
use self::{
    command::{keep_open, rank_command, redirect, reset_signals, set_parent_death_signal},
    output::{Echo, Log, Stream, copy_output},
};
use super::{
    config::{LaunchConfig, StandardStreams},
    deadlines::KILL_WAIT,
    outcome::rank_exit::{ExitReason, RankExit},
};
use crate::{
    error::{Error, Result},
    interrupt,
    rank::{heartbeat::HEARTBEAT_VARIABLE, listener::LISTENER_VARIABLE},
};

/// What the threads that watch a process report.
pub enum RankEvent {
    Exited(Instant),
    StreamEnded,
    LogLost(io::Error),
}

/// A rank that was started. Dropping it kills its whole process group.
pub struct RankProcess {
    pub rank: usize,
    pub pid: u32,
    pub log: Arc<Log>,
    pub heartbeat: HeartbeatMonitor,
    /// How it exited, once it has.
    pub exit: Option<RankExit>,
    /// Streams of output that have not ended.
    pub open_streams: usize,
    child: Child,
    group: Option<Pid>,
    /// When it was killed for a missing heartbeat, and how long it had sent none.
    timed_out: Option<(Duration, Duration)>,
}

/// What only rank 0 of the world gets.
pub struct RankZero {
    pub listener: TcpListener,
    pub terminal: Option<(Terminal, OwnedFd)>,
}

impl RankProcess {
    /// Starts the rank `local_rank` of this node; `send` reports how it fares and ends. Must be called on a thread that lives until
    /// the ranks have exited: Linux sends the death signal when the *thread* that started the process is gone.
    pub fn start(
        launch: &LaunchConfig,
        local_rank: usize,
        start: &StartInfo,
        zero: Option<&RankZero>,
        send: impl Fn(RankEvent) + Clone + Send + 'static,
    ) -> Result<Self> {
        let rank = launch.first_rank() + local_rank;
        let separator = match start.restart_count {
            0 if launch.keeps_logs && Log::has_lines(&launch.log_dir, rank) => {
                Some("--- started again ---".to_owned())
            }
            0 => None,
            restart => Some(format!("--- restart {restart} of {} ---", start.max_restarts)),
        };
        let log = Log::create(&launch.log_dir, rank, separator.as_deref())?.with_format(launch.format);
        let log = Arc::new(log);
        let failed = |source| Error::System { operation: "make a pipe for heartbeats", source };
        let (heartbeat, pipe) = HeartbeatMonitor::new().map_err(failed)?;
        let mut command = rank_command(launch, local_rank, start);
        command.env(HEARTBEAT_VARIABLE, pipe.variable().map_err(failed)?);
        let mut inherited = vec![pipe.descriptor().as_raw_fd()];
        if let Some(zero) = zero {
            let listener = zero.listener.as_raw_fd();
            command.env(LISTENER_VARIABLE, listener.to_string());
            inherited.push(listener);
        }
        let launcher = getpid();
        // SAFETY: between fork and exec the closure makes system calls only, and what is inherited is open: `zero` and `pipe`
        // hold it until the process has been started.
        unsafe {
            command.pre_exec(move || {
                set_parent_death_signal(launcher)?;
                reset_signals();
                inherited.iter().try_for_each(|fd| keep_open(*fd))
            });
        }
        let program = launch.program.to_string_lossy().into_owned();
        let failed = |source| Error::Start { rank, program, source };
        let terminal = zero.and_then(|zero| zero.terminal.as_ref());
        // Blocked signals are inherited; the launcher receives its own on other threads.
        if launch.blocks_signals {
            interrupt::block_signals();
        }
        let streams = if rank == 0 { launch.streams } else { StandardStreams::Logged };
        let started = redirect(&mut command, terminal, streams).and_then(|()| command.spawn());
        if launch.blocks_signals {
            interrupt::unblock_signals();
        }
        let mut child = match started {
            Ok(child) => child,
            Err(source) => return Err(failed(source)),
        };
        let echo = |stream| match (rank, launch.format, stream) {
            (1.., ..) if !launch.tee => Echo::None,
            (_, Some(format), Stream::Err) => Echo::Formatted(stream, rank, format),
            (0, ..) => Echo::Through(stream),
            _ => Echo::Lines(stream, rank),
        };
        let (input, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let mut process = Self {
            rank,
            pid: child.id(),
            log,
            exit: None,
            open_streams: 0,
            child,
            group,
            heartbeat,
            timed_out: None,
        };
        let mut sources: Vec<(Box<dyn Read + Send>, Echo)> = vec![];
        if let Some((terminal, _)) = terminal {
            let of_terminal =
                if streams == StandardStreams::Logged { terminal.stream() } else { Stream::Err };
            sources.push((Box::new(terminal.reader().map_err(failed)?), echo(of_terminal)));
        }
        if let Some(out) = out {
            sources.push((Box::new(out), echo(Stream::Out)));
        }
        if let Some(err) = err {
            sources.push((Box::new(err), echo(Stream::Err)));
        }
        process.watch(sources, send)?;
        if let Some(input) = input {
            spawn("input".into(), Box::new(|| forward_input(input)))?;
        }
        Ok(process)
    }

    /// Starts the threads that copy the output and wait for the exit.
    fn watch(
        &mut self,
        streams: Vec<(Box<dyn Read + Send>, Echo)>,
        send: impl Fn(RankEvent) + Clone + Send + 'static,
    ) -> Result<()> {
        let rank = self.rank;
        for (source, echo) in streams {
            let (log, send) = (Arc::clone(&self.log), send.clone());
            let body = move || {
                copy_output(source, &log, &echo, |error| send(RankEvent::LogLost(error)));
                send(RankEvent::StreamEnded);
            };
            spawn(format!("output-{rank}"), Box::new(body))?;
            self.open_streams += 1;
        }
        let group = self.group;
        let body = move || {
            if let Some(pid) = group {
                // Without reaping, so that the id stays this process's own until `reap`.
                let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
                while matches!(waitid(WaitId::Pid(pid), options), Err(Errno::INTR)) {}
            }
            send(RankEvent::Exited(Instant::now()));
        };
        spawn(format!("wait-{rank}"), Box::new(body))
    }

    /// Sends a signal to the rank and all that it started, unless it has been reaped.
    pub fn signal(&self, signal: Signal) {
        if let Some(group) = self.group.filter(|_| self.exit.is_none()) {
            // The only error left is that no process is there any more.
            let _ = kill_process_group(group, signal);
        }
    }

    /// Reads the rank's heartbeats; the last time was `elapsed` ago.
    pub fn poll(&mut self, elapsed: Duration) {
        if self.exit.is_none() {
            self.heartbeat.poll(self.group, elapsed);
        }
    }

    /// Kills the rank because it has sent no heartbeat for `silence`, which became too long at the time `after`.
    pub fn time_out(&mut self, after: Duration, silence: Duration) {
        self.timed_out = Some((after, silence));
        self.signal(Signal::KILL);
    }

    /// Records the exit of a process, after killing what it left behind in its group. `stopped` tells for a reason whether
    /// the launcher had asked the rank to stop.
    pub fn reap(&mut self, after: Duration, stopped: impl FnOnce(ExitReason) -> bool) -> RankExit {
        self.signal(Signal::KILL);
        // The last heartbeat may still be in the pipe.
        self.heartbeat.poll(None, Duration::ZERO);
        let reason = self.child.wait().map_or(ExitReason::Unkillable, ExitReason::from);
        let (after, reason, stopped_by_launcher) = match self.timed_out {
            Some((after, silence)) => (after, ExitReason::HeartbeatTimeout(silence), false),
            None => (after, reason, stopped(reason)),
        };
        *self.exit.insert(RankExit { rank: self.rank, reason, after, stopped_by_launcher })
    }

    /// Gives up on a process that was killed and is still there.
    pub fn abandon(&mut self, after: Duration) -> RankExit {
        *self.exit.insert(RankExit {
            rank: self.rank,
            reason: ExitReason::Unkillable,
            after,
            stopped_by_launcher: true,
        })
    }
}

/// A thread that nobody waits for.
fn spawn(name: String, body: Box<dyn FnOnce() + Send>) -> Result<()> {
    let started = thread::Builder::new().name(name).spawn(body);
    started.map(drop).map_err(|source| Error::System { operation: "start a thread", source })
}

/// Gives a rank what this process reads from its terminal, until either ends.
fn forward_input(mut input: ChildStdin) {
    let mut stdin = io::stdin().lock();
    // A rank that reads no more has ended, which is reported where its exit is; a terminal that cannot be read is gone.
    drop(io::copy(&mut stdin, &mut input));
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        if self.exit.is_some() {
            return;
        }
        self.signal(Signal::KILL);
        let deadline = Instant::now() + KILL_WAIT;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
    }
}
