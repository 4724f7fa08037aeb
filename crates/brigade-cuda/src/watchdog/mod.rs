//! The thread of a rank that looks after what its GPU is doing for all ranks.
//!
//! A kernel of NCCL waits for other ranks on the GPU, where nothing can time out. So what was enqueued is
//! given to the watch, together with an event that comes after it. The first failure, from wherever it is
//! heard of, ends everything.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use brigade_comm::flight::Noted;

use crate::backoff::{Patience, lock};
use crate::driver::Event;
use crate::error::Error;
use crate::nccl::Communicator;
use crate::nccl::Life;

/// How often it looks.
const LOOK: Duration = Duration::from_millis(20);

/// How often it asks elsewhere.
const ASK: Duration = Duration::from_secs(1);

/// What a rank has enqueued, for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// What it does, as in `all_reduce`.
    pub name: &'static str,
    /// The group's name.
    pub group: String,
    /// Its number among the operations of the group.
    pub sequence: u64,
    /// The size of this rank's buffer, in bytes.
    pub bytes: usize,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (number {}, {} bytes)", self.name, self.sequence, self.bytes)
    }
}

/// An operation that was enqueued.
pub struct Underway {
    /// What it is.
    pub operation: Operation,
    /// Comes when what it works on is there, and its time begins to count; without one, that is at once.
    pub ready: Option<Arc<Event>>,
    /// Comes when it is done.
    pub done: Arc<Event>,
    /// The longest that it may take.
    pub deadline: Duration,
    /// Its place in the flight recorder.
    pub note: Option<Noted>,
}

/// Looks after the operations and communicators of one rank. Its thread ends when it is dropped.
pub struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// An operation that is under way.
pub struct Ticket {
    shared: Arc<Shared>,
    entry: Arc<Entry>,
}

struct Entry {
    underway: Underway,
    begun: Instant,
    /// Since when its time counts.
    counting: OnceLock<Instant>,
}

struct Shared {
    /// The first failure.
    failure: OnceLock<Failure>,
    entries: Mutex<Vec<Arc<Entry>>>,
    communicators: Mutex<Vec<Weak<Life>>>,
    /// Whether the thread is to end.
    over: AtomicBool,
    /// Guards nothing; wakes the thread early.
    sleep: Mutex<()>,
    wake: Condvar,
}

/// Why everything ended.
struct Failure {
    error: Error,
    /// Other ranks know already: it was heard of from them.
    known: bool,
}

impl Watch {
    /// Starts the thread. `on_failure` is called on it once, with the first failure of this rank, and should
    /// tell the other ranks; `elsewhere` is called on it about each second, and says whether another rank has
    /// failed. Neither should take long.
    ///
    /// # Errors
    /// [`Error::NoThread`].
    pub fn new(
        on_failure: impl Fn(&str) + Send + 'static,
        elsewhere: impl Fn() -> Option<String> + Send + 'static,
    ) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            failure: OnceLock::new(),
            entries: Mutex::default(),
            communicators: Mutex::default(),
            over: AtomicBool::new(false),
            sleep: Mutex::default(),
            wake: Condvar::new(),
        });
        let seen = shared.clone();
        let thread = std::thread::Builder::new()
            .name("brigade-watch".to_owned())
            .spawn(move || seen.run(on_failure, elsewhere))
            .map_err(|error| Error::NoThread { reason: error.to_string() })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Looks after `communicator` too, until it ends: for its errors, and to abort it.
    pub fn register(&self, communicator: &Communicator) {
        let life = communicator.life();
        {
            let mut communicators = lock(&self.shared.communicators);
            communicators.retain(|other| other.strong_count() > 0);
            communicators.push(Arc::downgrade(life));
        }
        // The thread may have aborted all that it found before.
        if let Some(failure) = self.shared.failure.get() {
            life.abort(&failure.error.reason());
        }
    }

    /// Looks after an operation, which fails if it takes longer than its deadline.
    pub fn begin(&self, underway: Underway) -> Ticket {
        let entry = Arc::new(Entry { underway, begun: Instant::now(), counting: OnceLock::new() });
        lock(&self.shared.entries).push(entry.clone());
        Ticket { shared: self.shared.clone(), entry }
    }

    /// How many operations are under way, as far as the thread has seen.
    pub fn in_flight(&self) -> usize {
        lock(&self.shared.entries).len()
    }

    /// Ends everything with `reason`, if nothing has failed before: communicators are aborted within moments.
    pub fn fail(&self, reason: impl Into<String>) {
        self.shared.fail(Error::Aborted { reason: reason.into() }, false);
    }

    /// Ends everything because of `error`, if nothing has failed before.
    pub fn fail_with(&self, error: Error) {
        self.shared.fail(error, false);
    }

    /// Whether all is well: what every call asks first.
    ///
    /// # Errors
    /// [`Error::Aborted`] after the first failure, with its text.
    pub fn check(&self) -> Result<(), Error> {
        self.shared.check()
    }

    /// The first failure.
    pub fn failure(&self) -> Option<Error> {
        self.shared.failure.get().map(|failure| failure.error.clone())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.over.store(true, SeqCst);
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the thread that watches operations panicked");
        }
    }
}

