//! Problems of a run in progress, in one line each.

use std::collections::VecDeque;
use std::path::PathBuf;

use crate::median::median;
use crate::record::{RankSeconds, StepRecord};
use crate::timeline::PROFILE_FOLDER;

/// Steps that are not looked at: buffers are allocated, caches are cold.
const WARM_UP: u64 = 5;

/// Steps that are looked at together.
const WINDOW: usize = 10;

/// Steps among which something that happens in some of them alone is looked for.
const LONG_WINDOW: usize = 40;

/// In fewer steps something may have taken long by chance.
const FEWEST_LONG: usize = 3;

/// How much longer than usual a wait must be to be long, as a share of a step.
const LONG: f64 = 0.1;

/// Waiting for data for more than this share of the time is worth a word.
const DATA: f64 = 0.05;

/// How many times as long as its peers a rank computes that is worth one.
const SLOW: f64 = 1.2;

/// By how much of a step the pipeline may be idle for longer than its schedule says.
const BUBBLE: f64 = 0.05;

/// Steps for a timeline: of any run that is long enough for a warning, after its warm-up.
const PROFILED: &str = "10..12";

/// Looks at the last steps. Each kind of problem is reported once.
pub(super) struct Warnings {
    dir: PathBuf,
    mesh: Vec<(String, usize)>,
    /// How many ranks are servers, the last ones.
    servers: usize,
    /// The share of a step that the schedule leaves idle; none without a pipeline.
    expected_bubble: Option<f64>,
    seen: u64,
    recent: VecDeque<Recent>,
    said: [bool; 3],
}

/// What counts of a step.
struct Recent {
    step: f64,
    data_wait: f64,
    bubble: f64,
    ranks: Option<RankSeconds>,
}

impl Recent {
    /// Of the rank that waited longest, where ranks are told apart.
    fn longest_data_wait(&self) -> f64 {
        let ranks = self.ranks.iter().flat_map(|ranks| &ranks.data_wait);
        ranks.copied().fold(self.data_wait, f64::max)
    }
}

impl Warnings {
    pub fn new(
        dir: PathBuf,
        mesh: Vec<(String, usize)>,
        servers: usize,
        expected_bubble: Option<f64>,
    ) -> Self {
        Self { dir, mesh, servers, expected_bubble, seen: 0, recent: VecDeque::new(), said: [false; 3] }
    }

    /// Takes a step; returns the warnings to print.
    pub fn after(&mut self, record: &StepRecord) -> Vec<String> {
        self.seen += 1;
        if self.seen <= WARM_UP {
            return Vec::new();
        }
        self.recent.truncate(LONG_WINDOW - 1);
        self.recent.push_front(Recent {
            step: record.step_seconds,
            data_wait: record.data_wait_seconds,
            bubble: record.bubble_seconds,
            ranks: record.rank_seconds.clone(),
        });
        if self.recent.len() < WINDOW {
            return Vec::new();
        }
        let found = [self.data(), self.straggler(), self.bubble()];
        let new = found.into_iter().zip(&mut self.said).filter_map(|(found, said)| {
            let text = found.filter(|_| !*said)?;
            *said = true;
            Some(format!("step {}: {text}", record.step))
        });
        new.collect()
    }

    /// The steps that are looked at together.
    fn latest(&self) -> impl Iterator<Item = &Recent> {
        self.recent.iter().take(WINDOW)
    }

    fn middle(&self, of: impl Fn(&Recent) -> f64) -> f64 {
        middle_of(self.latest().map(of))
    }

    /// The middle of each rank's time; nothing where it is not known.
    fn ranks(&self, of: impl Fn(&RankSeconds) -> &Vec<f64>) -> Vec<f64> {
        let known = || self.latest().filter_map(|recent| Some(of(recent.ranks.as_ref()?)));
        let ranks = known().map(Vec::len).min().unwrap_or(0);
        (0..ranks).map(|rank| middle_of(known().map(|all| all[rank]))).collect()
    }

