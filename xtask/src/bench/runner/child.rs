//! A measured process: its output goes to files, its time is limited, and no process outlives the benchmark.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// How often a child is polled: too seldom to disturb what is measured.
const POLL: Duration = Duration::from_millis(20);
/// Time between SIGTERM and SIGKILL; torchrun and Brigade end their ranks in between.
const GRACE: Duration = Duration::from_secs(10);

/// A running process. Dropping it ends it.
pub struct Child {
    process: std::process::Child,
    name: String,
    output: Output,
    limit: Duration,
    /// When it was started.
    pub started: Instant,
}

struct Output {
    stdout: PathBuf,
    stderr: PathBuf,
}

/// How a process ended.
pub struct End {
    name: String,
    pub status: ExitStatus,
    pub stdout: String,
    stderr: String,
}

impl Child {
    /// Starts a process that may take up to `limit`. Its output goes to `folder`, in files named after it.
    pub fn start(mut command: Command, name: &str, folder: &Path, limit: Duration) -> Result<Self> {
        let output = Output {
            stdout: folder.join(format!("{name}.stdout")),
            stderr: folder.join(format!("{name}.stderr")),
        };
        let create =
            |path: &Path| File::create(path).with_context(|| format!("cannot write {}", path.display()));
        command.stdin(Stdio::null()).stdout(create(&output.stdout)?).stderr(create(&output.stderr)?);
        let started = Instant::now();
        let process = command
            .spawn()
            .with_context(|| format!("{name}: cannot start {}", command.get_program().display()))?;
        Ok(Self { process, name: name.to_owned(), output, limit, started })
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Its status if it has ended; an error if it has run for too long.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        let status = self.process.try_wait().with_context(|| format!("{}: cannot wait", self.name))?;
        if status.is_none() && self.started.elapsed() > self.limit {
            bail!(
                "{} has not ended after {} s; its output is in {} and .stderr",
                self.name,
                self.limit.as_secs(),
                self.output.stdout.display()
            );
        }
        Ok(status)
    }

    /// Waits for its end.
    pub fn finish(mut self) -> Result<End> {
        let status = loop {
            match self.ended()? {
                Some(status) => break status,
                None => std::thread::sleep(POLL),
            }
        };
        let read = |path: &Path| -> Result<String> {
            let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        let (stdout, stderr) = (read(&self.output.stdout)?, read(&self.output.stderr)?);
        Ok(End { name: self.name.clone(), status, stdout, stderr })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let running = |process: &mut std::process::Child| matches!(process.try_wait(), Ok(None));
        if !running(&mut self.process) {
            return;
        }
        let asked = Instant::now();
        if kill_process(Pid::from_child(&self.process), Signal::TERM).is_ok() {
            while running(&mut self.process) && asked.elapsed() < GRACE {
                std::thread::sleep(POLL);
            }
        }
        if running(&mut self.process) && self.process.kill().is_ok() {
            let _ = self.process.wait();
        }
    }
}

impl End {
    /// # Errors
    /// If the process ended with another exit code than 0; the message holds the last lines of its output.
    pub fn succeeded(&self) -> Result<()> {
        if !self.status.success() {
            bail!("{} ended with {}:\n{}", self.name, self.status, self.last_lines());
        }
        Ok(())
    }

    /// The last lines that it wrote to its standard error, or else to its standard output.
    pub fn last_lines(&self) -> String {
        let text = if self.stderr.trim().is_empty() { &self.stdout } else { &self.stderr };
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, folder: &Path, limit: Duration) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Child::start(command, "shell", folder, limit).unwrap()
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn output_and_exit_code_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let end = shell("echo figure; echo reason >&2; exit 3", folder.path(), LONG).finish().unwrap();
        assert_eq!((end.stdout.as_str(), end.status.code()), ("figure\n", Some(3)));
        let error = end.succeeded().unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.ends_with("reason"), "{error}");
        assert!(shell("true", folder.path(), LONG).finish().unwrap().succeeded().is_ok());
    }

    #[test]
    fn one_that_takes_too_long_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let start = Instant::now();
        // Asked to end, it says so: it was not killed at once.
        let mut child = shell(
            "trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.05; done",
            folder.path(),
            LONG,
        );
        while std::fs::read_to_string(folder.path().join("shell.stdout")).unwrap().is_empty() {
            assert!(start.elapsed() < LONG);
            std::thread::sleep(POLL);
        }
        child.limit = Duration::ZERO;
        let error = child.finish().map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("shell has not ended after 0 s"), "{error}");
        assert_eq!(std::fs::read_to_string(folder.path().join("shell.stdout")).unwrap(), "up\nasked\n");
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let command = Command::new("no-such-program");
        let error = Child::start(command, "peer", folder.path(), LONG).map(|_| ()).unwrap_err().to_string();
        assert_eq!(error, "peer: cannot start no-such-program");
    }
}
