//! A host of a job, by its connection.

use std::io::Write;
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::time::{Duration, Instant};

use brigade_launch::AuthToken;

use super::restarts::{LONGEST, Losses, NO_CONNECTION};
use crate::error::{Error, Result};
use crate::job::Job;
use crate::submission::process::command;
use crate::systems::Ssh;

/// A host's connection. The launcher there ends when `input` does.
pub struct Host {
    child: Child,
    input: Option<ChildStdin>,
    pub code: Option<u8>,
    /// Whether its connection was cut because it did not end when it was told to.
    pub is_cut: bool,
    started: Instant,
    /// How long its connection lasted, once it has ended.
    pub lasted: Duration,
    losses: Losses,
    /// When it starts again, of an elastic job.
    again: Option<Instant>,
    /// Since when it has been told to end.
    ends: Option<Instant>,
}

impl Host {
    pub fn start(ssh: &Ssh, job: &Job, node: usize, token: &AuthToken) -> Result<Self> {
        let words = ssh.command(job, node);
        let failed = |source| Error::Command { command: format!("ssh {}", ssh.hosts[node]), source };
        let mut child = command(&words, Path::new(".")).stdin(Stdio::piped()).spawn().map_err(failed)?;
        let mut input = child.stdin.take();
        // A connection that failed already shows by its exit code.
        let _ = input.as_mut().map(|input| writeln!(input, "{}", token.expose()));
        Ok(Self {
            child,
            input,
            code: None,
            is_cut: false,
            started: Instant::now(),
            lasted: Duration::ZERO,
            losses: Losses::default(),
            again: None,
            ends: None,
        })
    }

    /// Whether it has no process, and gets none.
    pub fn is_over(&self) -> bool {
        self.code.is_some() && self.again.is_none()
    }

    /// Whether it ended, and gets no process, though nobody told it so.
    pub fn is_given_up(&self) -> bool {
        self.is_over() && self.ends.is_none()
    }

    pub fn is_told(&self) -> bool {
        self.ends.is_some()
    }

    /// Lets its ranks save and end, and does not start it again.
    pub fn end(&mut self) {
        (self.input, self.again) = (None, None);
        self.ends.get_or_insert_with(Instant::now);
    }

    /// Does not start it again.
    pub fn forget(&mut self) {
        self.again = None;
    }

    /// Its exit code when it has ended just now. A connection on which nothing ends any more is cut.
    pub fn ended(&mut self, patience: Duration) -> Option<u8> {
        if self.code.is_some() {
            return None;
        }
        if self.ends.is_some_and(|since| since.elapsed() > patience) {
            let _ = self.child.kill();
            self.is_cut = true;
        }
        let status = self.child.try_wait().ok().flatten()?;
        let code = status.code().and_then(|code| code.try_into().ok()).unwrap_or(NO_CONNECTION);
        (self.code, self.lasted) = (Some(code), self.started.elapsed());
        Some(code)
    }

    /// Starts it again if it is time; what to say if that fails.
    pub fn start_again(&mut self, ssh: &Ssh, job: &Job, node: usize, token: &AuthToken) -> Option<String> {
        self.again.filter(|at| Instant::now() >= *at)?;
        match Self::start(ssh, job, node, token) {
            Ok(started) => {
                *self = Self { losses: self.losses, ..started };
                None
            }
            Err(error) => {
                self.again = Some(Instant::now() + LONGEST);
                Some(format!("{}: {error}", ssh.hosts[node]))
            }
        }
    }

    /// Sets the time at which a host that was lost starts again, unless it has failed too often; what to say.
    pub fn retry(&mut self, name: &str, code: u8, most: u32) -> String {
        let now = Instant::now();
        let Some(pause) = self.losses.pause(code, self.lasted, most, now) else {
            return format!(
                "{}; it has failed {} times and is given up",
                ended(name, code),
                self.losses.failed
            );
        };
        self.again = Some(now + pause);
        format!("{}; it is tried again in {} s", ended(name, code), pause.as_secs())
    }
}

/// How a host has ended.
pub fn ended(host: &str, code: u8) -> String {
    let meaning = match code {
        NO_CONNECTION => return format!("{host}: no connection, or the connection was lost"),
        126 => " (the program cannot be executed; --program gives its path)".into(),
        127 => " (command not found; --program gives its path)".into(),
        129..=192 => format!(" (signal {})", code - 128),
        _ => String::new(),
    };
    format!("{host}: exit code {code}{meaning}")
}
