//! When a host, or the job on all of them, starts again.

use std::time::{Duration, Instant};

use brigade_launch::exit;

/// What `ssh` exits with when it is its connection that failed.
pub const NO_CONNECTION: u8 = 255;

/// What a shell exits with when it cannot start a program.
pub const NO_PROGRAM: [u8; 2] = [126, 127];

/// Before the job, or a host of it, starts again; twice as long after each failure but the first, up to [`LONGEST`].
const PAUSE: Duration = Duration::from_secs(5);

pub const LONGEST: Duration = Duration::from_secs(60);

/// What ran for so long has not failed before.
const STABLE: Duration = Duration::from_secs(600);

/// How long a launcher whose connection was lost may stay and hold the port and the run's folder: until TCP gives up. A host that is lost may take
/// as long to come back.
const HELD: Duration = Duration::from_secs(900);

/// The host of a connection that failed later had been reached: `ssh` gives up earlier, even if the host has several addresses.
const REACHED: Duration = Duration::from_secs(120);

/// The losses of a host of an elastic job, one soon after the other.
#[derive(Debug, Clone, Copy, Default)]
pub struct Losses {
    all: u32,
    /// Those that were neither its connection's nor the end of a launcher that was told to leave.
    pub failed: u32,
    /// When its connection was lost last.
    connection: Option<Instant>,
}

impl Losses {
    /// The pause before a host starts again that ended with this code after it had `lasted`; none if it has failed more often than `most`.
    pub fn pause(&mut self, code: u8, lasted: Duration, most: u32, now: Instant) -> Option<Duration> {
        if lasted > STABLE {
            (self.all, self.failed) = (0, 0);
        }
        if code == NO_CONNECTION {
            self.connection = Some(now);
        }
        let is_held = is_held(code, self.connection, now);
        // One that was told to leave is to stay away for a while, and a disk that is not there yet needs time.
        let is_long = is_held || code == exit::PREEMPTED || NO_PROGRAM.contains(&code);
        let pause = if is_long { LONGEST } else { doubled(self.all) };
        self.all += 1;
        self.failed += u32::from(!is_held && !matches!(code, NO_CONNECTION | exit::PREEMPTED));
        (self.failed <= most).then_some(pause)
    }
}

/// How all hosts ended, after one start of the job on them.
#[derive(Debug, Clone, Copy)]
pub struct Attempt {
    pub code: u8,
    pub lasted: Duration,
    /// Of a connection that was lost: how long it had lasted.
    pub connected: Duration,
}

/// The attempts of a job so far.
#[derive(Debug, Default)]
pub struct Attempts {
    /// How often the job may fail.
    most: u32,
    is_elastic: bool,
    has_begun: bool,
    /// Whether all hosts were reached in one of them.
    has_reached: bool,
    /// Failures, one soon after the other.
    failures: u32,
    /// Lost connections, one soon after the other, that were not counted as failures.
    lost: u32,
    /// When the first of these was lost, and when any was lost last.
    lost_since: Option<Instant>,
    lost_at: Option<Instant>,
}

impl Attempts {
    /// Before the first; the job may fail `most` times, one soon after the other.
    pub fn new(most: u32, is_elastic: bool) -> Self {
        Self { most, is_elastic, ..Self::default() }
    }

    /// The pause before the next attempt, and what to say of it; none if the job has ended.
    pub fn next(&mut self, attempt: Attempt, now: Instant) -> Option<(Duration, String)> {
        let Attempt { code, lasted, connected } = attempt;
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        if lasted > STABLE {
            (self.failures, self.lost, self.lost_since) = (0, 0, None);
        }
        self.has_reached |= code != NO_CONNECTION || connected > REACHED;
        if code == NO_CONNECTION {
            self.lost_at = Some(now);
            if self.has_reached && now.duration_since(*self.lost_since.get_or_insert(now)) < HELD {
                let pause = doubled(self.lost);
                self.lost += 1;
                return Some((pause, format!("a host was lost: it is tried again in {} s", pause.as_secs())));
            }
        }
        match code {
            exit::PREEMPTED => {
                let why = match self.is_elastic {
                    true => "saved after a preemption, or because too few hosts were left: starting again",
                    false => "preempted: starting again from the last checkpoint",
                };
                Some((doubled(self.failures), why.into()))
            }
            exit::DONE | exit::INTERRUPTED => None,
            // Later it is not the command that is wrong.
            exit::USAGE if is_first => None,
            _ if is_held(code, self.lost_at, now) => {
                let why = "a host that was lost may not be ready, or its launcher may still run: it is tried again in 60 s";
                Some((LONGEST, why.into()))
            }
            _ if self.failures >= self.most => None,
            _ => {
                self.failures += 1;
                let why = format!("failed with code {code}: restart {} of {}", self.failures, self.most);
                Some((doubled(self.failures), why))
            }
        }
    }
}

