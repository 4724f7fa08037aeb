//! Prefetching: threads prepare the batches of the next steps during the current one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use brigade_sorted::SortedMap;

use crate::error::panic_text;
use crate::{Error, Result};

/// How long [`Prefetcher::next`] waits for a step by default.
pub const DEFAULT_PREFETCH_DEADLINE: Duration = Duration::from_secs(100);

/// How long a dropped prefetcher waits for a producer that is in the middle of a step.
const DROP_DEADLINE: Duration = Duration::from_secs(2);

type ProducerError = Box<dyn std::error::Error + Send + Sync>;

/// Makes the values of steps `start`, `start + 1`, … ahead of their use, on threads of its own.
///
/// At most `depth` values wait to be taken. They come in the order of the steps, whichever thread made them. A step that fails
/// ends the sequence: its error comes after the values of the steps before it.
pub struct Prefetcher<T> {
    shared: Arc<Shared<T>>,
    deadline: Duration,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    /// A value was made, or a thread ended.
    made: Condvar,
    /// A value was taken, or all threads must stop.
    taken: Condvar,
    depth: u64,
}

struct State<T> {
    next_to_make: u64,
    next_to_take: u64,
    ready: SortedMap<u64, Result<T>>,
    failed: Option<u64>,
    stop: bool,
    threads: usize,
}

