//! Idle time as text.

use std::fmt;

use brigade_report::duration;

use super::{Advice, Idle, IdleCause, IdleTime, Reason};

/// Smaller shares are not named.
const NAMED: f64 = 0.005;

/// How many causes of a rank are named.
const MAX_CAUSES: usize = 4;

impl fmt::Display for Idle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = self.steps;
        let steps = if first == last { format!("step {first}") } else { format!("steps {first} to {last}") };
        writeln!(
            f,
            "{steps}, {} each; clocks agree within {}",
            duration(self.step_seconds),
            duration(self.clock_error)
        )?;
        for rank in &self.ranks {
            self.write_rank(f, rank)?;
        }
        match &self.advice {
            Some(advice) => write!(f, "{advice}"),
            None => Ok(()),
        }
    }
}

impl Idle {
    fn write_rank(&self, f: &mut fmt::Formatter<'_>, idle: &IdleTime) -> fmt::Result {
        let named = idle.causes.iter().filter(|cause| cause.share >= NAMED).take(MAX_CAUSES);
        let causes: Vec<String> = named.map(|cause| self.cause(idle, cause)).collect();
        let causes = if causes.is_empty() { String::new() } else { format!(": {}", causes.join(", ")) };
        write!(f, "rank {} waits {:.0}%{causes}", idle.rank, 100.0 * idle.share)?;
        match idle.other >= NAMED {
            true => writeln!(f, "; {:.0}% more is unaccounted for", 100.0 * idle.other),
            false => writeln!(f),
        }
    }

    fn cause(&self, idle: &IdleTime, cause: &IdleCause) -> String {
        let percent = format!("{:.0}%", 100.0 * cause.share);
        match &cause.reason {
            Reason::Data => format!("{percent} for data"),
            Reason::Communication { what } if what == "pipeline" => {
                format!("{percent} sending messages")
            }
            Reason::Communication { what } => format!("{percent} for {what} itself"),
            Reason::LastRank { rank, what } => {
                format!("{percent} for rank {rank}, the last to reach {what}")
            }
            Reason::Stage { rank } => {
                let stage = self.ranks.get(*rank).map_or(0, |other| other.stage);
                let more = self.advice.as_ref().and_then(|advice| {
                    let factor = advice.stages.get(stage)? / advice.stages.get(idle.stage)?;
                    (factor > 1.05).then(|| format!(" (stage {stage} has {factor:.2} times its work)"))
                });
                format!("{percent} for rank {rank}{}", more.unwrap_or_default())
            }
        }
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stages: Vec<String> = self.stages.iter().map(|seconds| duration(*seconds)).collect();
        writeln!(f, "a micro-batch takes {} on the stages", stages.join(", "))?;
        let idle = 100.0 * self.idle;
        match &self.split {
            Some(split) => writeln!(
                f,
                "the schedule leaves {idle:.0}% idle with that; `pipeline.stages = {split:?}` would leave {:.0}%",
                100.0 * self.split_idle
            ),
            None => writeln!(
                f,
                "the schedule leaves {idle:.0}% idle with that, and the split that balances these times would not leave less"
            ),
        }
    }
}
