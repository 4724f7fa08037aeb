//! What is killed, and when: chosen at random.

use std::time::Duration;

use crate::chaos::choices::Choices;

/// Which processes are killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Victim {
    /// One of the ranks.
    Rank,
    /// The launcher.
    Launcher,
    /// The launcher and one of the ranks.
    Both,
}

/// The event after which the random delay begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// None: the delay is within the time that a start takes.
    Start,
    /// None: at any time.
    Anywhere,
    /// A save has begun to be written.
    Writing,
    /// The manifest of a save is being written: it is about to be visible.
    Publishing,
    /// A checkpoint has become visible, so that an older one is removed.
    Removing,
    /// The last step is done.
    End,
}

/// One kill as it was chosen.
#[derive(Clone, Copy, Debug)]
pub struct KillPlan {
    pub victim: Victim,
    pub moment: Moment,
    pub delay: Duration,
}

/// Moments with their shares, in percent, and the longest time after them, in microseconds.
const MOMENTS: [(Moment, u64, u64); 6] = [
    (Moment::Start, 10, 80_000),
    (Moment::Anywhere, 15, 1_000_000),
    (Moment::Writing, 35, 6_000),
    (Moment::Publishing, 15, 2_000),
    (Moment::Removing, 10, 2_000),
    (Moment::End, 15, 20_000),
];

impl KillPlan {
    /// The next kill; of ranks only, if the launcher is to restart them.
    pub fn choose(choices: &mut Choices, only_ranks: bool) -> Self {
        let victim = match choices.below(3) {
            0 if !only_ranks => Victim::Launcher,
            1 if !only_ranks => Victim::Both,
            _ => Victim::Rank,
        };
        let mut share = choices.below(100);
        let (moment, _, most) = MOMENTS
            .into_iter()
            .find(|(_, percent, _)| {
                let hit = share < *percent;
                share = share.saturating_sub(*percent);
                hit
            })
            .unwrap_or(MOMENTS[0]);
        Self { victim, moment, delay: Duration::from_micros(choices.below(most)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_depend_on_seed_and_run_alone() {
        let plans = |run| {
            let mut choices = Choices::new(7, run);
            (0..300)
                .map(|_| KillPlan::choose(&mut choices, false))
                .map(|plan| (plan.victim, plan.moment as u8, plan.delay))
                .collect::<Vec<_>>()
        };
        assert_eq!(plans(3), plans(3));
        assert_ne!(plans(3), plans(4));
        assert_eq!(MOMENTS.iter().map(|(_, percent, _)| percent).sum::<u64>(), 100);
        for (moment, percent, _) in MOMENTS {
            let hits = plans(1).iter().filter(|(_, chosen, _)| *chosen == moment as u8).count() as u64;
            assert!(hits > percent && hits < 6 * percent, "{moment:?}: {hits} of 300");
        }
        let mut choices = Choices::new(0, 0);
        assert!((0..100).all(|_| KillPlan::choose(&mut choices, true).victim == Victim::Rank));
    }
}
