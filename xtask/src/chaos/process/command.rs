//! A command of `brigade` with a limit on its time.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process_table as table;

/// Longer than any command takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);
/// How often it is polled.
const POLL: Duration = Duration::from_millis(2);

/// A running command. Dropping it kills it.
pub struct RunningCommand {
    child: Child,
    line: String,
    output: File,
    began: Instant,
}

/// How a command ended.
pub struct Ended {
    pub status: ExitStatus,
    /// What it printed.
    pub text: String,
}

impl RunningCommand {
    /// Starts `brigade` with the words of a line, in a folder.
    pub fn start(brigade: &Path, folder: &Path, line: &str) -> Result<Self> {
        Self::start_with(Command::new(brigade), folder, line, [])
    }

    /// The same with further variables. `command` starts `brigade` when the words are added.
    pub fn start_with(
        mut command: Command,
        folder: &Path,
        line: &str,
        variables: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Result<Self> {
        let output = tempfile::tempfile().context("cannot make a temporary file for a command's output")?;
        let [out, err] = [output.try_clone(), output.try_clone()];
        command.args(line.split_whitespace()).current_dir(folder);
        command.env("BRIGADE_CACHE_DIR", folder.join("cache")).envs(variables);
        command.stdin(Stdio::null()).stdout(out?).stderr(err?);
        let program = command.get_program().to_owned();
        let child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self { child, line: line.to_owned(), output, began: Instant::now() })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its status, if it has ended.
    ///
    /// # Errors
    /// If it has run for too long.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        let status = self.child.try_wait().context("cannot wait")?;
        if status.is_none() && self.began.elapsed() > LIMIT {
            bail!("`brigade {}` has not ended after {} s:\n{}", self.line, LIMIT.as_secs(), self.text()?);
        }
        Ok(status)
    }

    /// Waits for its end.
    pub fn finish(mut self) -> Result<Ended> {
        loop {
            if let Some(status) = self.ended()? {
                return Ok(Ended { status, text: self.text()? });
            }
            std::thread::sleep(POLL);
        }
    }

    fn text(&self) -> Result<String> {
        let mut bytes = vec![0; self.output.metadata()?.len() as usize];
        self.output.read_exact_at(&mut bytes, 0).context("cannot read a command's output")?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) && table::kill(self.child.id()) {
            let _ = self.child.wait();
        }
    }
}