impl Ticket {
    /// Whether the operation is done.
    ///
    /// # Errors
    /// [`Error::Aborted`] after the first failure of any operation; [`Error::Driver`].
    pub fn is_done(&self) -> Result<bool, Error> {
        // An aborted operation's event comes too.
        let done = self.entry.underway.done.is_done();
        self.shared.check()?;
        done
    }

    /// Waits on the host until the operation is done. The deadline is the one that it began with.
    ///
    /// # Errors
    /// [`Error::Aborted`] after the first failure of any operation; [`Error::Driver`].
    pub fn wait(&self) -> Result<(), Error> {
        let mut patience = Patience::unlimited();
        while !self.is_done()? {
            if self.entry.is_late()? {
                self.shared.fail(self.entry.late(), false);
                return self.shared.check();
            }
            patience.pause();
        }
        Ok(())
    }
}

impl Entry {
    /// Whether its time is over.
    fn is_late(&self) -> Result<bool, Error> {
        let since = match (&self.underway.ready, self.counting.get()) {
            (None, _) => self.begun,
            (Some(_), Some(since)) => *since,
            (Some(ready), None) if ready.is_done()? => *self.counting.get_or_init(Instant::now),
            // What it works on does not come.
            (Some(_), None) => return Ok(self.begun.elapsed() >= self.underway.deadline.saturating_mul(4)),
        };
        Ok(since.elapsed() >= self.underway.deadline)
    }

    fn late(&self) -> Error {
        let Underway { operation, deadline, note, .. } = &self.underway;
        if let Some(note) = note {
            note.overdue();
        }
        Error::Deadline {
            operation: operation.to_string(),
            group: operation.group.clone(),
            waited: *deadline,
        }
    }
}

impl Shared {
    fn fail(&self, error: Error, known: bool) {
        let _ = self.failure.set(Failure { error, known });
        self.wake.notify_all();
    }

    fn check(&self) -> Result<(), Error> {
        match self.failure.get() {
            None => Ok(()),
            Some(failure) => Err(Error::Aborted { reason: failure.error.reason() }),
        }
    }

    fn run(&self, on_failure: impl Fn(&str), elsewhere: impl Fn() -> Option<String>) {
        let mut asked = Instant::now();
        loop {
            if let Some(failure) = self.failure.get() {
                return self.end(failure, on_failure);
            }
            if self.over.load(SeqCst) {
                return;
            }
            self.look();
            if asked.elapsed() >= ASK {
                asked = Instant::now();
                if let Some(reason) = elsewhere() {
                    self.fail(Error::Aborted { reason }, true);
                }
            }
            let sleep = lock(&self.sleep);
            if self.failure.get().is_none() && !self.over.load(SeqCst) {
                let _woken = self.wake.wait_timeout(sleep, LOOK).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Forgets what is done; the first that is late or has failed is the failure.
    fn look(&self) {
        for communicator in self.communicators() {
            if let Err(error) = communicator.look(&self.oldest(&communicator.group)) {
                return self.fail(error, false);
            }
        }
        // The driver is asked outside the lock: whoever begins an operation must not wait for it.
        let entries = lock(&self.entries).clone();
        let mut done = Vec::new();
        for entry in entries {
            let is_late =
                || if entry.underway.done.is_done()? { Ok(None) } else { entry.is_late().map(Some) };
            match is_late() {
                Ok(None) => done.push(entry),
                Ok(Some(false)) => {}
                Ok(Some(true)) => return self.fail(entry.late(), false),
                Err(Error::Driver { call, name, code, text, .. }) => {
                    let Operation { group, .. } = &entry.underway.operation;
                    let operation = format!("{} on group \"{group}\"", entry.underway.operation);
                    return self.fail(Error::Driver { call, name, code, text, operation }, false);
                }
                Err(error) => return self.fail(error, false),
            }
        }
        if !done.is_empty() {
            done.iter().filter_map(|entry| entry.underway.note.as_ref()).for_each(|note| note.done(true));
            lock(&self.entries).retain(|entry| !done.iter().any(|other| Arc::ptr_eq(entry, other)));
        }
    }

    /// What has been under way in a group for longest, for messages.
    fn oldest(&self, group: &str) -> String {
        let entries = lock(&self.entries);
        let oldest = entries.iter().map(|entry| &entry.underway.operation).find(|other| other.group == group);
        oldest.map_or_else(|| "looking for errors".to_owned(), Operation::to_string)
    }

    fn communicators(&self) -> Vec<Arc<Life>> {
        lock(&self.communicators).iter().filter_map(Weak::upgrade).collect()
    }

    /// Tells the others first, since an abort may take its time. Communicators are aborted side by side:
    /// one's memory is freed only when no kernel of another is left that waits.
    fn end(&self, failure: &Failure, on_failure: impl Fn(&str)) {
        let reason = failure.error.reason();
        tracing::error!("{reason}");
        let told = catch_unwind(AssertUnwindSafe(|| {
            if !failure.known {
                on_failure(&reason);
            }
        }));
        if told.is_err() {
            tracing::warn!("telling the other ranks of a failure panicked");
        }
        let communicators = self.communicators();
        std::thread::scope(|scope| {
            for communicator in &communicators {
                let abort = || communicator.abort(&reason);
                let name = "brigade-abort".to_owned();
                if std::thread::Builder::new().name(name).spawn_scoped(scope, abort).is_err() {
                    abort();
                }
            }
        });
    }
}
