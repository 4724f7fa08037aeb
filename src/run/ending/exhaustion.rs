//! A rank that ended because memory was exhausted.

use std::fs;
use std::path::Path;

use brigade_launch::{ExitReason, Outcome, RankFailure};
use brigade_report::{HumanBytes, PLANNED_MEMORY_FILE, memory_capacity, oom_kills};

use crate::error::print_stderr;
use crate::folder::MEMORY_PLAN;

const SIGABRT: i32 = 6;
const SIGKILL: i32 = 9;

/// Recognises ranks of this node that ended because memory was exhausted.
pub(crate) struct ExhaustionWatch<'a> {
    /// The run's folder.
    dir: &'a Path,
    node: usize,
    /// Processes that the kernel had killed for it when this was last looked at.
    kills: Option<u64>,
}

impl<'a> ExhaustionWatch<'a> {
    /// From now on. A note of an earlier run in the folder is removed.
    pub(crate) fn begin(dir: &'a Path, node: usize) -> Self {
        for note in [MEMORY_PLAN, PLANNED_MEMORY_FILE] {
            drop(fs::remove_file(dir.join(note)));
        }
        Self { dir, node, kills: oom_kills() }
    }

    /// If the root cause of the outcome is that memory was exhausted, prints that, and what the run was expected to
    /// need.
    pub(crate) fn explain(&mut self, outcome: &Outcome) {
        let kills = oom_kills();
        let killed = kills.zip(self.kills).is_some_and(|(now, before)| now > before);
        self.kills = kills;
        let Outcome::Failed(failure) = outcome else { return };
        let Some(evidence) = evidence(failure, killed).filter(|_| failure.node == self.node) else { return };
        let rank = failure.root_cause.rank;
        print_stderr(format_args!("brigade: rank {rank} ran out of memory: {evidence}; {}", self.plan()));
    }

    /// What rank 0 noted before it trained; without that, what the machine has.
    fn plan(&self) -> String {
        let noted = fs::read_to_string(self.dir.join(MEMORY_PLAN)).ok();
        noted.unwrap_or_else(|| {
            let has = memory_capacity()
                .map(|capacity| format!("{} are {} now; ", HumanBytes(capacity.available), capacity.source));
            format!("{}--dry-run says what the run needs", has.unwrap_or_default())
        })
    }
}

/// How it is known that a rank ran out of memory. `killed`: whether the kernel has killed processes for that.
fn evidence(failure: &RankFailure, killed: bool) -> Option<String> {
    // The text of Rust's own handler; what cannot be allocated ends in an abort.
    let refused =
        |line: &&String| line.starts_with("memory allocation of ") && line.contains(" bytes failed");
    match failure.root_cause.reason {
        ExitReason::Signal(SIGABRT) => failure.last_lines.iter().rev().find(refused).cloned(),
        ExitReason::Signal(SIGKILL) if killed => {
            Some("the kernel's out-of-memory killer has ended a process of its control group".to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use brigade_launch::RankExit;

    use super::*;

    #[test]
    fn a_kill_is_exhaustion_only_if_the_kernel_counts_one() {
        let failure = |signal, line: &str| RankFailure {
            root_cause: RankExit {
                rank: 1,
                reason: ExitReason::Signal(signal),
                after: Duration::ZERO,
                stopped_by_launcher: false,
            },
            node: 0,
            host: String::new(),
            nnodes: 1,
            restarts: 0,
            panic: vec![],
            last_lines: vec!["step 3".into(), line.into(), String::new()],
            last_heartbeat: None,
            log: Default::default(),
            stopped_ranks: vec![],
            others: vec![],
        };
        assert_eq!(evidence(&failure(9, ""), false), None);
        assert!(evidence(&failure(9, ""), true).is_some_and(|text| text.contains("out-of-memory killer")));
        let line = "memory allocation of 4096 bytes failed";
        assert_eq!(evidence(&failure(6, line), false).as_deref(), Some(line));
        assert_eq!(evidence(&failure(6, "assertion failed"), true), None);
        assert_eq!(evidence(&failure(11, line), true), None);
    }
}
