//! The handle of one NCCL communicator: which calls may be made on it, and how it ends exactly once.
//!
//! # Invariants
//! - **One call at a time.** Every call holds `call`, even a query of the asynchronous error, which may complete a launch.
//! - **The next call only once the last has completed.** Whoever makes a call that NCCL may leave in progress holds `turn` until
//!   NCCL reports that it is done.
//! - **One end.** `state` leaves [`OPEN`] once. Whoever changed it calls either `ncclCommAbort`, or `ncclCommFinalize` and
//!   `ncclCommDestroy` (`ncclCommAbort` if finalizing fails). Nothing is called after that.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError, mpsc};
use std::time::{Duration, Instant};

use cudarc::nccl::sys::{ncclComm, ncclComm_t};

use super::library::{IN_PROGRESS, Nccl, ResultCode, SUCCESS};
use crate::driver::Context;
use crate::error::Error;
use crate::loading::text;
use crate::polling::{Backoff, lock};

const OPEN: u8 = 0;
const ENDING: u8 = 1;
const ENDED: u8 = 2;

/// How long an abort waits for a call that another thread is making. No call should take long, since none blocks.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// How long NCCL may take to abort or destroy a communicator before it is abandoned.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// The handle of a communicator. [`Communicator`](super::Communicator) owns it, and the watchdog may abort it.
pub(crate) struct CommHandle {
    pub(super) nccl: &'static Nccl,
    /// The context of the communicator's GPU. It is current during every call: NCCL restores the thread's GPU after each, and
    /// for a thread without one it would pick GPU 0 and create a context there.
    pub(super) context: Arc<Context>,
    /// The group's name, for messages.
    pub(crate) group: String,
    raw: AtomicPtr<ncclComm>,
    state: AtomicU8,
    call: Mutex<()>,
    turn: Mutex<()>,
    /// Held while NCCL's text for a failed call is read, and while `state` becomes [`ENDED`], because an abort does not wait
    /// for `call` forever.
    last_error: Mutex<()>,
    failed: AtomicBool,
    /// Why it is aborted. No call is started after it is set.
    reason: OnceLock<String>,
}

impl CommHandle {
    pub(super) fn new(nccl: &'static Nccl, context: Arc<Context>, group: String, raw: ncclComm_t) -> Self {
        Self {
            nccl,
            context,
            group,
            raw: AtomicPtr::new(raw),
            state: AtomicU8::new(OPEN),
            call: Mutex::default(),
            turn: Mutex::default(),
            last_error: Mutex::default(),
            failed: AtomicBool::new(false),
            reason: OnceLock::new(),
        }
    }

    /// Makes one call, and waits until it has completed.
    pub(super) fn run(
        &self,
        operation: &str,
        call: &'static str,
        timeout: Duration,
        make: impl FnOnce(ncclComm_t) -> Result<ResultCode, (&'static str, ResultCode)>,
    ) -> Result<(), Error> {
        let _turn = lock(&self.turn);
        let start = Instant::now();
        match self.call(operation, call, make)? {
            SUCCESS => Ok(()),
            _ => self.wait_ready(operation, call, start, timeout),
        }
    }

    /// Waits until no call is in progress, and NCCL's thread that made it has ended.
    pub(super) fn wait_ready(
        &self,
        operation: &str,
        call: &'static str,
        start: Instant,
        timeout: Duration,
    ) -> Result<(), Error> {
        let mut backoff = Backoff::new(start, timeout);
        while self.call(operation, call, |raw| self.async_error(raw))? == IN_PROGRESS {
            if !backoff.pause() {
                self.failed.store(true, SeqCst);
                let (operation, group) = (operation.to_owned(), self.group.clone());
                return Err(Error::Timeout { operation, group, waited: timeout });
            }
        }
        // Up to 2.25, NCCL releases what its thread has used of this thread only in a call other than a query of the error; an
        // operation of another communicator would trip over it.
        self.query("ncclCommCount", self.nccl.functions.count).map(|_| ())
    }

    /// Checks for an error of what runs in the background. It does not wait for a call of another thread, which finds the error
    /// itself.
    pub(crate) fn check_async_error(&self, operation: &str) -> Result<(), Error> {
        let guard = match self.call.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        if self.state.load(SeqCst) == ENDED {
            return Ok(());
        }
        self.call_with(guard, operation, "ncclCommGetAsyncError", |raw| self.async_error(raw)).map(|_| ())
    }

    /// Reads an attribute, such as the number of ranks.
    pub(super) fn query(
        &self,
        call: &'static str,
        function: unsafe extern "C" fn(ncclComm_t, *mut c_int) -> ResultCode,
    ) -> Result<usize, Error> {
        let mut value = 0;
        // SAFETY: `call` passes a communicator that is alive; one number is written.
        self.call("making a communicator", call, |raw| Ok(unsafe { function(raw, &mut value) }))?;
        Ok(usize::try_from(value).unwrap_or(0))
    }

    /// Whether a call has failed, or an abort has started.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(SeqCst)
    }

    pub(super) fn is_open(&self) -> bool {
        self.state.load(SeqCst) == OPEN
    }

    fn async_error(&self, raw: ncclComm_t) -> Result<ResultCode, (&'static str, ResultCode)> {
        let mut code = SUCCESS;
        // SAFETY: `call` passes a communicator that is alive; one number is written.
        let queried = unsafe { (self.nccl.functions.get_async_error)(raw, &mut code) };
        if queried == SUCCESS { Ok(code) } else { Err(("ncclCommGetAsyncError", queried)) }
    }

