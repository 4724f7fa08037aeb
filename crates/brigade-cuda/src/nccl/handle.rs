//! The life of one NCCL communicator: which calls may be made on it, and how it ends exactly once.
//!
//! # Invariants
//! - **One call at a time.** Every call, also a look at the asynchronous error (it may complete a launch),
//!   holds `call`.
//! - **Next call only when the last has settled.** Whoever makes a call that may be in progress holds `turn`
//!   until NCCL says that it is done.
//! - **One end.** `state` leaves [`OPEN`] once; who took it there calls either `ncclCommAbort`, or
//!   `ncclCommFinalize` and `ncclCommDestroy` (`ncclCommAbort` if finalizing fails). Nothing is called after
//!   that.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError, mpsc};
use std::time::{Duration, Instant};

use cudarc::nccl::sys::{ncclComm, ncclComm_t};

use crate::backoff::{Patience, lock};
use crate::driver::Context;
use crate::error::Error;
use crate::library::text;
use crate::nccl::{Code, IN_PROGRESS, Nccl, SUCCESS};

const OPEN: u8 = 0;
const FINISHING: u8 = 1;
const CLOSED: u8 = 2;

/// How long an abort waits for a call that another thread is inside. No call should take long, since none
/// blocks.
const CALL_ENDS: Duration = Duration::from_secs(2);

/// How long NCCL may take to abort or destroy a communicator before it is left alone.
const NCCL_ENDS: Duration = Duration::from_secs(10);

pub(crate) struct Life {
    pub(crate) nccl: &'static Nccl,
    /// The GPU that the communicator was made on. It is current during every call: NCCL goes back to the
    /// thread's GPU after each, and for a thread without one that would be GPU 0, where a context would be
    /// made.
    pub(crate) context: Arc<Context>,
    /// The group's name, for messages.
    pub(crate) group: String,
    raw: AtomicPtr<ncclComm>,
    state: AtomicU8,
    call: Mutex<()>,
    turn: Mutex<()>,
    /// Held by whoever reads what NCCL says of a failed call, and by whoever takes `state` to [`CLOSED`]: an end does not wait
    /// for ever for `call`.
    words: Mutex<()>,
    failed: AtomicBool,
    /// Why it is aborted. No call is begun after it is set.
    reason: OnceLock<String>,
}

impl Life {
    pub(crate) fn new(nccl: &'static Nccl, context: Arc<Context>, group: String, raw: ncclComm_t) -> Self {
        Self {
            nccl,
            context,
            group,
            raw: AtomicPtr::new(raw),
            state: AtomicU8::new(OPEN),
            call: Mutex::default(),
            turn: Mutex::default(),
            words: Mutex::default(),
            failed: AtomicBool::new(false),
            reason: OnceLock::new(),
        }
    }

    /// Makes one call, and waits until it has settled.
    pub(crate) fn run(
        &self,
        operation: &str,
        call: &'static str,
        deadline: Duration,
        make: impl FnOnce(ncclComm_t) -> Result<Code, (&'static str, Code)>,
    ) -> Result<(), Error> {
        let _turn = lock(&self.turn);
        let start = Instant::now();
        match self.call(operation, call, make)? {
            SUCCESS => Ok(()),
            _ => self.settle(operation, call, start, deadline),
        }
    }

    /// Waits until no call is in progress, and NCCL's thread that made it is gone.
    pub(crate) fn settle(
        &self,
        operation: &str,
        call: &'static str,
        start: Instant,
        deadline: Duration,
    ) -> Result<(), Error> {
        let mut patience = Patience::new(start, deadline);
        while self.call(operation, call, |raw| self.asynchronous(raw))? == IN_PROGRESS {
            if !patience.pause() {
                self.failed.store(true, SeqCst);
                let (operation, group) = (operation.to_owned(), self.group.clone());
                return Err(Error::Deadline { operation, group, waited: deadline });
            }
        }
        // Up to 2.25, NCCL takes back what that thread used of this one only when it is asked for something else than
        // errors; an operation of another communicator would stumble over it.
        self.ask("ncclCommCount", self.nccl.calls.count).map(|_| ())
    }

    /// The error of what runs in the background, if there is one. It does not wait for a call of another
    /// thread; that finds the error itself.
    pub(crate) fn look(&self, operation: &str) -> Result<(), Error> {
        let guard = match self.call.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        if self.state.load(SeqCst) == CLOSED {
            return Ok(());
        }
        self.call_with(guard, operation, "ncclCommGetAsyncError", |raw| self.asynchronous(raw)).map(|_| ())
    }

    /// What a question has to say that changes nothing, as in the number of ranks.
    pub(crate) fn ask(
        &self,
        call: &'static str,
        question: unsafe extern "C" fn(ncclComm_t, *mut c_int) -> Code,
    ) -> Result<usize, Error> {
        let mut answer = 0;
        // SAFETY: `call` gives a communicator that is alive; one number is written.
        self.call("making a communicator", call, |raw| Ok(unsafe { question(raw, &mut answer) }))?;
        Ok(usize::try_from(answer).unwrap_or(0))
    }

    /// Whether a call has failed, or an abort begun.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(SeqCst)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state.load(SeqCst) == OPEN
    }

    fn asynchronous(&self, raw: ncclComm_t) -> Result<Code, (&'static str, Code)> {
        let mut code = SUCCESS;
        // SAFETY: `call` gives a communicator that is alive; one number is written.
        let asked = unsafe { (self.nccl.calls.get_async_error)(raw, &mut code) };
        if asked == SUCCESS { Ok(code) } else { Err(("ncclCommGetAsyncError", asked)) }
    }

