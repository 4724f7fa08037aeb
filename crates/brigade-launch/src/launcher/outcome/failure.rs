//! Why a run failed, as a report to read: the root cause first, then how the other ranks ended.

use std::{fmt, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    rank_exit::{ExitReason, RankExit, signal_name},
    report::LostNode,
};
use crate::exit;

/// Other ranks that a report shows at most.
const SHOWN_OTHERS: usize = 32;

/// Why a run failed. `Display` gives the whole report: cause first, then the other ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankFailure {
    /// The exit of the rank that failed first.
    pub root_cause: RankExit,
    /// The number of its node.
    pub node: usize,
    /// The name of its host.
    pub host: String,
    /// The number of nodes.
    pub nnodes: usize,
    /// How often the ranks had been restarted before.
    pub restarts: u32,
    /// The text of its panic, if it panicked.
    pub panic: Vec<String>,
    /// The last lines of its output.
    pub last_lines: Vec<String>,
    /// The message of its last [heartbeat](crate::HeartbeatSender), if it sent any.
    pub last_heartbeat: Option<String>,
    /// Its log, on its host.
    pub log: PathBuf,
    /// Ranks that were stopped by a signal when the run failed, which may be why the others failed.
    pub stopped_ranks: Vec<StoppedRank>,
    /// The other ranks of all nodes, in the order in which they exited.
    pub others: Vec<OtherRank>,
}

/// A rank that is stopped by a signal (SIGSTOP, SIGTSTP) instead of running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoppedRank {
    /// The rank.
    pub rank: usize,
    /// The signal.
    pub signal: i32,
    /// For how long it had been stopped when the run failed.
    pub duration: Duration,
}

impl fmt::Display for StoppedRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, signal, duration } = self;
        write!(
            f,
            "rank {rank} has been stopped by {} for {:.1} s",
            signal_name(*signal),
            duration.as_secs_f64()
        )
    }
}

/// A rank that is not the root cause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherRank {
    /// Its exit.
    pub exit: RankExit,
    /// The last line of its output that reports an error; where none does, its last line, unless it was killed.
    pub error_line: Option<String>,
    /// The message of its last [heartbeat](crate::HeartbeatSender), if it sent any.
    pub last_heartbeat: Option<String>,
}

impl fmt::Display for OtherRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.exit.fmt(f)?;
        if let Some(line) = self.error_line.as_ref().filter(|_| !self.exit.reason.is_success()) {
            write!(f, ", said: {line}")?;
        }
        Ok(())
    }
}

impl RankFailure {
    /// What the rank said of it: its panic, or the last line of its output that reports an error; where none does, its last line,
    /// unless it was killed.
    pub fn error_line(&self) -> Option<String> {
        error_line(self.root_cause.reason, &self.panic, self.last_lines.iter().rev().map(String::as_str))
    }
}

/// The line that says why a rank failed, of the text of its panic and of its output from the last line to the first. A rank
/// that was killed has not said why, so its last line may be about anything.
pub(crate) fn error_line<'a>(
    reason: ExitReason,
    panic: &[String],
    backwards: impl Iterator<Item = &'a str> + Clone,
) -> Option<String> {
    let is_error = |line: &&str| line.starts_with("brigade: ") || line.to_lowercase().contains("error");
    let panicked = panic.get(1).map(String::as_str);
    let reported = || backwards.clone().find(is_error);
    let last = || backwards.clone().find(|line| !line.trim().is_empty() && reason.is_own());
    let found = panicked.or_else(reported).or_else(last);
    found.map(|line| line.strip_prefix("brigade: ").unwrap_or(line).trim().to_owned())
}

impl fmt::Display for RankFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { root_cause: root, .. } = self;
        let is_silent = matches!(root.reason, ExitReason::HeartbeatTimeout(_));
        match root.reason {
            ExitReason::HeartbeatTimeout(silence) => {
                write!(
                    f,
                    "rank {} has sent no heartbeat for {} s (--heartbeat-timeout)",
                    root.rank,
                    silence.as_secs()
                )?;
                if let Some(message) = &self.last_heartbeat {
                    write!(f, "; the last one said `{message}`")?;
                }
            }
            reason => {
                let panic = if self.panic.is_empty() { "" } else { "panic, " };
                let after = root.after.as_secs_f64();
                write!(f, "rank {} failed: {panic}{reason} after {after:.1} s", root.rank)?;
            }
        }
        if self.nnodes > 1 {
            write!(f, " on node {} ({})", self.node, self.host)?;
        }
        write_restarts(f, self.restarts)?;
        for stopped in &self.stopped_ranks {
            write!(f, "\n  likely cause: {stopped}")?;
        }
        for line in &self.panic {
            write!(f, "\n    {line}")?;
        }
        match self.last_lines.is_empty() {
            true => write!(f, "\n  it printed nothing (log {})", self.log.display())?,
            false => write!(f, "\n  the last lines of {}:", self.log.display())?,
        }
        for line in &self.last_lines {
            write!(f, "\n    {line}")?;
        }
        write_others(f, &self.others, is_silent)
    }
}

/// A run that failed because a node's launcher died or cannot be reached, and with it that node's ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFailure {
    /// The node, where it is known.
    pub node: Option<usize>,
    /// The name of its host, where it is known.
    pub host: Option<String>,
    /// How that was noticed.
    pub reason: String,
    /// When, since the ranks of all nodes were started; `None` if they were not running.
    pub after: Option<Duration>,
    /// How often the ranks had been restarted before.
    pub restarts: u32,
    /// The ranks of this node, in the order in which they exited.
    pub others: Vec<OtherRank>,
    /// Whether the run continues from what it has saved when it is started again: it was preempted, or is elastic and lacks nodes.
    pub start_again: bool,
}

