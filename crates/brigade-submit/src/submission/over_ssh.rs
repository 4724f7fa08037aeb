//! A job on hosts that are reached by ssh.

use std::io::Write;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use brigade_launch::{AuthToken, exit};

use super::process::command;
use super::{Answer, Console};
use crate::error::{Error, Result};
use crate::job::Job;
use crate::systems::Ssh;

/// Before the job starts again; twice as long after each failure but the first, up to [`LONGEST`].
const PAUSE: Duration = Duration::from_secs(5);

const LONGEST: Duration = Duration::from_secs(60);

const POLL: Duration = Duration::from_millis(50);

/// How long the other hosts may take to notice the failure of one.
const NOTICE: Duration = Duration::from_secs(30);

/// What `ssh` exits with when it is its connection that failed.
const NO_CONNECTION: u8 = 255;

/// What a shell exits with when it cannot start a program.
const NO_PROGRAM: [u8; 2] = [126, 127];

/// A host's connection. The launcher there ends when `input` does.
struct Host {
    child: Child,
    input: Option<ChildStdin>,
    code: Option<u8>,
}

/// Runs a job, which was checked, on all hosts until it ends, and returns its exit code. It starts again after a preemption, and after a failure as often as
/// the job says.
///
/// # Errors
/// If `ssh` cannot be started.
pub fn over_ssh(ssh: &Ssh, job: &Job, console: &mut Console<'_>) -> Result<u8> {
    let (mut failures, mut is_first) = (0, true);
    loop {
        let (code, cancelled) = once(ssh, job, console)?;
        match code {
            _ if cancelled => return Ok(code),
            exit::PREEMPTED => (console.say)("preempted and saved: it starts again"),
            exit::DONE | exit::INTERRUPTED => return Ok(code),
            // Later it is not the command that is wrong: a launcher whose connection was lost may still have the port, or the run's folder.
            exit::USAGE if is_first => return Ok(code),
            _ if failures >= job.max_restarts => return Ok(code),
            _ => {
                failures += 1;
                (console.say)(&format!(
                    "failed with code {code}: restart {failures} of {}",
                    job.max_restarts
                ));
            }
        }
        is_first = false;
        let doubled = 1 << failures.saturating_sub(1).min(10);
        if !pause(LONGEST.min(PAUSE * doubled), console) {
            return Ok(code);
        }
    }
}

/// Waits, and says whether the job shall start again.
fn pause(length: Duration, console: &mut Console<'_>) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < length {
        if console.interrupted.swap(false, Ordering::SeqCst) && matches!((console.ask)(), Answer::Cancel) {
            return false;
        }
        thread::sleep(POLL);
    }
    true
}

/// The exit code of the job, and whether the user ended it.
fn once(ssh: &Ssh, job: &Job, console: &mut Console<'_>) -> Result<(u8, bool)> {
    // A new one each time; nobody else needs it.
    let token = AuthToken::random().map_err(brigade_launch::Error::Random)?;
    let mut hosts = Vec::new();
    for node in 0..job.nodes {
        let words = ssh.command(job, node);
        let failed = |source| Error::Command { command: format!("ssh {}", ssh.hosts[node]), source };
        let mut child =
            command(&words, std::path::Path::new(".")).stdin(Stdio::piped()).spawn().map_err(failed)?;
        let mut input = child.stdin.take();
        // A connection that failed already shows by its exit code.
        let _ = input.as_mut().map(|input| writeln!(input, "{}", token.expose()));
        hosts.push(Host { child, input, code: None });
    }
    let (mut cancelled, mut failed) = (false, None);
    while hosts.iter().any(|host| host.code.is_none()) {
        if console.interrupted.swap(false, Ordering::SeqCst) {
            match (console.ask)() {
                Answer::Follow => {}
                Answer::Leave => (console.say)("it ends when this command ends: follow it, or cancel it"),
                Answer::Cancel => {
                    cancelled = true;
                    hosts.iter_mut().for_each(|host| host.input = None);
                }
            }
        }
        for (host, name) in hosts.iter_mut().zip(&ssh.hosts).filter(|(host, _)| host.code.is_none()) {
            let Ok(Some(status)) = host.child.try_wait() else { continue };
            let code = status.code().and_then(|code| code.try_into().ok()).unwrap_or(NO_CONNECTION);
            host.code = Some(code);
            // Those that are told to end need not be named; one that saves tells the others itself.
            if !matches!(code, exit::DONE | exit::PREEMPTED) && host.input.is_some() {
                (console.say)(&ended(name, code));
                failed.get_or_insert_with(Instant::now);
            }
        }
        // Without one of its nodes the world cannot begin or continue. Where a launcher failed, the others notice, unless they still wait for it.
        let is_gone = |code: u8| code == NO_CONNECTION || NO_PROGRAM.contains(&code);
        if hosts.iter().filter_map(|host| host.code).any(is_gone)
            || failed.is_some_and(|since: Instant| since.elapsed() > NOTICE)
        {
            hosts.iter_mut().for_each(|host| host.input = None);
        }
        thread::sleep(POLL);
    }
    let codes: Vec<u8> = hosts.iter().filter_map(|host| host.code).collect();
    let worst = |wanted: &dyn Fn(u8) -> bool| codes.iter().copied().find(|code| wanted(*code));
    let failed = worst(&|code| code != exit::DONE && code != exit::PREEMPTED);
    Ok((failed.or_else(|| worst(&|code| code != exit::DONE)).unwrap_or(exit::DONE), cancelled))
}

/// How a host has ended.
fn ended(host: &str, code: u8) -> String {
    let meaning = match code {
        NO_CONNECTION => return format!("{host}: no connection, or the connection was lost"),
        126 => " (the program cannot be executed; --program gives its path)".into(),
        127 => " (command not found; --program gives its path)".into(),
        129..=192 => format!(" (signal {})", code - 128),
        _ => String::new(),
    };
    format!("{host}: exit code {code}{meaning}")
}