    fn call(
        &self,
        operation: &str,
        call: &'static str,
        make: impl FnOnce(ncclComm_t) -> Result<Code, (&'static str, Code)>,
    ) -> Result<Code, Error> {
        self.call_with(lock(&self.call), operation, call, make)
    }

    /// Success or in progress; all else is an error. `make` may say which of several functions failed.
    fn call_with(
        &self,
        _one: MutexGuard<'_, ()>,
        operation: &str,
        call: &'static str,
        make: impl FnOnce(ncclComm_t) -> Result<Code, (&'static str, Code)>,
    ) -> Result<Code, Error> {
        self.refuse_if_ended()?;
        let result = self.context.within(|| make(self.raw.load(SeqCst)))?;
        let words = lock(&self.words);
        // An abort that did not wait for this call has freed the communicator.
        if self.state.load(SeqCst) == CLOSED {
            self.refuse_if_ended()?;
        }
        let (call, code) = match result {
            Ok(code @ (SUCCESS | IN_PROGRESS)) => return Ok(code),
            Ok(code) => (call, code),
            Err(named) => named,
        };
        self.failed.store(true, SeqCst);
        let (name, meaning) = self.nccl.describe(code);
        // SAFETY: the communicator is alive: nobody ends it while `words` is held and it is not closed. The string lives until
        // the next error; it is copied here.
        let last = unsafe { text((self.nccl.calls.get_last_error)(self.raw.load(SeqCst)), "") };
        drop(words);
        let text = if last.is_empty() { meaning } else { last };
        Err(Error::Nccl { call, name, text, operation: operation.to_owned(), group: self.group.clone() })
    }

    fn refuse_if_ended(&self) -> Result<(), Error> {
        let reason = match self.reason.get() {
            Some(reason) => reason.clone(),
            None if self.state.load(SeqCst) == CLOSED => {
                format!("the communicator of group \"{}\" is closed", self.group)
            }
            None => return Ok(()),
        };
        Err(Error::Aborted { reason })
    }

    /// Ends it in good order: what is under way runs to its end, within `deadline`; else it is aborted.
    pub(crate) fn finish(&self, deadline: Duration) -> Result<(), Error> {
        if self.state.compare_exchange(OPEN, FINISHING, SeqCst, SeqCst).is_err() {
            return self.refuse_if_ended();
        }
        let finalize = self.nccl.calls.finalize;
        let finalized = self.run("closing a communicator", "ncclCommFinalize", deadline, |raw| {
            // SAFETY: the communicator is alive, and only this thread may end it.
            Ok(unsafe { finalize(raw) })
        });
        match &finalized {
            Ok(()) => self.close("ncclCommDestroy", self.nccl.calls.destroy),
            Err(error) => {
                let _ = self.reason.set(error.reason());
                self.close("ncclCommAbort", self.nccl.calls.abort);
            }
        }
        finalized
    }

    /// Ends it at once, also while another thread is inside a call, and even if kernels wait for other ranks.
    /// Where [`finish`](Self::finish) has begun, that aborts.
    pub(crate) fn abort(&self, reason: &str) {
        let _ = self.reason.set(reason.to_owned());
        self.failed.store(true, SeqCst);
        if self.state.compare_exchange(OPEN, FINISHING, SeqCst, SeqCst).is_ok() {
            self.close("ncclCommAbort", self.nccl.calls.abort);
        }
    }

    /// The last call of all.
    fn close(&self, name: &'static str, end: unsafe extern "C" fn(ncclComm_t) -> Code) {
        let mut patience = Patience::new(Instant::now(), CALL_ENDS);
        let _one = loop {
            match self.call.try_lock() {
                Ok(guard) => break Some(guard),
                Err(TryLockError::Poisoned(poisoned)) => break Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if patience.pause() => {}
                Err(TryLockError::WouldBlock) => {
                    tracing::warn!("group \"{}\": {name} while a call is stuck in NCCL", self.group);
                    break None;
                }
            }
        };
        let words = lock(&self.words);
        self.state.store(CLOSED, SeqCst);
        drop(words);
        let (raw, context) = (Owned(self.raw.load(SeqCst)), self.context.clone());
        let ended = bounded(NCCL_ENDS, move || {
            let Owned(raw) = { raw };
            if let Err(error) = context.make_current() {
                tracing::warn!("{error}");
            }
            // SAFETY: the communicator is alive; `state` lets nobody else come here.
            unsafe { end(raw) }
        });
        match ended {
            Some(SUCCESS | IN_PROGRESS) => {}
            Some(code) => {
                let (result, text) = self.nccl.describe(code);
                tracing::warn!("group \"{}\": {name} failed with {result}: {text}", self.group);
            }
            None => {
                let seconds = NCCL_ENDS.as_secs();
                tracing::warn!("group \"{}\": {name} has not returned within {seconds} s", self.group);
            }
        }
    }
}

struct Owned(ncclComm_t);

// SAFETY: NCCL's communicators may be used from any thread, one at a time.
unsafe impl Send for Owned {}

/// Runs `call` on a thread of its own and waits for it, but not for ever: none if it takes longer.
fn bounded(limit: Duration, call: impl FnOnce() -> Code + Send + 'static) -> Option<Code> {
    let (tell, told) = mpsc::channel();
    let name = "brigade-nccl-end".to_owned();
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        let _ = tell.send(call());
    });
    match thread {
        Ok(_) => told.recv_timeout(limit).ok(),
        Err(error) => {
            tracing::warn!("no thread left to end a communicator on: {error}");
            None
        }
    }
}
