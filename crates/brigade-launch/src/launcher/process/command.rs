//! The command that starts a rank, and what the new process does before it runs the program.

use std::{
    io,
    os::{
        fd::{BorrowedFd, OwnedFd, RawFd},
        unix::process::CommandExt,
    },
    process::{Command, Stdio},
};

use rustix::{
    io::{Errno, FdFlags, fcntl_setfd},
    process::{Pid, Signal, getppid},
    termios::isatty,
};

use super::terminal::Terminal;
use crate::{
    auth_token::TOKEN_VARIABLE,
    endpoint::Endpoint,
    environment::LAUNCHED_VARIABLE,
    interrupt::PREEMPTION_GRACE_VARIABLE,
    launcher::config::{LaunchConfig, StandardStreams},
    rank::{listener::LISTENER_VARIABLE, restart::RESTART_VARIABLE},
};

/// Set for a rank whose standard input is what the launcher reads from a terminal.
pub const TERMINAL_INPUT_VARIABLE: &str = "BRIGADE_TERMINAL_INPUT";

/// Which start of the ranks this is, and where they meet.
#[derive(Clone)]
pub struct StartInfo {
    /// How often the ranks were restarted before.
    pub restart_count: u32,
    pub max_restarts: u32,
    /// Where rank 0 waits for the others.
    pub endpoint: Endpoint,
}

/// The command with the variables of the rank.
pub fn rank_command(launch: &LaunchConfig, local_rank: usize, start: &StartInfo) -> Command {
    let mut command = Command::new(&launch.program);
    command.args(&launch.args).envs(launch.env.iter().map(|(name, value)| (name, value)));
    command.env_remove(LISTENER_VARIABLE).env_remove(TERMINAL_INPUT_VARIABLE).env(LAUNCHED_VARIABLE, "1");
    // From a torchrun that started this launcher; its agent does not listen at our port.
    command.env_remove("TORCHELASTIC_USE_AGENT_STORE");
    for (name, value) in [
        ("RANK", launch.first_rank() + local_rank),
        ("LOCAL_RANK", local_rank),
        ("WORLD_SIZE", launch.nnodes * launch.nproc),
        ("LOCAL_WORLD_SIZE", launch.nproc),
        ("GROUP_RANK", launch.node_rank),
        ("MASTER_PORT", start.endpoint.port.into()),
        (RESTART_VARIABLE, start.restart_count as usize),
        ("TORCHELASTIC_RESTART_COUNT", start.restart_count as usize),
        ("TORCHELASTIC_MAX_RESTARTS", start.max_restarts as usize),
    ] {
        command.env(name, value.to_string());
    }
    command.env("MASTER_ADDR", &start.endpoint.host).env(TOKEN_VARIABLE, launch.token.expose());
    command.env(PREEMPTION_GRACE_VARIABLE, launch.preemption_grace.as_secs_f64().to_string());
    command.stdin(Stdio::null()).process_group(0);
    command
}

/// Standard output and error: the pseudo-terminal where the launcher has a terminal, else pipes. Where rank 0 prints results, it has the launcher's output itself. What
/// a terminal reads can only be passed on to it, as it is in a process group of its own.
pub fn redirect(
    command: &mut Command,
    terminal: Option<&(Terminal, OwnedFd)>,
    streams: StandardStreams,
) -> io::Result<()> {
    let choose = |is_terminal: fn(&Terminal) -> bool| match terminal {
        Some((terminal, side)) if is_terminal(terminal) => side.try_clone().map(Stdio::from),
        _ => Ok(Stdio::piped()),
    };
    command.stderr(choose(|terminal| terminal.err)?);
    command.stdout(match streams {
        StandardStreams::Logged => choose(|terminal| terminal.out)?,
        StandardStreams::Results | StandardStreams::Dialogue => Stdio::inherit(),
    });
    if streams == StandardStreams::Dialogue {
        if isatty(io::stdin()) {
            command.stdin(Stdio::piped()).env(TERMINAL_INPUT_VARIABLE, "1");
        } else {
            command.stdin(Stdio::inherit());
        }
    }
    Ok(())
}

/// Asks the kernel to kill this process when the launcher is gone, even if it is gone already. On systems other
/// than Linux the ranks find out by themselves, as their peers' connections close.
pub fn set_parent_death_signal(launcher: Pid) -> io::Result<()> {
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
pub unsafe fn keep_open(fd: RawFd) -> io::Result<()> {
    // SAFETY: the caller's.
    Ok(fcntl_setfd(unsafe { BorrowedFd::borrow_raw(fd) }, FdFlags::empty())?)
}

/// Gives the signals that end ranks, and the one that tells of a process's end, their default effect: a launcher in the
/// background of a script was told to ignore SIGINT, and ranks would inherit that.
pub fn reset_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGUSR1, libc::SIGCHLD] {
        // SAFETY: SIG_DFL is a valid disposition of these signals; it only fails for others.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}
