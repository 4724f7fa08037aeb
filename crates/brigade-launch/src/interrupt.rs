//! Signals to a rank: Ctrl-C ends it, SIGTERM and SIGUSR1 announce that its machine is about to be taken away.
//!
//! A program that may be a rank or start some calls [`block_signals`] first of all, so that no signal ends it before it knows which:
//! a rank calls [`install`], any other process [`exit_on_signal`] until it has something to save.

use std::{
    io::{self, Write},
    ptr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    thread,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1},
    iterator::Signals,
    low_level,
};

use crate::{
    environment::LAUNCHED_VARIABLE,
    error::{Error, Result},
    exit,
    parse::seconds,
};

/// How long a rank may go on after the signal to stop before the process is ended: shorter than the
/// launcher's [`GRACE`](crate::DEFAULT_GRACE_PERIOD), so that a rank ends by itself.
pub const GRACE: Duration = Duration::from_secs(1);

/// How long a preempted rank may take to save and leave, where nothing else is said: as long as Kubernetes
/// leaves between SIGTERM and SIGKILL.
pub const DEFAULT_PREEMPTION_GRACE: Duration = Duration::from_secs(30);

/// How long a preempted rank may take, in seconds. The launcher sets it; for a rank that something else
/// started, set it to less than what the cluster leaves.
pub const PREEMPTION_GRACE_VARIABLE: &str = "BRIGADE_PREEMPTION_GRACE";

/// The signals that end a run.
const ENDS: [i32; 4] = [SIGINT, SIGTERM, SIGUSR1, SIGHUP];

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum InterruptKind {
    /// SIGINT: end now, within [`GRACE`], with [`exit::INTERRUPTED`].
    Stop = 1,
    /// SIGTERM or SIGUSR1: save a checkpoint and leave with [`exit::PREEMPTED`].
    Preempt = 2,
}

/// What this process was told by signals. Clones share it.
///
/// It is about this process alone: other ranks may have got the signal earlier, later, or not at all. A
/// training loop that leaves its world lets all ranks know, between two steps.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<Received>);

#[derive(Debug, Default)]
struct Received {
    /// The first signal's [`InterruptKind`], or 0.
    kind: AtomicU8,
    /// Whether there is nothing to lose yet.
    is_preparing: AtomicBool,
}

impl InterruptKind {
    /// What a signal that is to end the run asks for.
    pub(crate) fn of(signal: i32) -> Self {
        match signal {
            SIGTERM | SIGUSR1 => Self::Preempt,
            _ => Self::Stop,
        }
    }
}

impl Interrupt {
    /// What the first signal asked for, once one came.
    pub fn kind(&self) -> Option<InterruptKind> {
        match self.0.kind.load(Ordering::Relaxed) {
            0 => None,
            kind if kind == InterruptKind::Stop as u8 => Some(InterruptKind::Stop),
            _ => Some(InterruptKind::Preempt),
        }
    }

    /// True once a signal came, whatever it asked for.
    pub fn is_set(&self) -> bool {
        self.kind().is_some()
    }

    /// A flag that no signal sets, for a loop that runs inside another program.
    pub fn detached() -> Self {
        Self::default()
    }

    /// Until [`mark_training`](Self::mark_training) there is nothing to lose: a preempted process whose grace is over leaves with
    /// [`exit::PREEMPTED`], not with [`exit::FAILED`].
    pub fn mark_preparing(&self) {
        self.0.is_preparing.store(true, Ordering::SeqCst);
    }

    /// From now on there is something to lose.
    pub fn mark_training(&self) {
        self.0.is_preparing.store(false, Ordering::SeqCst);
    }

    /// Sets the flag, as SIGINT would, but without the end of the process after [`GRACE`].
    pub fn set(&self) {
        self.record(InterruptKind::Stop);
    }

    /// Sets the flag, as SIGTERM would, but without the end of the process after the grace.
    pub fn preempt(&self) {
        self.record(InterruptKind::Preempt);
    }