    fn data(&self) -> Option<String> {
        let mean = self.middle(|recent| recent.data_wait);
        let most = self.ranks(|ranks| &ranks.data_wait).into_iter().fold(mean, f64::max);
        let share = most / self.middle(|recent| recent.step);
        let (share, when) = match share > DATA {
            true => (share, String::new()),
            false => self.data_in_some_steps()?,
        };
        Some(format!(
            "ranks wait {:.0}% of the time for data{when}; `brigade report {}` shows which, and what to change",
            100.0 * share,
            self.dir.display()
        ))
    }

    /// The share of the time that ranks wait for data in some steps alone, and when that is.
    fn data_in_some_steps(&self) -> Option<(f64, String)> {
        let waits = || self.recent.iter().map(Recent::longest_data_wait);
        let (usual, step) = (middle_of(waits()), self.middle(|recent| recent.step));
        let long: Vec<f64> = waits().filter(|wait| *wait > 2.0 * usual + LONG * step).collect();
        let whole: f64 = self.recent.iter().map(|recent| recent.step).sum();
        let (lost, steps) = (long.iter().sum::<f64>(), self.recent.len());
        (long.len() >= FEWEST_LONG && lost / whole > DATA).then(|| {
            let each = lost / long.len() as f64;
            (lost / whole, format!(": {each:.2} s in {} of the last {steps} steps", long.len()))
        })
    }

    fn straggler(&self) -> Option<String> {
        let compute = self.ranks(|ranks| &ranks.compute);
        let workers = compute.len().saturating_sub(self.servers);
        let work = |rank: usize| (self.stage(rank), rank < workers);
        let peers = |rank: usize| -> f64 {
            let same = |other: &usize| *other != rank && work(*other) == work(rank);
            middle_of((0..compute.len()).filter(same).map(|other| compute[other]))
        };
        let factor = |rank: usize| compute[rank] / peers(rank);
        let factors =
            (0..compute.len()).map(|rank| (rank, factor(rank))).filter(|(_, factor)| factor.is_finite());
        let (rank, factor) = factors.max_by(|a, b| a.1.total_cmp(&b.1))?;
        let excess = compute[rank] - peers(rank);
        (factor > SLOW && excess > DATA * self.middle(|recent| recent.step)).then(|| {
            format!(
                "rank {rank} takes {factor:.2} times as long as the other ranks for the same work; `brigade report {}` shows since \
                when",
                self.dir.display()
            )
        })
    }

    fn bubble(&self) -> Option<String> {
        let expected = self.expected_bubble?;
        let share = self.middle(|recent| recent.bubble) / self.middle(|recent| recent.step);
        (share > expected + BUBBLE).then(|| {
            let inspect = format!("`brigade inspect timeline {}`", self.dir.display());
            let how = match self.dir.join(PROFILE_FOLDER).is_dir() {
                true => format!("{inspect} shows why"),
                false => format!("train again with `--profile-steps {PROFILED}`, and {inspect} shows why"),
            };
            format!(
                "the pipeline leaves ranks idle for {:.0}% of a step, but its schedule only for {:.0}%; {how}",
                100.0 * share,
                100.0 * expected
            )
        })
    }

    /// The stage of a rank.
    fn stage(&self, rank: usize) -> usize {
        let Some(at) = self.mesh.iter().position(|(axis, _)| axis == "pp") else { return 0 };
        let inner: usize = self.mesh[at + 1..].iter().map(|(_, size)| size).product();
        rank / inner.max(1) % self.mesh[at].1.max(1)
    }
}

