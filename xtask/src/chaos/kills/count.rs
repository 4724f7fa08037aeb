//! What was killed, and how the runs ended.

use std::collections::BTreeMap;
use std::fmt;

use super::plan::Victim;
use crate::chaos::run::Activity;

/// Counts over all runs. `Display` gives a table.
#[derive(Debug, Default)]
pub struct Counts {
    kills: BTreeMap<(Victim, Activity), u32>,
    /// Runs that finished as they should.
    pub runs: u32,
    /// Commands that started or resumed a run.
    pub starts: u32,
    /// Those that resumed from a checkpoint.
    pub resumes: u32,
    /// Times that the launcher itself started ranks again.
    pub restarts: u32,
    /// Checkpoints of which every byte was verified.
    pub verified: usize,
}

const ACTIVITIES: [(Activity, &str); 6] = [
    (Activity::Start, "start"),
    (Activity::Training, "training"),
    (Activity::Writing, "writing"),
    (Activity::Publishing, "publishing"),
    (Activity::Removing, "removing"),
    (Activity::End, "end"),
];

const VICTIMS: [(Victim, &str); 3] =
    [(Victim::Rank, "a rank"), (Victim::Launcher, "the launcher"), (Victim::Both, "both")];

impl Counts {
    pub fn killed(&mut self, victim: Victim, during: Activity) {
        *self.kills.entry((victim, during)).or_default() += 1;
    }

    pub fn kills(&self) -> u32 {
        self.kills.values().sum()
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |f: &mut fmt::Formatter<'_>, name: &str, of: &dyn Fn(Victim, Activity) -> bool| {
            write!(f, "{name:<14}")?;
            let count = |activity| {
                let hits = self
                    .kills
                    .iter()
                    .filter(|((victim, during), _)| *during == activity && of(*victim, *during));
                hits.map(|(_, count)| count).sum::<u32>()
            };
            for (activity, _) in ACTIVITIES {
                write!(f, "{:>11}", count(activity))?;
            }
            writeln!(f, "{:>11}", ACTIVITIES.iter().map(|(activity, _)| count(*activity)).sum::<u32>())
        };
        write!(f, "{:<14}", "killed during")?;
        ACTIVITIES.iter().try_for_each(|(_, name)| write!(f, "{name:>11}"))?;
        writeln!(f, "{:>11}", "all")?;
        for (victim, name) in VICTIMS {
            line(f, name, &|killed, _| killed == victim)?;
        }
        line(f, "all", &|_, _| true)?;
        writeln!(f, "runs              {} finished, all with the same bytes", self.runs)?;
        writeln!(f, "starts            {}, {} of them from a checkpoint", self.starts, self.resumes)?;
        writeln!(f, "restarts          {} by the launcher", self.restarts)?;
        writeln!(f, "checkpoints       {} verified whole", self.verified)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_are_counted_by_victim_and_activity() {
        let mut counts = Counts::default();
        counts.killed(Victim::Rank, Activity::Writing);
        counts.killed(Victim::Rank, Activity::Writing);
        counts.killed(Victim::Both, Activity::End);
        assert_eq!(counts.kills(), 3);
        let text = counts.to_string();
        let row = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().map(|word| word.parse::<u32>().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(row("a rank"), [0, 0, 2, 0, 0, 0, 2]);
        assert_eq!(row("both"), [0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(row("all"), [0, 0, 2, 0, 0, 1, 3]);
    }
}
