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

/// Before the job, or a host of it, starts again; twice as long after each failure but the first, up to [`LONGEST`].
const PAUSE: Duration = Duration::from_secs(5);

const LONGEST: Duration = Duration::from_secs(60);

/// A host that was there for so long has not failed before.
const STABLE: Duration = Duration::from_secs(600);

/// How long a launcher whose connection was lost may stay and hold the port and the run's folder: until TCP gives up.
const HELD: Duration = Duration::from_secs(900);

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
    started: Instant,
    /// How often it was lost, one time soon after the other.
    lost: u32,
    /// How often of these it was neither its connection nor told to leave.
    failed: u32,
    /// When it starts again, of an elastic job.
    again: Option<Instant>,
    /// Since when it has been told to end.
    ends: Option<Instant>,
}

impl Host {
    fn start(ssh: &Ssh, job: &Job, node: usize, token: &AuthToken) -> Result<Self> {
        let words = ssh.command(job, node);
        let failed = |source| Error::Command { command: format!("ssh {}", ssh.hosts[node]), source };
        let mut child =
            command(&words, std::path::Path::new(".")).stdin(Stdio::piped()).spawn().map_err(failed)?;
        let mut input = child.stdin.take();
        // A connection that failed already shows by its exit code.
        let _ = input.as_mut().map(|input| writeln!(input, "{}", token.expose()));
        Ok(Self {
            child,
            input,
            code: None,
            started: Instant::now(),
            lost: 0,
            failed: 0,
            again: None,
            ends: None,
        })
    }

    /// Whether it has no process, and gets none.
    fn is_over(&self) -> bool {
        self.code.is_some() && self.again.is_none()
    }

    /// Lets its ranks save and end, and does not start it again.
    fn end(&mut self) {
        (self.input, self.again) = (None, None);
        self.ends.get_or_insert_with(Instant::now);
    }

    /// Its exit code when it has ended just now. A connection on which nothing ends any more is cut.
    fn ended(&mut self, patience: Duration) -> Option<u8> {
        if self.code.is_some() {
            return None;
        }
        if self.ends.is_some_and(|since| since.elapsed() > patience) {
            let _ = self.child.kill();
        }
        let status = self.child.try_wait().ok().flatten()?;
        let code = status.code().and_then(|code| code.try_into().ok()).unwrap_or(NO_CONNECTION);
        self.code = Some(code);
        Some(code)
    }

    /// Sets the time at which a host that was lost starts again, unless it has failed too often; what to say.
    fn retry(&mut self, name: &str, code: u8, most: u32) -> String {
        if self.started.elapsed() > STABLE {
            (self.lost, self.failed) = (0, 0);
        }
        // One that was told to leave is to stay away for a while, and a disk that is not there yet needs time.
        let is_long = code == exit::PREEMPTED || NO_PROGRAM.contains(&code);
        let pause = if is_long { LONGEST } else { doubled(self.lost) };
        self.lost += 1;
        self.failed += u32::from(!matches!(code, NO_CONNECTION | exit::PREEMPTED));
        if self.failed > most {
            return format!("{}; it has failed {} times and is given up", ended(name, code), self.failed);
        }
        self.again = Some(Instant::now() + pause);
        format!("{}; it is tried again in {} s", ended(name, code), pause.as_secs())
    }
}

