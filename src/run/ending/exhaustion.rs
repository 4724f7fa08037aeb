//! A rank that ended because memory was exhausted.

use std::fs;
use std::path::Path;

use brigade_launch::{ExitReason, Outcome, RankFailure};
use brigade_report::{HumanBytes, PLANNED_MEMORY_FILE, memory_capacity, oom_kills};

use crate::error::print_stderr;
use crate::folder::MEMORY_PLAN;

const SIGABRT: i32 = 6;
const SIGKILL: i32 = 9;

/// Words by which CubeCL, wgpu, drivers of GPUs and NCCL say that a device has no memory left, in small letters.
const OF_DEVICES: [&str; 6] = [
    "out of device memory",
    "out-of-memory error",
    "out_of_memory",
    "failure 2 'out of memory'",
    "not enough memory left",
    "wgpu error: out of memory",
];

/// Recognises ranks of this machine that ended because memory was exhausted.
pub(crate) struct ExhaustionWatch<'a> {
    /// The run's folder.
    dir: &'a Path,
    /// Processes that the kernel had killed for it when this was last looked at.
    kills: Option<u64>,
}

impl<'a> ExhaustionWatch<'a> {
    /// From now on, for a launcher. A note of an earlier run in the folder is removed.
    pub(crate) fn of_node(dir: &'a Path) -> Self {
        for note in [MEMORY_PLAN, PLANNED_MEMORY_FILE] {
            drop(fs::remove_file(dir.join(note)));
        }
        Self { dir, kills: oom_kills() }
    }

    /// From now on, for a rank that another launcher has started: that one can say what ended a rank, but not what the run needs. The
    /// folder is that of rank 0, which removes the notes.
    pub(crate) fn of_rank(dir: &'a Path, rank: usize) -> Self {
        if rank == 0 { Self::of_node(dir) } else { Self { dir, kills: oom_kills() } }
    }

    /// If the root cause of the outcome is that memory was exhausted on this node, prints that, and what the run was expected to
    /// need.
    pub(crate) fn explain(&mut self, outcome: &Outcome, node: usize) {
        let killed = self.has_killed();
        let Outcome::Failed(failure) = outcome else { return };
        let Some(evidence) = evidence(failure, killed).filter(|_| failure.node == node) else { return };
        let rank = failure.root_cause.rank;
        print_stderr(format_args!("brigade: rank {rank} ran out of memory: {evidence}; {}", self.plan()));
    }

    /// The same for a rank that has failed: by itself, with this text, or because another one is gone, which it may be there to tell.
    pub(crate) fn explain_failure(&mut self, rank: usize, own: Option<&str>, tells_of_others: bool) {
        let evidence = match own.and_then(|text| device_evidence(text.lines())) {
            Some(line) => format!("rank {rank} ran out of memory: {line}"),
            None if tells_of_others && self.has_killed() => KILLED.to_owned(),
            None => return,
        };
        print_stderr(format_args!("brigade: {evidence}; {}", self.plan()));
    }

    /// Whether the kernel has killed processes since this was last looked at.
    fn has_killed(&mut self) -> bool {
        let before = std::mem::replace(&mut self.kills, oom_kills());
        self.kills.zip(before).is_some_and(|(now, before)| now > before)
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

const KILLED: &str = "the kernel's out-of-memory killer has ended a process of its control group";

/// How it is known that a rank ran out of memory. `killed`: whether the kernel has killed processes for that.
fn evidence(failure: &RankFailure, killed: bool) -> Option<String> {
    // The text of Rust's own handler; what cannot be allocated ends in an abort.
    let refused =
        |line: &&String| line.starts_with("memory allocation of ") && line.contains(" bytes failed");
    let printed = || failure.last_lines.iter().filter(|line| line.starts_with("brigade: "));
    match failure.root_cause.reason {
        ExitReason::Signal(SIGABRT) => failure.last_lines.iter().rev().find(refused).cloned(),
        ExitReason::Signal(SIGKILL) if killed => Some(KILLED.to_owned()),
        ExitReason::Signal(_) => None,
        _ => device_evidence(failure.panic.iter().chain(printed()).map(String::as_str)).map(str::to_owned),
    }
}

/// The line of a failure's text that says that a device's memory was exhausted.
fn device_evidence<'a>(mut lines: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let says = |line: &&str| {
        let line = line.to_lowercase();
        OF_DEVICES.iter().any(|words| line.contains(words))
    };
    lines.find(says).map(|line| line.trim_start_matches("brigade: ").trim())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use brigade_launch::RankExit;

    use super::*;

    fn failure(reason: ExitReason, panic: &[&str], line: &str) -> RankFailure {
        RankFailure {
            root_cause: RankExit { rank: 1, reason, after: Duration::ZERO, stopped_by_launcher: false },
            node: 0,
            host: String::new(),
            nnodes: 1,
            restarts: 0,
            panic: panic.iter().map(|line| (*line).to_owned()).collect(),
            last_lines: vec!["step 3".into(), line.into(), String::new()],
            last_heartbeat: None,
            log: Default::default(),
            stopped_ranks: vec![],
            others: vec![],
        }
    }

    #[test]
    fn a_kill_is_exhaustion_only_if_the_kernel_counts_one() {
        let failure = |signal, line| failure(ExitReason::Signal(signal), &[], line);
        assert_eq!(evidence(&failure(9, ""), false), None);
        assert!(evidence(&failure(9, ""), true).is_some_and(|text| text.contains("out-of-memory killer")));
        let line = "memory allocation of 4096 bytes failed";
        assert_eq!(evidence(&failure(6, line), false).as_deref(), Some(line));
        assert_eq!(evidence(&failure(6, "assertion failed"), true), None);
        assert_eq!(evidence(&failure(11, line), true), None);
    }

    #[test]
    fn a_device_without_memory_left_is_recognised_by_what_its_runtime_says() {
        let out = "out of device memory allocating 1073741824 bytes";
        let panic = [
            "called `Result::unwrap()` on an `Err` value: Io",
            out,
            "   0: std::backtrace::Backtrace::create",
        ];
        let ended = |panic: &[&str], line| evidence(&failure(ExitReason::Code(101), panic, line), false);
        assert_eq!(ended(&panic, "").as_deref(), Some(out));
        let driver = "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")";
        assert_eq!(ended(&[driver], "").as_deref(), Some(driver));
        let nccl = "brigade: rank 1: NCCL: Cuda failure 2 'out of memory'";
        assert_eq!(ended(&[], nccl).as_deref(), Some("rank 1: NCCL: Cuda failure 2 'out of memory'"));
        for line in ["wgpu error: Out of Memory", "Error in Device::create_buffer: Not enough memory left."] {
            assert_eq!(ended(&[line], "").as_deref(), Some(line));
        }
        // What a program prints on its way is not why it ended.
        assert_eq!(ended(&["index out of bounds"], "the log speaks of out of device memory"), None);
    }
}
