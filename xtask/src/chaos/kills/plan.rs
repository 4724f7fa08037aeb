//! What is killed, and when.

use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// The choices of one run.
pub struct Draw(ChaCha8Rng);

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Victim {
    /// One of the ranks.
    Rank,
    /// The launcher.
    Launcher,
    /// The launcher and one of the ranks.
    Both,
}

/// What is waited for before the drawn time begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// Nothing: within the time that a start takes.
    Start,
    /// Nothing: at any time.
    Anywhere,
    /// A save has begun to be written.
    Writing,
    /// The manifest of a save is being written: it is about to be visible.
    Publishing,
    /// A checkpoint has become visible, so that an older one goes.
    Removing,
    /// The last step is done.
    End,
}

/// One kill as it was drawn.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub victim: Victim,
    pub aim: Aim,
    pub delay: Duration,
}

/// Aims with their shares, in percent, and the longest time after them, in microseconds.
const AIMS: [(Aim, u64, u64); 6] = [
    (Aim::Start, 10, 80_000),
    (Aim::Anywhere, 15, 1_000_000),
    (Aim::Writing, 35, 6_000),
    (Aim::Publishing, 15, 2_000),
    (Aim::Removing, 10, 2_000),
    (Aim::End, 15, 20_000),
];

impl Draw {
    /// The choices of the run of a number.
    pub fn new(seed: u64, run: u32) -> Self {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        generator.set_stream(run.into());
        Self(generator)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.next_u64() % end.max(1)
    }

    /// One of some things.
    pub fn one<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        let index = self.below(of.len() as u64);
        of.get(index as usize).copied()
    }

    /// The next kill; of a rank only, where the launcher is to see to the rest.
    pub fn kill(&mut self, only_ranks: bool) -> Plan {
        let victim = match self.below(3) {
            0 if !only_ranks => Victim::Launcher,
            1 if !only_ranks => Victim::Both,
            _ => Victim::Rank,
        };
        let mut share = self.below(100);
        let (aim, _, most) = AIMS
            .into_iter()
            .find(|(_, percent, _)| {
                let hit = share < *percent;
                share = share.saturating_sub(*percent);
                hit
            })
            .unwrap_or(AIMS[0]);
        Plan { victim, aim, delay: Duration::from_micros(self.below(most)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_drawn_alike_each_time_and_not_like_others() {
        let plans = |run| {
            let mut draw = Draw::new(7, run);
            (0..300)
                .map(|_| draw.kill(false))
                .map(|plan| (plan.victim, plan.aim as u8, plan.delay))
                .collect::<Vec<_>>()
        };
        assert_eq!(plans(3), plans(3));
        assert_ne!(plans(3), plans(4));
        assert_eq!(AIMS.iter().map(|(_, percent, _)| percent).sum::<u64>(), 100);
        for (aim, percent, _) in AIMS {
            let hits = plans(1).iter().filter(|(_, drawn, _)| *drawn == aim as u8).count() as u64;
            assert!(hits > percent && hits < 6 * percent, "{aim:?}: {hits} of 300");
        }
        let mut draw = Draw::new(0, 0);
        assert!((0..100).all(|_| draw.kill(true).victim == Victim::Rank));
    }
}