/// Runs a job, which was checked, on all hosts until it ends, and returns its exit code. It starts again after a preemption, and after a failure as often as
/// the job says.
///
/// # Errors
/// If `ssh` cannot be started.
pub fn over_ssh(ssh: &Ssh, job: &Job, console: &mut Console<'_>) -> Result<u8> {
    let (mut failures, mut is_first, mut lost) = (0, true, None::<Instant>);
    loop {
        let (code, cancelled) = once(ssh, job, console)?;
        let mut wait = None;
        match code {
            _ if cancelled => return Ok(code),
            exit::PREEMPTED if job.least_nodes.is_some() => {
                (console.say)("saved, as it was preempted or too few hosts were there: it starts again");
            }
            exit::PREEMPTED => (console.say)("preempted and saved: it starts again"),
            exit::DONE | exit::INTERRUPTED => return Ok(code),
            // Later it is not the command that is wrong.
            exit::USAGE if is_first => return Ok(code),
            exit::USAGE if lost.is_some_and(|at| at.elapsed() < HELD) => {
                (console.say)(
                    "a launcher whose connection was lost may still run: it is tried again in 60 s",
                );
                wait = Some(LONGEST);
            }
            _ if failures >= job.max_restarts => return Ok(code),
            _ => {
                failures += 1;
                (console.say)(&format!(
                    "failed with code {code}: restart {failures} of {}",
                    job.max_restarts
                ));
            }
        }
        if code == NO_CONNECTION {
            lost = Some(Instant::now());
        }
        is_first = false;
        if !pause(wait.unwrap_or_else(|| doubled(failures)), console) {
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
    let hosts = (0..job.nodes).map(|node| Host::start(ssh, job, node, &token));
    let mut hosts = hosts.collect::<Result<Vec<_>>>()?;
    let (mut cancelled, mut failed, mut too_few) = (false, None, None);
    let patience = Duration::from_secs(job.end_seconds()) + NOTICE;
    while !hosts.iter().all(Host::is_over) {
        if console.interrupted.swap(false, Ordering::SeqCst) {
            match (console.ask)() {
                Answer::Follow => {}
                Answer::Leave => (console.say)("it ends when this command ends: follow it, or cancel it"),
                Answer::Cancel => {
                    cancelled = true;
                    hosts.iter_mut().for_each(Host::end);
                }
            }
        }
        for (node, name) in ssh.hosts.iter().enumerate() {
            // An elastic job goes on without any node but the first.
            let is_spare = job.least_nodes.is_some() && node > 0;
            let (goes_on, host) = (!hosts[0].is_over(), &mut hosts[node]);
            if host.again.is_some_and(|at| Instant::now() >= at) {
                match Host::start(ssh, job, node, &token) {
                    Ok(started) => *host = Host { lost: host.lost, failed: host.failed, ..started },
                    Err(error) => {
                        (console.say)(&format!("{name}: {error}"));
                        host.again = Some(Instant::now() + LONGEST);
                    }
                }
            }
            // Those that are told to end need not be named.
            let is_told = host.ends.is_some();
            let Some(code) = host.ended(patience).filter(|code| !is_told && *code != exit::DONE) else {
                continue;
            };
            if is_spare {
                if goes_on {
                    (console.say)(&host.retry(name, code, job.max_restarts));
                }
                continue;
            }
            // One that saves tells the others itself.
            if code != exit::PREEMPTED {
                (console.say)(&ended(name, code));
                failed.get_or_insert_with(Instant::now);
            }
        }
        // Without one of its nodes the world cannot begin or continue. Where a launcher failed, the others notice, unless they still wait for it.
        let is_gone = |code: u8| code == NO_CONNECTION || NO_PROGRAM.contains(&code);
        let given_up = hosts.iter().skip(1).filter(|host| host.is_over() && host.ends.is_none());
        let has_ended = match job.least_nodes {
            Some(least) => {
                let gone = given_up.filter(|host| host.code != Some(exit::DONE));
                let codes: Vec<u8> = gone.filter_map(|host| host.code).collect();
                if codes.len() > job.nodes - least && !hosts[0].is_over() {
                    too_few = codes.last().copied();
                }
                too_few.is_some() || hosts[0].code.is_some_and(is_gone)
            }
            None => hosts.iter().filter_map(|host| host.code).any(is_gone),
        };
        if has_ended || failed.is_some_and(|since: Instant| since.elapsed() > NOTICE) {
            hosts.iter_mut().for_each(Host::end);
        }
        // What comes back is for a run that goes on.
        if job.least_nodes.is_some() && hosts[0].is_over() {
            hosts.iter_mut().for_each(|host| host.again = None);
            failed.get_or_insert_with(Instant::now);
        }
        thread::sleep(POLL);
    }
    let codes: Vec<u8> = hosts.iter().filter_map(|host| host.code).collect();
    let worst = |wanted: &dyn Fn(u8) -> bool| codes.iter().copied().find(|code| wanted(*code));
    let code = match job.least_nodes {
        // The first node speaks for an elastic job, whatever became of others, unless they were too few.
        Some(_) => too_few.filter(|_| !cancelled).unwrap_or(codes[0]),
        None => {
            let failed = worst(&|code| code != exit::DONE && code != exit::PREEMPTED);
            failed.or_else(|| worst(&|code| code != exit::DONE)).unwrap_or(exit::DONE)
        }
    };
    Ok((code, cancelled))
}

/// The pause before a start after so many failures: twice as long after each but the first.
fn doubled(failures: u32) -> Duration {
    LONGEST.min(PAUSE * (1 << failures.saturating_sub(1).min(10)))
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