impl NodeFailure {
    /// Of a node that is one of these by its place, with their numbers and hosts.
    pub(crate) fn new(lost: LostNode, nodes: &[(usize, String)], restarts: u32) -> Self {
        let LostNode { node, reason, after } = lost;
        let (node, host) = node.and_then(|node| nodes.get(node).cloned()).unzip();
        Self { node, host, reason, after, restarts, others: vec![], start_again: false }
    }
}

impl fmt::Display for NodeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.node, &self.host) {
            (Some(node), Some(host)) => write!(f, "node {node} ({host}) is lost")?,
            (Some(node), None) => write!(f, "node {node} is lost")?,
            (None, _) => f.write_str("the launchers of the nodes lost each other")?,
        }
        if let Some(after) = self.after {
            write!(f, " after {:.1} s", after.as_secs_f64())?;
        }
        write!(f, ": {}", self.reason)?;
        write_restarts(f, self.restarts)?;
        if self.start_again {
            let code = exit::PREEMPTED;
            write!(f, "; when restarted, the run continues from what it has saved (exit code {code})")?;
        }
        write_others(f, &self.others, false)
    }
}

fn write_restarts(f: &mut fmt::Formatter<'_>, restarts: u32) -> fmt::Result {
    match restarts {
        0 => Ok(()),
        1 => f.write_str(" (after 1 restart)"),
        n => write!(f, " (after {n} restarts)"),
    }
}

/// One line each, with the last heartbeats where these show who waited for whom.
fn write_others(f: &mut fmt::Formatter<'_>, others: &[OtherRank], with_heartbeats: bool) -> fmt::Result {
    for other in others.iter().take(SHOWN_OTHERS) {
        write!(f, "\n  {other}")?;
        if let Some(message) = other.last_heartbeat.as_ref().filter(|_| with_heartbeats) {
            write!(f, ", its last heartbeat said `{message}`")?;
        }
    }
    match others.len().saturating_sub(SHOWN_OTHERS) {
        0 => Ok(()),
        1 => f.write_str("\n  and 1 more rank"),
        more => write!(f, "\n  and {more} more ranks"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(rank: usize, reason: ExitReason, stopped_by_launcher: bool) -> RankExit {
        RankExit { rank, reason, after: Duration::from_millis(1500), stopped_by_launcher }
    }

    fn failure() -> RankFailure {
        let other = |rank, line: &str| OtherRank {
            exit: exit(rank, ExitReason::Code(1), true),
            error_line: Some(line.into()),
            last_heartbeat: Some("step 3: all-reduce".into()),
        };
        RankFailure {
            root_cause: exit(1, ExitReason::Signal(9), false),
            node: 0,
            host: "a".into(),
            nnodes: 1,
            restarts: 0,
            panic: vec![],
            last_lines: vec!["step 3".into()],
            last_heartbeat: None,
            log: "runs/a/rank-1.log".into(),
            stopped_ranks: vec![],
            others: vec![other(0, "rank 1 died")],
        }
    }

    #[test]
    fn the_report_starts_with_rank_and_cause() {
        assert_eq!(
            failure().to_string(),
            "rank 1 failed: killed by SIGKILL (9) after 1.5 s\n  the last lines of runs/a/rank-1.log:\n    step 3\n  \
             rank 0: exit code 1 after 1.5 s, stopped by the launcher, said: rank 1 died"
        );
    }

    #[test]
    fn the_report_has_node_restarts_stopped_ranks_and_last_heartbeats() {
        let failure = RankFailure {
            root_cause: exit(1, ExitReason::HeartbeatTimeout(Duration::from_secs(600)), false),
            nnodes: 2,
            restarts: 2,
            last_heartbeat: Some("step 3: reading data".into()),
            stopped_ranks: vec![StoppedRank { rank: 1, signal: 19, duration: Duration::from_millis(14_200) }],
            ..failure()
        };
        let text = failure.to_string();
        let mut lines = text.lines();
        assert_eq!(
            lines.next(),
            Some(
                "rank 1 has sent no heartbeat for 600 s (--heartbeat-timeout); the last one said `step 3: reading data` on node 0 (a) (after 2 restarts)"
            )
        );
        assert_eq!(lines.next(), Some("  likely cause: rank 1 has been stopped by SIGSTOP (19) for 14.2 s"));
        assert!(text.ends_with("its last heartbeat said `step 3: all-reduce`"), "{text}");
    }

    #[test]
    fn a_killed_rank_has_not_said_why() {
        let said = |reason, last_lines: &[&str]| {
            let last_lines = last_lines.iter().map(ToString::to_string).collect();
            RankFailure { root_cause: exit(1, reason, false), last_lines, ..failure() }.error_line()
        };
        let step = ["step 3/9 loss 1.5", ""];
        assert_eq!(said(ExitReason::Signal(9), &step), None);
        assert_eq!(said(ExitReason::HeartbeatTimeout(Duration::from_secs(9)), &step), None);
        assert_eq!(
            said(ExitReason::Signal(9), &["brigade: the disk is full", "step 3"]).unwrap(),
            "the disk is full"
        );
        let memory = "memory allocation of 64 bytes failed";
        assert_eq!(said(ExitReason::Signal(6), &[memory]).unwrap(), memory);
        assert_eq!(said(ExitReason::Code(1), &step).unwrap(), step[0]);
    }

    #[test]
    fn a_report_of_many_ranks_stays_short() {
        let mut failure = failure();
        failure.others = vec![failure.others[0].clone(); 1000];
        assert!(failure.to_string().ends_with("and 968 more ranks"));
        assert_eq!(failure.to_string().lines().count(), 3 + SHOWN_OTHERS + 1);
    }
}
