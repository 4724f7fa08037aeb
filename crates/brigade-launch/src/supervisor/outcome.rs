//! How ranks end, and which of them is to blame.

use std::{fmt, path::PathBuf, process::ExitStatus, time::Duration};

use crate::exit;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It exited with this code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
    /// It was killed but the system did not end it in time (it hangs in the kernel).
    Stuck,
}

impl Ending {
    /// True for exit code 0.
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }
}

impl From<ExitStatus> for Ending {
    fn from(status: ExitStatus) -> Self {
        use std::os::unix::process::ExitStatusExt;
        status.code().map_or_else(|| Self::Signal(status.signal().unwrap_or_default()), Self::Code)
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "killed by {}", signal_name(*signal)),
            Self::Stuck => f.write_str("killed, but it did not end"),
        }
    }
}

/// `SIGKILL (9)`.
pub fn signal_name(signal: i32) -> String {
    let name = signal_hook::low_level::signal_name(signal).unwrap_or("signal");
    format!("{name} ({signal})")
}

/// The end of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankEnd {
    /// The rank.
    pub rank: usize,
    /// How it ended.
    pub ending: Ending,
    /// When, since the ranks were started.
    pub after: Duration,
    /// True if the launcher had told it to end.
    pub stopped: bool,
}

impl fmt::Display for RankEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}: {} after {:.1} s", self.rank, self.ending, self.after.as_secs_f64())?;
        if self.stopped { f.write_str(", stopped by the launcher") } else { Ok(()) }
    }
}

/// Why a run failed. `Display` gives the whole report: cause first, then the other ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The rank that failed first.
    pub root: RankEnd,
    /// The text of its panic, if it panicked.
    pub panic: Vec<String>,
    /// The last lines of its output.
    pub last_lines: Vec<String>,
    /// Its log.
    pub log: PathBuf,
    /// The other ranks of this node, in the order in which they ended.
    pub others: Vec<RankEnd>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.panic.is_empty() {
            self.root.ending.to_string()
        } else {
            format!("panic, {}", self.root.ending)
        };
        writeln!(f, "rank {} failed: {how} after {:.1} s", self.root.rank, self.root.after.as_secs_f64())?;
        for line in &self.panic {
            writeln!(f, "    {line}")?;
        }
        if self.last_lines.is_empty() {
            write!(f, "  it wrote nothing (log {})", self.log.display())?;
        } else {
            write!(f, "  the last lines of {}:", self.log.display())?;
        }
        for line in &self.last_lines {
            write!(f, "\n    {line}")?;
        }
        for other in &self.others {
            write!(f, "\n  {other}")?;
        }
        Ok(())
    }
}

/// How the ranks of this node ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All ranks exited with 0.
    Done,
    /// A rank failed.
    Failed(Failure),
    /// A signal to the launcher ended the run.
    Interrupted {
        /// The signal's name.
        signal: String,
        /// The ranks, in the order in which they ended.
        ends: Vec<RankEnd>,
    },
}

impl Outcome {
    /// The launcher's own exit code: 0 done, 1 failed, 2 if the rank to blame exited with 2 (wrong usage),
    /// 130 interrupted.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Done => exit::DONE,
            Self::Interrupted { .. } => exit::INTERRUPTED,
            Self::Failed(failure) => match failure.root.ending {
                Ending::Code(code) if code == i32::from(exit::USAGE) => exit::USAGE,
                Ending::Code(code) if code == i32::from(exit::INTERRUPTED) => exit::INTERRUPTED,
                _ => exit::FAILED,
            },
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("all ranks are done"),
            Self::Failed(failure) => failure.fmt(f),
            Self::Interrupted { signal, .. } => write!(f, "interrupted by {signal}"),
        }
    }
}

/// The failed rank to blame, as an index into `ends`, which are in order of time.
///
/// Only ranks that failed by themselves count. One that was killed, panicked, or says with its exit code what
/// happened (2: wrong usage, 130: interrupted) goes before one that exited with another error.
pub fn root_cause(ends: &[RankEnd], panicked: impl Fn(usize) -> bool) -> Option<usize> {
    const RUST_PANIC: i32 = 101;
    let speaks = |end: &RankEnd| match end.ending {
        Ending::Signal(_) => true,
        Ending::Code(code) => matches!(code, 2 | 130 | RUST_PANIC) || panicked(end.rank),
        Ending::Stuck => false,
    };
    let failed = |end: &RankEnd| !end.stopped && !end.ending.is_success();
    (0..ends.len()).filter(|i| failed(&ends[*i])).min_by_key(|i| !speaks(&ends[*i]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(rank: usize, ending: Ending, stopped: bool) -> RankEnd {
        RankEnd { rank, ending, after: Duration::from_millis(1500), stopped }
    }

    #[test]
    fn blames_the_cause_and_not_the_witness() {
        let (one, kill) = (Ending::Code(1), Ending::Signal(9));
        let root = |ends: &[RankEnd]| root_cause(ends, |rank| rank == 7).map(|i| ends[i].rank);
        assert_eq!(root(&[end(3, one, false), end(1, one, false)]), Some(3));
        assert_eq!(root(&[end(3, one, false), end(1, kill, false)]), Some(1));
        assert_eq!(root(&[end(3, one, false), end(1, kill, true)]), Some(3));
        assert_eq!(root(&[end(3, one, false), end(7, one, false)]), Some(7));
        assert_eq!(
            root(&[end(3, one, false), end(1, Ending::Code(101), false), end(2, kill, false)]),
            Some(1)
        );
        assert_eq!(root(&[end(0, Ending::Code(0), false), end(1, kill, true)]), None);
    }

    #[test]
    fn the_report_starts_with_rank_and_cause() {
        let failure = Failure {
            root: end(1, Ending::Signal(9), false),
            panic: vec![],
            last_lines: vec!["step 3".into()],
            log: "runs/a/rank-1.log".into(),
            others: vec![end(0, Ending::Code(1), true)],
        };
        let outcome = Outcome::Failed(failure);
        assert_eq!(outcome.exit_code(), 1);
        assert_eq!(
            outcome.to_string(),
            "rank 1 failed: killed by SIGKILL (9) after 1.5 s\n  the last lines of runs/a/rank-1.log:\n    step 3\n  \
             rank 0: exit code 1 after 1.5 s, stopped by the launcher"
        );
    }
}