/// The median of some numbers; not a number if there are none.
fn middle_of(values: impl IntoIterator<Item = f64>) -> f64 {
    median(values).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The warnings after 40 steps of 1 s on two stages of two ranks, with what each rank computes and waits for data, and how long ranks are idle.
    fn said(compute: [f64; 4], data_wait: [f64; 4], bubble: f64) -> Vec<String> {
        let mesh = vec![("pp".to_owned(), 2), ("dp".to_owned(), 2)];
        said_by(Warnings::new("runs/a".into(), mesh, 0, Some(0.2)), compute, data_wait, bubble)
    }

    fn said_by(mut warnings: Warnings, compute: [f64; 4], data_wait: [f64; 4], bubble: f64) -> Vec<String> {
        let record = |step| StepRecord {
            step,
            step_seconds: 1.0,
            data_wait_seconds: data_wait.iter().sum::<f64>() / 4.0,
            bubble_seconds: bubble,
            rank_seconds: Some(RankSeconds {
                step: vec![1.0; 4],
                compute: compute.to_vec(),
                data_wait: data_wait.to_vec(),
                comm_wait: vec![0.0; 4],
            }),
            ..StepRecord::default()
        };
        (1..=40).flat_map(|step| warnings.after(&record(step))).collect()
    }

    #[test]
    fn what_is_wrong_is_said_once_with_the_command_that_explains_it() {
        assert!(said([0.7, 0.7, 0.5, 0.5], [0.0, 0.04, 0.0, 0.0], 0.24).is_empty(), "stages may differ");
        let data = "step 15: ranks wait 12% of the time for data; `brigade report runs/a` shows which, and what to change";
        assert_eq!(said([0.7; 4], [0.0, 0.12, 0.0, 0.0], 0.2), [data]);
        let slow = "step 15: rank 3 takes 1.50 times as long as the other ranks for the same work; `brigade report runs/a` shows since when";
        assert_eq!(said([0.7, 0.7, 0.4, 0.6], [0.0; 4], 0.2), [slow]);
        let idle = said([0.7; 4], [0.0; 4], 0.31);
        assert!(idle.len() == 1 && idle[0].contains("idle for 31% of a step"), "{idle:?}");
        let how =
            "train again with `--profile-steps 10..12`, and `brigade inspect timeline runs/a` shows why";
        assert!(idle[0].ends_with(&format!("but its schedule only for 20%; {how}")), "{idle:?}");
    }

    #[test]
    fn waiting_for_data_in_some_steps_alone() {
        let said = |every: u64| -> Vec<String> {
            let mut warnings = Warnings::new("runs/a".into(), Vec::new(), 0, None);
            let record = |step: u64| {
                let waited = if step.is_multiple_of(every) { 1.0 } else { 0.0 };
                StepRecord {
                    step,
                    step_seconds: 0.1 + waited,
                    data_wait_seconds: waited,
                    ..StepRecord::default()
                }
            };
            (1..=60).flat_map(|step| warnings.after(&record(step))).collect()
        };
        let text = "step 30: ranks wait 55% of the time for data: 1.00 s in 3 of the last 25 steps; `brigade report runs/a` shows which, and what to change";
        assert_eq!(said(10), [text]);
        assert!(said(25).is_empty(), "twice is no habit");
    }

    #[test]
    fn a_timeline_that_exists_is_the_one_to_look_at() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(PROFILE_FOLDER)).unwrap();
        let mesh = vec![("pp".to_owned(), 2), ("dp".to_owned(), 2)];
        let warnings = Warnings::new(dir.path().to_owned(), mesh, 0, Some(0.2));
        let idle = said_by(warnings, [0.7; 4], [0.0; 4], 0.31);
        let how = format!("only for 20%; `brigade inspect timeline {}` shows why", dir.path().display());
        assert!(idle.len() == 1 && idle[0].ends_with(&how), "{idle:?}");
    }

    #[test]
    fn workers_are_not_compared_with_servers() {
        let said = |servers, compute| {
            let warnings = Warnings::new("runs/a".into(), vec![("dp".to_owned(), 4)], servers, None);
            said_by(warnings, compute, [0.0; 4], 0.0)
        };
        assert!(said(3, [0.7, 0.03, 0.03, 0.03]).is_empty());
        assert!(said(1, [0.7, 0.7, 0.7, 0.03]).is_empty());
        let slow = said(2, [0.4, 0.6, 0.03, 0.03]);
        assert!(slow.len() == 1 && slow[0].contains("rank 1 takes 1.50 times as long"), "{slow:?}");
    }
}
