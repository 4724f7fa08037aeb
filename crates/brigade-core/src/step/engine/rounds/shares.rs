//! Which worker has which share of a round, and how far workers may be apart.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use brigade_sorted::SortedMap;

/// How often a share may take too long, with no update meanwhile.
const MAX_LATE: u32 = 3;

/// The shares of a round, as the first server gives them out.
pub(super) struct Shares {
    /// Of the whole round.
    total: u64,
    /// Those that have been given out, and those whose gradients are there.
    given: u64,
    pushed: u64,
    /// How many steps the parameters that a worker takes may be ahead of those that another one computes with.
    staleness: u64,
    /// What each worker computes.
    computing: Vec<Option<Computing>>,
    /// Shares of workers that were lost.
    returned: VecDeque<u64>,
    /// Whether workers are lost, so that a share that was given out may be given to another.
    may_return: bool,
    /// Workers that wait at the bound, and since when.
    waiting: VecDeque<(usize, Instant)>,
    /// How often each share has taken too long since the last push.
    late: SortedMap<u64, u32>,
    pub found: Staleness,
}

/// What a worker computes.
#[derive(Debug, Clone, Copy)]
struct Computing {
    share: u64,
    /// How many shares had been pushed when it was given its parameters, and when that was.
    pushed: u64,
    since: Instant,
}

/// How stale the gradients of a round were, and how long workers waited for slower ones.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Staleness {
    /// As those of [`RoundReport`](crate::RoundReport).
    pub mean: f64,
    pub most: f64,
    pub waits: u64,
    pub waited: Duration,
}

/// The answer to a worker that asks for a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// The number of a share in the round.
    Share(u64),
    /// There is none left.
    Over,
    /// Not before others have pushed.
    Later,
}

impl Shares {
    pub(super) fn new(workers: usize, steps: u64, staleness: u64) -> Self {
        Self {
            total: steps * workers as u64,
            given: 0,
            pushed: 0,
            staleness,
            computing: vec![None; workers],
            returned: VecDeque::new(),
            may_return: false,
            waiting: VecDeque::new(),
            late: SortedMap::new(),
            found: Staleness::default(),
        }
    }

    /// For workers that may be lost: those that ask when all shares are given out wait until all are pushed.
    pub(super) fn that_may_return(self) -> Self {
        Self { may_return: true, ..self }
    }

    /// Whether the gradients of all shares are there.
    pub(super) fn is_done(&self) -> bool {
        self.pushed == self.total
    }

    fn workers(&self) -> u64 {
        self.computing.len() as u64
    }

    /// A worker asks for a share. If it is to wait, [`ready`](Self::ready) gives it an answer later.
    pub(super) fn ask(&mut self, worker: usize) -> Answer {
        let answer = self.answer(worker);
        if answer == Answer::Later {
            self.waiting.push_back((worker, Instant::now()));
            self.found.waits += u64::from(self.is_any_left());
        }
        answer
    }

    fn answer(&mut self, worker: usize) -> Answer {
        if !self.is_any_left() {
            return if self.may_return { Answer::Later } else { Answer::Over };
        }
        // In whole steps.
        let step = |shares: u64| shares / self.workers();
        let oldest = self.computing.iter().flatten().map(|computing| step(computing.pushed)).min();
        if oldest.is_some_and(|oldest| step(self.pushed) > oldest + self.staleness) {
            return Answer::Later;
        }
        let share = self.returned.pop_front().unwrap_or_else(|| {
            self.given += 1;
            self.given - 1
        });
        self.computing[worker] = Some(Computing { share, pushed: self.pushed, since: Instant::now() });
        Answer::Share(share)
    }

    /// Whether a share is left to give out.
    fn is_any_left(&self) -> bool {
        self.given < self.total || !self.returned.is_empty()
    }

    /// The share that a worker computes.
    pub(super) fn of(&self, worker: usize) -> Option<u64> {
        self.computing[worker].map(|computing| computing.share)
    }

    /// A worker was lost: its share is given to another. Gives the number of that share, if it had one. `deadline`: how long a share may take.
    pub(super) fn requeue(&mut self, worker: usize, deadline: Duration) -> Option<u64> {
        self.waiting.retain(|(waiting, _)| *waiting != worker);
        let Computing { share, since, .. } = self.computing[worker].take()?;
        if since.elapsed() >= deadline {
            *self.late.entry(share).or_default() += 1;
        }
        self.returned.push_back(share);
        Some(share)
    }

    /// How often the same share has taken too long, if that is too often: no worker seems to be fast enough.
    pub(super) fn too_late(&self) -> Option<u32> {
        self.late.values().copied().find(|times| *times >= MAX_LATE)
    }

    /// The gradient of a worker's share is there. False if it had none.
    pub(super) fn push(&mut self, worker: usize) -> bool {
        let Some(Computing { pushed: pulled, .. }) = self.computing[worker].take() else { return false };
        self.late.clear();
        let staleness = (self.pushed - pulled) as f64 / self.workers() as f64;
        self.pushed += 1;
        self.found.most = self.found.most.max(staleness);
        self.found.mean += (staleness - self.found.mean) / self.pushed as f64;
        true
    }