/// Whether a launcher is refused because an earlier one, whose connection was lost, still runs, or because its host is not ready after such a loss.
fn is_held(code: u8, lost: Option<Instant>, now: Instant) -> bool {
    (code == exit::USAGE || NO_PROGRAM.contains(&code))
        && lost.is_some_and(|at| now.duration_since(at) < HELD)
}

/// The pause before a start after so many failures: twice as long after each but the first.
fn doubled(failures: u32) -> Duration {
    LONGEST.min(PAUSE * (1 << failures.saturating_sub(1).min(10)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_secs(20);
    const LONG: Duration = Duration::from_secs(86_400);

    /// The pauses after attempts that end with a code and last for a time, and after how long the job ended.
    fn pauses(attempts: impl IntoIterator<Item = (u8, Duration)>) -> (Vec<u64>, Option<Duration>) {
        let (begin, mut all, mut pauses) = (Instant::now(), Attempts::new(3, false), Vec::new());
        let mut now = begin;
        for (code, lasted) in attempts {
            now += lasted;
            let Some((pause, _)) = all.next(Attempt { code, lasted, connected: lasted }, now) else {
                return (pauses, Some(now - begin));
            };
            pauses.push(pause.as_secs());
            now += pause;
        }
        (pauses, None)
    }

    #[test]
    fn a_host_that_is_lost_is_tried_for_a_quarter_of_an_hour_before_it_counts() {
        let away = std::iter::repeat((NO_CONNECTION, SHORT));
        let (found, ended) = pauses(std::iter::once((NO_CONNECTION, LONG)).chain(away.clone()));
        assert_eq!(found[..7], [5, 5, 10, 20, 40, 60, 60]);
        assert_eq!(found[found.len() - 3..], [5, 10, 20], "it counts in the end");
        let away_for = ended.unwrap() - LONG;
        assert!(away_for > HELD && away_for < HELD + Duration::from_secs(300), "{away_for:?}");
        // A host that was never there is a mistake.
        assert_eq!(pauses(away.clone()), (vec![5, 10, 20], Some(4 * SHORT + Duration::from_secs(35))));
        // But not once the job has run.
        let (found, _) = pauses(std::iter::once((exit::PREEMPTED, SHORT)).chain(away));
        assert!(found.len() > 10, "{found:?}");
    }

    #[test]
    fn what_ran_for_long_has_not_failed_before() {
        let now_and_then = [1, NO_CONNECTION].into_iter().cycle().take(40);
        let (found, ended) = pauses(now_and_then.map(|code| (code, LONG)));
        assert_eq!((found, ended), (vec![5; 40], None));
        let at_once = [(1, LONG), (1, SHORT), (1, SHORT), (1, SHORT)];
        assert_eq!(pauses(at_once).0, [5, 10, 20]);
    }

    #[test]
    fn what_a_lost_launcher_holds_is_waited_for() {
        let lost = (NO_CONNECTION, LONG);
        for code in [exit::USAGE, 127] {
            let held = std::iter::repeat_n((code, SHORT), 40);
            let (found, ended) = pauses(std::iter::once(lost).chain(held));
            assert_eq!(found.iter().filter(|pause| **pause == 60).count(), 11, "{found:?}");
            assert!(ended.is_some(), "it counts in the end");
        }
        assert_eq!(pauses([(exit::USAGE, SHORT)]), (vec![], Some(SHORT)), "wrong usage");
        assert_eq!(pauses([(1, SHORT), (exit::USAGE, SHORT)]).0, [5, 10]);
    }

    #[test]
    fn an_elastic_jobs_host_is_given_up_for_failures_alone() {
        let mut losses = Losses::default();
        let begin = Instant::now();
        let mut at = |seconds: u64, code| {
            let pause = losses.pause(code, SHORT, 1, begin + Duration::from_secs(seconds));
            (pause.map(|pause| pause.as_secs()), losses.failed)
        };
        assert_eq!(at(0, NO_CONNECTION), (Some(5), 0));
        assert_eq!(at(100, exit::USAGE), (Some(60), 0), "its launcher before may still be a member");
        assert_eq!(at(800, 127), (Some(60), 0));
        assert_eq!(at(901, exit::USAGE), (Some(20), 1));
        assert_eq!(at(902, exit::PREEMPTED), (Some(60), 1));
        assert_eq!(at(903, 1), (None, 2));
        assert!(losses.pause(1, LONG, 1, begin).is_some(), "it was there for long");
    }
}
