//! One rank as a process.

use std::{
    io::{self, Read},
    net::TcpListener,
    os::{
        fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
        unix::process::CommandExt,
    },
    process::{Child, Command, Stdio},
    sync::{Arc, mpsc::Sender},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    io::{Errno, FdFlags, fcntl_setfd},
    process::{Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process_group, waitid},
};

use super::{
    description::LaunchConfig,
    event::{Message, RankEvent},
    outcome::{ExitReason, RankExit},
    output::{Echo, Log, Stream, pump},
    pulse::HeartbeatMonitor,
    terminal::Terminal,
};
use crate::{
    Endpoint, Error, LAUNCHED_VARIABLE, LISTENER_VARIABLE, RESTART_VARIABLE, Result, Token,
    heartbeat::HEARTBEAT_VARIABLE,
    interrupt::{self, PREEMPTION_GRACE_VARIABLE},
};

/// How long a killed process may take to be gone.
pub const KILL_WAIT: Duration = Duration::from_secs(1);

/// A rank that was started. Dropped, it takes its whole process group along.
pub struct Process {
    pub rank: usize,
    pub pid: u32,
    pub log: Arc<Log>,
    pub pulse: HeartbeatMonitor,
    /// How it ended, once it has.
    pub end: Option<RankExit>,
    /// Streams of output that have not ended.
    pub open_streams: usize,
    child: Child,
    group: Option<Pid>,
    /// When, and after what silence, it was killed for its silence.
    silenced: Option<(Duration, Duration)>,
}

/// Which start of the world this is.
#[derive(Clone)]
pub struct Start {
    /// 0 the first time.
    pub round: u32,
    pub max_restarts: u32,
    /// Where rank 0 waits for the others.
    pub endpoint: Endpoint,
}

/// What rank 0 of the world gets besides.
pub struct RankZero {
    pub listener: TcpListener,
    pub terminal: Option<(Terminal, OwnedFd)>,
}

impl Process {
    /// Starts the rank `local_rank` of this node. Must be called on the thread that stays until the ranks
    /// have ended: Linux sends the death signal when the *thread* that started the process is gone.
    pub fn start(
        launch: &LaunchConfig,
        local_rank: usize,
        start: &Start,
        zero: Option<&RankZero>,
        sender: &Sender<Message>,
    ) -> Result<Self> {
        let rank = launch.first_rank() + local_rank;
        let separator = format!("--- restart {} of {} ---", start.round, start.max_restarts);
        let separator = (start.round > 0).then_some(separator.as_str());
        let log = Arc::new(Log::create(&launch.log_dir, rank, separator)?);
        let failed = |source| Error::System { operation: "make the pipe of a heart", source };
        let (pulse, heart) = HeartbeatMonitor::new().map_err(failed)?;
        let mut command = command(launch, local_rank, start);
        command.env(HEARTBEAT_VARIABLE, heart.variable().map_err(failed)?);
        let mut inherited = vec![heart.descriptor().as_raw_fd()];
        if let Some(zero) = zero {
            let listener = zero.listener.as_raw_fd();
            command.env(LISTENER_VARIABLE, listener.to_string());
            inherited.push(listener);
        }
        let launcher = getpid();
        // SAFETY: between fork and exec the closure makes system calls only, and what is inherited is open: `zero` and `heart`
        // hold it until the process has been started.
        unsafe {
            command.pre_exec(move || {
                die_with(launcher)?;
                hear_signals();
                inherited.iter().try_for_each(|fd| keep_open(*fd))
            });
        }
        let program = launch.program.to_string_lossy().into_owned();
        let failed = |source| Error::Start { rank, program, source };
        let terminal = zero.and_then(|zero| zero.terminal.as_ref());
        // What is held back is inherited_fd; the launcher hears of its own signals on other threads.
        if launch.blocks_signals {
            interrupt::block_signals();
        }
        let started = redirect(&mut command, terminal).and_then(|()| command.spawn());
        if launch.blocks_signals {
            interrupt::unblock_signals();
        }
        let mut child = match started {
            Ok(child) => child,
            Err(source) => return Err(failed(source)),
        };
        let echo = |stream| match rank {
            0 => Echo::Through(stream),
            _ if launch.tee => Echo::Lines(stream, rank),
            _ => Echo::None,
        };
        let out = child.stdout.take();
        let err = child.stderr.take();
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let mut process = Self {
            rank,
            pid: child.id(),
            log,
            end: None,
            open_streams: 0,
            child,
            group,
            pulse,
            silenced: None,
        };
        let mut streams: Vec<(Box<dyn Read + Send>, Echo)> = vec![];
        if let Some((terminal, _)) = terminal {
            streams.push((Box::new(terminal.reader().map_err(failed)?), echo(terminal.stream())));
        }
        if let Some(out) = out {
            streams.push((Box::new(out), echo(Stream::Out)));
        }
        if let Some(err) = err {
            streams.push((Box::new(err), echo(Stream::Err)));
        }
        process.watch(start.round, local_rank, streams, sender)?;
        Ok(process)
    }