    /// The answers to workers that have waited and need not any longer.
    pub(super) fn ready(&mut self) -> Vec<(usize, Answer)> {
        let mut ready = Vec::new();
        while let Some((worker, since)) = self.waiting.pop_front() {
            match self.answer(worker) {
                Answer::Later => {
                    self.waiting.push_front((worker, since));
                    break;
                }
                answer => {
                    self.found.waited += since.elapsed();
                    ready.push((worker, answer));
                }
            }
        }
        ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(1000);

    #[test]
    fn a_worker_is_no_further_ahead_than_the_bound() {
        // Worker 1 computes with the first parameters until the end.
        for staleness in 1..4 {
            let mut shares = Shares::new(2, 10, staleness);
            assert_eq!([shares.ask(1), shares.ask(0)], [Answer::Share(0), Answer::Share(1)]);
            let mut pushed = 0;
            let last = loop {
                assert!(shares.push(0));
                pushed += 1;
                match shares.ask(0) {
                    Answer::Share(number) => assert_eq!(number, pushed + 1),
                    other => break other,
                }
            };
            assert_eq!((last, pushed), (Answer::Later, 2 * (staleness + 1)));
            assert!(shares.ready().is_empty(), "nothing has changed");
            assert!(shares.push(1));
            assert_eq!(shares.ready(), [(0, Answer::Share(pushed + 1))]);
            assert_eq!((shares.found.waits, shares.found.most), (1, (staleness + 1) as f64));
        }
    }

    /// The others take parameters just before the bound, and push before the slowest one does.
    #[test]
    fn a_gradient_is_late_by_less_than_two_steps_more_than_the_bound() {
        for (workers, staleness) in [(2, 1), (3, 1), (4, 2), (7, 3)] {
            let mut shares = Shares::new(workers, 100, staleness);
            (0..workers).for_each(|worker| assert!(matches!(shares.ask(worker), Answer::Share(_))));
            // All but worker 0 push, and ask again at once.
            let mut computing: Vec<usize> = (1..workers).collect();
            while !computing.is_empty() {
                for worker in std::mem::take(&mut computing) {
                    assert!(shares.push(worker));
                    if let Answer::Share(_) = shares.ask(worker) {
                        computing.push(worker);
                    }
                }
            }
            assert!(shares.push(0));
            let most = (staleness + 1) as f64 + (workers - 2) as f64 / workers as f64;
            assert!((shares.found.most - most).abs() < 1e-9, "{} of {workers}", shares.found.most);
        }
    }

    #[test]
    fn each_share_is_given_out_once_and_then_it_is_over() {
        let mut shares = Shares::new(3, 2, 1);
        for number in 0..6 {
            let worker = number as usize % 2;
            assert_eq!(shares.ask(worker), Answer::Share(number));
            assert!(shares.push(worker));
        }
        assert_eq!([0, 1, 2].map(|worker| shares.ask(worker)), [Answer::Over; 3]);
        assert!(!shares.push(0), "it has no share");
        assert_eq!((shares.found.mean, shares.found.waits), (0.0, 0));
    }

    #[test]
    fn a_lost_workers_share_goes_to_another_and_holds_nobody_up() {
        let mut shares = Shares::new(2, 2, 1).that_may_return();
        assert_eq!([shares.ask(0), shares.ask(1)], [Answer::Share(0), Answer::Share(1)]);
        for number in [2, 3] {
            assert!(shares.push(1));
            assert_eq!(shares.ask(1), Answer::Share(number));
        }
        assert!(shares.push(1));
        assert_eq!((shares.ask(1), shares.is_done(), shares.of(0)), (Answer::Later, false, Some(0)));
        assert_eq!((shares.requeue(0, LONG), shares.ready()), (Some(0), vec![(1, Answer::Share(0))]));
        assert!(!shares.push(0), "it has no share any more");
        assert!(shares.push(1) && shares.is_done());
        assert_eq!((shares.ask(1), shares.requeue(1, LONG), shares.ready()), (Answer::Later, None, vec![]));
    }

    #[test]
    fn a_share_that_no_worker_computes_in_time_is_noticed() {
        let mut shares = Shares::new(2, 3, 1).that_may_return();
        let late = |shares: &mut Shares, worker| {
            assert_eq!(shares.ask(worker), Answer::Share(0));
            assert_eq!(shares.requeue(worker, Duration::ZERO), Some(0));
        };
        late(&mut shares, 0);
        late(&mut shares, 1);
        assert_eq!(shares.too_late(), None);
        late(&mut shares, 0);
        assert_eq!(shares.too_late(), Some(3));
        // An update shows that one is fast enough.
        assert_eq!(shares.ask(1), Answer::Share(0));
        assert!(shares.push(1));
        assert_eq!(shares.too_late(), None);
        // Workers that die early are no reason, however many.
        for _ in 0..10 {
            assert_eq!(shares.ask(0), Answer::Share(1));
            assert_eq!(shares.requeue(0, LONG), Some(1));
        }
        assert_eq!(shares.too_late(), None);
    }

    #[test]
    fn those_that_wait_hear_of_the_end() {
        let mut shares = Shares::new(2, 3, 1);
        assert_eq!(shares.ask(0), Answer::Share(0));
        for number in 1..5 {
            assert_eq!(shares.ask(1), Answer::Share(number));
            assert!(shares.push(1));
        }
        assert_eq!(shares.ask(1), Answer::Later);
        assert!(shares.push(0));
        assert_eq!(shares.ready(), [(1, Answer::Share(5))]);
        assert_eq!((shares.ask(0), shares.push(1), shares.ask(1)), (Answer::Over, true, Answer::Over));
    }
}