impl<T: Send + 'static> Prefetcher<T> {
    /// Starts `threads` threads (at least one) that make at most `depth` (at least one) values ahead, from step
    /// `start` on, by calling `producer` with the step.
    ///
    /// # Errors
    /// [`Error::Io`] if a thread cannot be started.
    pub fn new<E: Into<ProducerError>>(
        start: u64,
        depth: usize,
        threads: usize,
        producer: impl Fn(u64) -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<Self> {
        let state = State {
            next_to_make: start,
            next_to_take: start,
            ready: SortedMap::new(),
            failed: None,
            stop: false,
            threads: 0,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            made: Condvar::new(),
            taken: Condvar::new(),
            depth: depth.max(1) as u64,
        });
        // Made before the threads, so that dropping it stops those that started when a later one does not.
        let prefetcher = Self { shared: Arc::clone(&shared), deadline: DEFAULT_PREFETCH_DEADLINE };
        let producer = Arc::new(producer);
        for index in 0..threads.max(1) {
            let (shared, producer) = (Arc::clone(&shared), Arc::clone(&producer));
            prefetcher.shared.lock().threads += 1;
            let spawned = std::thread::Builder::new()
                .name(format!("prefetch-{index}"))
                .spawn(move || shared.make_steps(&*producer));
            if let Err(source) = spawned {
                prefetcher.shared.lock().threads -= 1;
                return Err(Error::io("start a thread for", "reading ahead", source));
            }
        }
        Ok(prefetcher)
    }

    /// Sets how long [`Prefetcher::next`] waits for a step.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// The value of the next step, and how long this call waited for it.
    ///
    /// # Errors
    /// [`Error::Producer`] or [`Error::ProducerPanic`] where the step failed, [`Error::PrefetchEnded`] after that;
    /// [`Error::PrefetchTimeout`] where the step was not ready in time (calling again waits again).
    #[expect(clippy::should_implement_trait, reason = "it returns the time waited beside the value")]
    pub fn next(&mut self) -> Result<(T, Duration)> {
        let begin = Instant::now();
        let mut state = self.shared.lock();
        loop {
            let step = state.next_to_take;
            if let Some(failed) = state.failed.filter(|&failed| failed < step) {
                return Err(Error::PrefetchEnded { step: failed });
            }
            if let Some(result) = state.ready.remove(&step) {
                state.next_to_take += 1;
                self.shared.taken.notify_all();
                return result.map(|value| (value, begin.elapsed()));
            }
            let Some(left) = self.deadline.checked_sub(begin.elapsed()) else {
                return Err(Error::PrefetchTimeout { step, waited_seconds: begin.elapsed().as_secs_f64() });
            };
            state = wait(&self.shared.made, state, left);
        }
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make_steps<E: Into<ProducerError>>(&self, producer: &(impl Fn(u64) -> Result<T, E> + ?Sized)) {
        while let Some(step) = self.claim() {
            let result = match catch_unwind(AssertUnwindSafe(|| producer(step))) {
                Ok(Ok(value)) => Ok(value),
                Ok(Err(source)) => Err(Error::Producer { step, source: source.into() }),
                Err(panic) => Err(Error::ProducerPanic { step, message: panic_text(&*panic) }),
            };
            let mut state = self.lock();
            if result.is_err() {
                state.failed = Some(state.failed.map_or(step, |failed| failed.min(step)));
            }
            state.ready.insert(step, result);
            drop(state);
            self.made.notify_all();
        }
        self.lock().threads -= 1;
        self.made.notify_all();
    }

    /// The next step to make, as soon as there is room for it; `None` when there is nothing left to do.
    fn claim(&self) -> Option<u64> {
        let mut state = self.lock();
        loop {
            if state.stop || state.failed.is_some() {
                return None;
            }
            if state.next_to_make - state.next_to_take < self.depth {
                state.next_to_make += 1;
                return Some(state.next_to_make - 1);
            }
            state = self.taken.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T> Drop for Prefetcher<T> {
    fn drop(&mut self) {
        let begin = Instant::now();
        let mut state = self.shared.lock();
        state.stop = true;
        self.shared.taken.notify_all();
        while state.threads > 0 {
            let Some(left) = DROP_DEADLINE.checked_sub(begin.elapsed()) else {
                tracing::warn!(
                    "{} thread(s) that read ahead are still busy and are left behind",
                    state.threads
                );
                return;
            };
            state = wait(&self.shared.made, state, left);
        }
    }
}

fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>, limit: Duration) -> MutexGuard<'a, T> {
    condition.wait_timeout(guard, limit).map_or_else(|poisoned| poisoned.into_inner().0, |(guard, _)| guard)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn values_come_in_order_from_any_step() {
        for threads in [1, 3] {
            let mut prefetcher = Prefetcher::new(17, 4, threads, |step| {
                std::thread::sleep(Duration::from_micros(step * 7919 % 500));
                Ok::<_, Infallible>(step)
            })
            .unwrap();
            let steps: Vec<u64> = (0..50).map(|_| prefetcher.next().unwrap().0).collect();
            assert_eq!(steps, (17..67).collect::<Vec<_>>());
        }
    }

    #[test]
    fn no_more_than_depth_steps_are_made_ahead() {
        let made = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&made);
        let mut prefetcher = Prefetcher::new(0, 3, 2, move |step| {
            counter.fetch_add(1, Ordering::SeqCst);
            Ok::<_, Infallible>(step)
        })
        .unwrap();
        prefetcher.next().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert!(made.load(Ordering::SeqCst) <= 4);
    }

    #[test]
    fn an_error_comes_in_its_turn_and_ends_the_sequence() {
        let mut prefetcher = Prefetcher::new(0, 4, 2, |step| match step {
            2 => Err("no such row"),
            _ => Ok(step),
        })
        .unwrap();
        assert_eq!(prefetcher.next().unwrap().0, 0);
        assert_eq!(prefetcher.next().unwrap().0, 1);
        let message = prefetcher.next().unwrap_err().to_string();
        assert_eq!(message, "preparing step 2 failed: no such row");
        // Step 3 may have been made beside step 2; after the failure nothing comes any more.
        let ended = prefetcher.next().unwrap_err();
        assert!(matches!(ended, Error::PrefetchEnded { step: 2 }), "{ended}");
    }

    #[test]
    fn a_panic_surfaces_with_its_text() {
        let mut prefetcher: Prefetcher<u64> =
            Prefetcher::new(0, 1, 1, |step| -> Result<u64, Infallible> { panic!("broken at {step}") })
                .unwrap();
        assert_eq!(prefetcher.next().unwrap_err().to_string(), "preparing step 0 panicked: broken at 0");
    }

    #[test]
    fn a_slow_step_meets_the_deadline_and_drop_does_not_wait_for_the_rest() {
        let made = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&made);
        let mut prefetcher = Prefetcher::new(0, 100, 1, move |step| {
            std::thread::sleep(Duration::from_millis(200));
            counter.fetch_add(1, Ordering::SeqCst);
            Ok::<_, Infallible>(step)
        })
        .unwrap()
        .with_deadline(Duration::from_millis(1));
        let error = prefetcher.next().unwrap_err();
        assert!(matches!(error, Error::PrefetchTimeout { step: 0, .. }), "{error}");
        drop(prefetcher);
        let after_drop = made.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(made.load(Ordering::SeqCst), after_drop);
    }
}
