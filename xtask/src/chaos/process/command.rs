//! A command of `brigade` that may take only so long.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::processes;

/// Longer than anything here takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);
/// Between two looks at whether it has ended.
const POLL: Duration = Duration::from_millis(2);

/// A running command. Dropped before its end, it is killed.
pub struct Start {
    child: Child,
    line: String,
    output: File,
    began: Instant,
}

/// How a command ended.
pub struct End {
    pub status: ExitStatus,
    /// What it printed.
    pub text: String,
}

impl Start {
    /// Starts `brigade` with the words of a line, in a folder.
    pub fn new(brigade: &Path, folder: &Path, line: &str) -> Result<Self> {
        let output = tempfile::tempfile().context("no file for what a command prints")?;
        let [out, err] = [output.try_clone(), output.try_clone()];
        let mut command = Command::new(brigade);
        command.args(line.split_whitespace()).current_dir(folder);
        command.env("BRIGADE_CACHE_DIR", folder.join("cache"));
        command.stdin(Stdio::null()).stdout(out?).stderr(err?);
        let child = command.spawn().with_context(|| format!("cannot start {}", brigade.display()))?;
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
    pub fn finish(mut self) -> Result<End> {
        loop {
            if let Some(status) = self.ended()? {
                return Ok(End { status, text: self.text()? });
            }
            std::thread::sleep(POLL);
        }
    }

    fn text(&self) -> Result<String> {
        let mut bytes = vec![0; self.output.metadata()?.len() as usize];
        self.output.read_exact_at(&mut bytes, 0).context("cannot read what a command printed")?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl Drop for Start {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) && processes::kill(self.child.id()) {
            let _ = self.child.wait();
        }
    }
}