    fn call(
        &self,
        operation: &str,
        call: &'static str,
        make: impl FnOnce(ncclComm_t) -> Result<ResultCode, (&'static str, ResultCode)>,
    ) -> Result<ResultCode, Error> {
        self.call_with(lock(&self.call), operation, call, make)
    }

    /// Returns success or in progress; anything else is an error. `make` may name the one of several functions that failed.
    fn call_with(
        &self,
        _one: MutexGuard<'_, ()>,
        operation: &str,
        call: &'static str,
        make: impl FnOnce(ncclComm_t) -> Result<ResultCode, (&'static str, ResultCode)>,
    ) -> Result<ResultCode, Error> {
        self.check_open()?;
        let result = self.context.with_current(|| make(self.raw.load(SeqCst)))?;
        let last_error = lock(&self.last_error);
        // An abort that did not wait for this call has freed the communicator.
        if self.state.load(SeqCst) == ENDED {
            self.check_open()?;
        }
        let (call, code) = match result {
            Ok(code @ (SUCCESS | IN_PROGRESS)) => return Ok(code),
            Ok(code) => (call, code),
            Err(named) => named,
        };
        self.failed.store(true, SeqCst);
        let (name, meaning) = self.nccl.describe(code);
        // SAFETY: the communicator is alive: nobody ends it while `last_error` is held and it has not ended. The string is
        // valid until the next error; it is copied here.
        let last = unsafe { text((self.nccl.functions.get_last_error)(self.raw.load(SeqCst)), "") };
        drop(last_error);
        let text = if last.is_empty() { meaning } else { last };
        Err(Error::Nccl { call, name, text, operation: operation.to_owned(), group: self.group.clone() })
    }

    fn check_open(&self) -> Result<(), Error> {
        let reason = match self.reason.get() {
            Some(reason) => reason.clone(),
            None if self.state.load(SeqCst) == ENDED => {
                format!("the communicator of group \"{}\" is closed", self.group)
            }
            None => return Ok(()),
        };
        Err(Error::Aborted { reason })
    }

    /// Finalizes and destroys it once everything that was enqueued has run. If that takes longer than `timeout`, or fails, it is
    /// aborted.
    pub(super) fn finalize(&self, timeout: Duration) -> Result<(), Error> {
        if self.state.compare_exchange(OPEN, ENDING, SeqCst, SeqCst).is_err() {
            return self.check_open();
        }
        let finalize = self.nccl.functions.finalize;
        let finalized = self.run("closing a communicator", "ncclCommFinalize", timeout, |raw| {
            // SAFETY: the communicator is alive, and only this thread may end it.
            Ok(unsafe { finalize(raw) })
        });
        match &finalized {
            Ok(()) => self.end_with("ncclCommDestroy", self.nccl.functions.destroy),
            Err(error) => {
                let _ = self.reason.set(error.reason());
                self.end_with("ncclCommAbort", self.nccl.functions.abort);
            }
        }
        finalized
    }

    /// Ends it at once, even while another thread is making a call, and even if kernels are waiting for other ranks. If
    /// [`finalize`](Self::finalize) has started, that aborts.
    pub(crate) fn abort(&self, reason: &str) {
        let _ = self.reason.set(reason.to_owned());
        self.failed.store(true, SeqCst);
        if self.state.compare_exchange(OPEN, ENDING, SeqCst, SeqCst).is_ok() {
            self.end_with("ncclCommAbort", self.nccl.functions.abort);
        }
    }

    /// Makes the last call of all.
    fn end_with(&self, name: &'static str, end: unsafe extern "C" fn(ncclComm_t) -> ResultCode) {
        let mut backoff = Backoff::new(Instant::now(), CALL_TIMEOUT);
        let _one = loop {
            match self.call.try_lock() {
                Ok(guard) => break Some(guard),
                Err(TryLockError::Poisoned(poisoned)) => break Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if backoff.pause() => {}
                Err(TryLockError::WouldBlock) => {
                    tracing::warn!("group \"{}\": {name} while another call is stuck in NCCL", self.group);
                    break None;
                }
            }
        };
        let last_error = lock(&self.last_error);
        self.state.store(ENDED, SeqCst);
        drop(last_error);
        let (raw, context) = (SendComm(self.raw.load(SeqCst)), self.context.clone());
        let ended = run_with_timeout(END_TIMEOUT, move || {
            let SendComm(raw) = { raw };
            if let Err(error) = context.make_current() {
                tracing::warn!("{error}");
            }
            // SAFETY: the communicator is alive; `state` lets nobody else get here.
            unsafe { end(raw) }
        });
        match ended {
            Some(SUCCESS | IN_PROGRESS) => {}
            Some(code) => {
                let (result, text) = self.nccl.describe(code);
                tracing::warn!("group \"{}\": {name} failed with {result}: {text}", self.group);
            }
            None => {
                let seconds = END_TIMEOUT.as_secs();
                tracing::warn!("group \"{}\": {name} has not returned within {seconds} s", self.group);
            }
        }
    }
}

struct SendComm(ncclComm_t);

// SAFETY: NCCL's communicators may be used from any thread, one at a time.
unsafe impl Send for SendComm {}

/// Runs `call` on a thread of its own, and returns its result unless it takes longer than `limit`.
fn run_with_timeout(
    limit: Duration,
    call: impl FnOnce() -> ResultCode + Send + 'static,
) -> Option<ResultCode> {
    let (sender, receiver) = mpsc::channel();
    let name = "brigade-nccl-end".to_owned();
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        let _ = sender.send(call());
    });
    match thread {
        Ok(_) => receiver.recv_timeout(limit).ok(),
        Err(error) => {
            tracing::warn!("cannot start a thread to end a communicator on: {error}");
            None
        }
    }
}