    /// True if nothing was noted before. Makes no system call and takes no lock.
    fn record(&self, kind: InterruptKind) -> bool {
        self.0.kind.compare_exchange(0, kind as u8, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

/// Holds back SIGINT, SIGTERM, SIGUSR1 and SIGHUP to this thread and to those that it starts. What comes meanwhile comes to
/// [`install`], [`exit_on_signal`], [`launch`](crate::launch) or [`unblock_signals`].
pub fn block_signals() {
    set_mask(libc::SIG_BLOCK);
}

/// Ends [`block_signals`]: what has come takes effect.
pub fn unblock_signals() {
    set_mask(libc::SIG_UNBLOCK);
}

fn set_mask(how: i32) {
    // SAFETY: the set is made empty before anything is added to it; the calls fail only for numbers that are no signals.
    unsafe {
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        for signal in ENDS {
            libc::sigaddset(&raw mut signals, signal);
        }
        libc::pthread_sigmask(how, &raw const signals, ptr::null_mut());
    }
}

/// Whether a signal ends a process that has nothing to save.
static LEAVES: AtomicBool = AtomicBool::new(false);
/// Whether this process has ever said so.
static LEFT: AtomicBool = AtomicBool::new(false);

/// What a process says that is preempted before anything has begun.
const NOTHING_LOST: &[u8] = b"brigade: preempted before the first step; nothing is lost, start it again\n";

/// This process is no rank and has nothing to save: until [`launch`](crate::launch) takes them over, signals end it at once,
/// with [`exit::PREEMPTED`] for SIGTERM and SIGUSR1 and [`exit::INTERRUPTED`] for the others. One that was ignored from the
/// start stays so.
///
/// # Errors
/// If the system refuses.
pub fn exit_on_signal() -> Result<()> {
    LEAVES.store(true, Ordering::SeqCst);
    if !LEFT.swap(true, Ordering::SeqCst) {
        for signal in ENDS.into_iter().filter(|signal| !is_ignored(*signal)) {
            let handler = move || {
                if LEAVES.load(Ordering::SeqCst) {
                    let code = match InterruptKind::of(signal) {
                        InterruptKind::Preempt => {
                            // Nobody may be reading any more.
                            let _ = rustix::io::write(rustix::stdio::stderr(), NOTHING_LOST);
                            exit::PREEMPTED
                        }
                        InterruptKind::Stop => exit::INTERRUPTED,
                    };
                    low_level::exit(code.into());
                }
            };
            // SAFETY: the handler reads an atomic number and calls `write` and `_exit`; a signal handler may do both.
            unsafe { low_level::register(signal, handler) }
                .map_err(|source| Error::System { operation: "install signal handlers", source })?;
        }
    }
    unblock_signals();
    Ok(())
}

/// Signals are the launcher's from now on.
pub(crate) fn hand_over_to_launcher() {
    LEAVES.store(false, Ordering::SeqCst);
    unblock_signals();
}

/// Whether signals have their default effect where nobody forwards them.
pub(crate) fn have_default_effect() -> bool {
    !LEFT.load(Ordering::SeqCst)
}

pub(crate) fn is_ignored(signal: i32) -> bool {
    // SAFETY: with a null action `sigaction` only fills in the current one; all zeros is a valid value to be filled.
    unsafe {
        let mut current: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, ptr::null(), &raw mut current) == 0 && current.sa_sigaction == libc::SIG_IGN
    }
}

/// Takes over SIGINT, SIGTERM and SIGUSR1 of this process, once; later calls return the same flag. Signals that were
/// [held back](block_signals) count.
///
/// - SIGINT: [`GRACE`] later the process exits with [`exit::INTERRUPTED`] wherever it is, without unwinding
///   or flushing.
/// - SIGTERM, SIGUSR1: after the grace of preemption ([`PREEMPTION_GRACE_VARIABLE`], by default
///   [`DEFAULT_PREEMPTION_GRACE`]) the process says on standard error that nothing was saved in time and exits with
///   [`exit::FAILED`]; where it still [prepares](Interrupt::mark_preparing), with [`exit::PREEMPTED`].
/// - A second signal makes it exit with [`exit::INTERRUPTED`] at once. But a rank that Brigade's launcher
///   started takes any number of SIGTERM and SIGUSR1 as one: a cluster that signals every process of a job
///   reaches it twice, directly and through the launcher, and it is the launcher that counts.
///
/// # Errors
/// If the variable is no number of seconds, or the system refuses.
pub fn install() -> Result<Interrupt> {
    static INSTALLED: Mutex<Option<Interrupt>> = Mutex::new(None);
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(interrupt) = &*installed {
        return Ok(interrupt.clone());
    }
    let grace = preemption_grace(&|name| std::env::var(name).ok())?;
    let launched = std::env::var(LAUNCHED_VARIABLE).is_ok_and(|value| value == "1");
    let interrupt = take_over(grace, launched)
        .map_err(|source| Error::System { operation: "install signal handlers", source })?;
    *installed = Some(interrupt.clone());
    unblock_signals();
    Ok(interrupt)
}

/// The grace of preemption that the environment asks for.
pub(crate) fn preemption_grace(env: &dyn Fn(&str) -> Option<String>) -> Result<Duration> {
    match env(PREEMPTION_GRACE_VARIABLE).filter(|text| !text.is_empty()) {
        None => Ok(DEFAULT_PREEMPTION_GRACE),
        Some(text) => {
            seconds(&text).map_err(|allowed| Error::variable(PREEMPTION_GRACE_VARIABLE, &text, allowed))
        }
    }
}

fn take_over(grace: Duration, launched: bool) -> io::Result<Interrupt> {
    let interrupt = Interrupt::detached();
    for (signal, kind) in
        [(SIGINT, InterruptKind::Stop), (SIGTERM, InterruptKind::Preempt), (SIGUSR1, InterruptKind::Preempt)]
    {
        let (noted, repeatable) = (interrupt.clone(), launched && kind == InterruptKind::Preempt);
        let handler = move || {
            if !noted.record(kind) && !repeatable {
                low_level::exit(exit::INTERRUPTED.into());
            }
        };
        // SAFETY: the handler works on an atomic number and calls `_exit`; both are allowed in a signal handler.
        unsafe { low_level::register(signal, handler)? };
    }
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGUSR1])?;
    let told = interrupt.clone();
    thread::Builder::new().name("interrupt".into()).spawn(move || {
        signals.forever().next();
        match told.kind() {
            Some(InterruptKind::Preempt) => {
                thread::sleep(grace);
                if told.0.is_preparing.load(Ordering::SeqCst) {
                    drop(io::stderr().write_all(NOTHING_LOST));
                    low_level::exit(exit::PREEMPTED.into());
                }
                // Nobody may be reading any more.
                drop(writeln!(
                    io::stderr(),
                    "brigade: preempted, but not saved within the {} s of grace",
                    grace.as_secs_f64()
                ));
                low_level::exit(exit::FAILED.into());
            }
            _ => {
                thread::sleep(GRACE);
                low_level::exit(exit::INTERRUPTED.into());
            }
        }
    })?;
    Ok(interrupt)
}