    /// Starts the threads that copy the output and wait for the end.
    fn watch(
        &mut self,
        round: u32,
        local_rank: usize,
        streams: Vec<(Box<dyn Read + Send>, Echo)>,
        sender: &Sender<Message>,
    ) -> Result<()> {
        let spawn = |name: String, body: Box<dyn FnOnce() + Send>| {
            let started = thread::Builder::new().name(name).spawn(body);
            started.map(drop).map_err(|source| Error::System { operation: "start a thread", source })
        };
        let rank = self.rank;
        let tell = |sender: Sender<Message>| {
            // The supervisor may have stopped listening.
            move |news| drop(sender.send(Message::Rank { round, local_rank, news }))
        };
        for (source, echo) in streams {
            let (log, tell) = (Arc::clone(&self.log), tell(sender.clone()));
            let body = move || {
                pump(source, &log, &echo, |error| tell(RankEvent::LogLost(error)));
                tell(RankEvent::StreamEnded);
            };
            spawn(format!("output-{rank}"), Box::new(body))?;
            self.open_streams += 1;
        }
        let (group, tell) = (self.group, tell(sender.clone()));
        let body = move || {
            if let Some(pid) = group {
                // Without reaping, so that the id stays this process's own until `reap`.
                let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
                while matches!(waitid(WaitId::Pid(pid), options), Err(Errno::INTR)) {}
            }
            tell(RankEvent::Exited(Instant::now()));
        };
        spawn(format!("wait-{rank}"), Box::new(body))
    }

    /// Sends a signal to the rank and all that it started, unless it has been reaped.
    pub fn signal(&self, signal: Signal) {
        if let Some(group) = self.group.filter(|_| self.end.is_none()) {
            // The only error left is that nobody is there any more.
            let _ = kill_process_group(group, signal);
        }
    }

    /// Looks after the rank's heart; the last look was `elapsed` ago.
    pub fn look(&mut self, elapsed: Duration) {
        if self.end.is_none() {
            self.pulse.look(self.group, elapsed);
        }
    }

    /// Kills the rank for a silence that became too long at the time `after`.
    pub fn silence(&mut self, after: Duration, silence: Duration) {
        self.silenced = Some((after, silence));
        self.signal(Signal::KILL);
    }

    /// Notes the end of a process that has exited, after killing what it left behind in its group. `stopped` says
    /// of an ending whether the launcher had asked for it.
    pub fn reap(&mut self, after: Duration, stopped: impl FnOnce(ExitReason) -> bool) -> RankExit {
        self.signal(Signal::KILL);
        // The last word may still lie in the pipe.
        self.pulse.look(None, Duration::ZERO);
        let reason = self.child.wait().map_or(ExitReason::Unkillable, ExitReason::from);
        let (after, reason, stopped_by_launcher) = match self.silenced {
            Some((after, silence)) => (after, ExitReason::HeartbeatTimeout(silence), false),
            None => (after, reason, stopped(reason)),
        };
        *self.end.insert(RankExit { rank: self.rank, reason, after, stopped_by_launcher })
    }

    /// Gives up on a process that was killed and is still there.
    pub fn abandon(&mut self, after: Duration) -> RankExit {
        *self.end.insert(RankExit {
            rank: self.rank,
            reason: ExitReason::Unkillable,
            after,
            stopped_by_launcher: true,
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.end.is_some() {
            return;
        }
        self.signal(Signal::KILL);
        let deadline = Instant::now() + KILL_WAIT;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The command with the variables of the rank.
fn command(launch: &LaunchConfig, local_rank: usize, start: &Start) -> Command {
    let mut command = Command::new(&launch.program);
    command.args(&launch.args).envs(launch.env.iter().map(|(name, value)| (name, value)));
    command.env_remove(LISTENER_VARIABLE).env(LAUNCHED_VARIABLE, "1");
    // Of a torchrun around this launcher; its agent does not listen at our port.
    command.env_remove("TORCHELASTIC_USE_AGENT_STORE");
    for (name, value) in [
        ("RANK", launch.first_rank() + local_rank),
        ("LOCAL_RANK", local_rank),
        ("WORLD_SIZE", launch.nnodes * launch.nproc),
        ("LOCAL_WORLD_SIZE", launch.nproc),
        ("GROUP_RANK", launch.node_rank),
        ("MASTER_PORT", start.endpoint.port.into()),
        (RESTART_VARIABLE, start.round as usize),
        ("TORCHELASTIC_RESTART_COUNT", start.round as usize),
        ("TORCHELASTIC_MAX_RESTARTS", start.max_restarts as usize),
    ] {
        command.env(name, value.to_string());
    }
    command.env("MASTER_ADDR", &start.endpoint.host).env(Token::VARIABLE, launch.token.as_str());
    command.env(PREEMPTION_GRACE_VARIABLE, launch.preemption_grace.as_secs_f64().to_string());
    command.stdin(Stdio::null()).process_group(0);
    command
}

/// Standard output and error: the pseudo-terminal where the launcher has a terminal, else pipes.
fn redirect(command: &mut Command, terminal: Option<&(Terminal, OwnedFd)>) -> io::Result<()> {
    let choose = |is_terminal: fn(&Terminal) -> bool| match terminal {
        Some((terminal, side)) if is_terminal(terminal) => side.try_clone().map(Stdio::from),
        _ => Ok(Stdio::piped()),
    };
    command.stdout(choose(|terminal| terminal.out)?).stderr(choose(|terminal| terminal.err)?);
    Ok(())
}

/// Asks the kernel to kill this process when the launcher is gone, also if it is gone already. Elsewhere than
/// on Linux the ranks find out by themselves, as their peers' connections close.
fn die_with(launcher: Pid) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    match getppid() {
        Some(parent) if parent == launcher => Ok(()),
        _ => Err(Errno::SRCH.into()),
    }
}

/// Lets the process inherit a descriptor.
///
/// # Safety
/// It is open.
unsafe fn keep_open(fd: RawFd) -> io::Result<()> {
    // SAFETY: the caller's.
    Ok(fcntl_setfd(unsafe { BorrowedFd::borrow_raw(fd) }, FdFlags::empty())?)
}

/// Gives the signals by which ranks are told to end their default effect: a launcher in the background of a
/// script was told to ignore SIGINT, and what is ignored is inherited.
fn hear_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGUSR1] {
        // SAFETY: SIG_DFL is a valid disposition of these signals; it only fails for others.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}
