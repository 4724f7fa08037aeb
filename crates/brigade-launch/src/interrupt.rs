//! Signals to a rank: Ctrl-C ends it, SIGTERM and SIGUSR1 announce that its machine is about to be taken away.
//!
//! A program that may be a rank, or may start ranks, calls [`block_signals`] first of all, so that no signal ends it before
//! it knows which it is: a rank calls [`install`], any other process [`exit_on_signal`] until it has something to save.

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
    error::{Error, Result},
    exit,
    parse::seconds,
};

/// How long a rank may continue after SIGINT before the process exits: shorter than the
/// launcher's [grace period](crate::DEFAULT_GRACE_PERIOD), so that a rank exits by itself.
pub const GRACE_PERIOD: Duration = Duration::from_secs(1);

/// How long a preempted rank may take to save and exit by default: as long as Kubernetes
/// leaves between SIGTERM and SIGKILL.
pub const DEFAULT_PREEMPTION_GRACE: Duration = Duration::from_secs(30);

/// How long a preempted rank may take, in seconds. The launcher sets it; for a rank that something else
/// started, set it to less than what the cluster leaves.
pub const PREEMPTION_GRACE_VARIABLE: &str = "BRIGADE_PREEMPTION_GRACE";

/// The signals that end a run.
const END_SIGNALS: [i32; 4] = [SIGINT, SIGTERM, SIGUSR1, SIGHUP];

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum InterruptKind {
    /// SIGINT: exit within [`GRACE_PERIOD`] with [`exit::INTERRUPTED`].
    Stop = 1,
    /// SIGTERM or SIGUSR1: save a checkpoint and exit with [`exit::PREEMPTED`].
    Preempt = 2,
}

/// The signals that this process has received. Clones share it.
///
/// It concerns this process alone: other ranks may have received the signal earlier, later, or not at all. A
/// training loop tells all ranks between two steps that it will stop.
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
    /// What a signal that ends a run asks for.
    pub(crate) fn of(signal: i32) -> Self {
        match signal {
            SIGTERM | SIGUSR1 => Self::Preempt,
            _ => Self::Stop,
        }
    }
}

impl Interrupt {
    /// What the first signal asked for, once there was one.
    pub fn kind(&self) -> Option<InterruptKind> {
        match self.0.kind.load(Ordering::Relaxed) {
            0 => None,
            kind if kind == InterruptKind::Stop as u8 => Some(InterruptKind::Stop),
            _ => Some(InterruptKind::Preempt),
        }
    }

    /// True once there was a signal, whatever it asked for.
    pub fn is_set(&self) -> bool {
        self.kind().is_some()
    }

    /// A flag that no signal sets, for a loop that runs inside another program.
    pub fn detached() -> Self {
        Self::default()
    }

    /// Until [`mark_training`](Self::mark_training) there is nothing to lose: a preempted process exits with
    /// [`exit::PREEMPTED`] at the end of its grace period, not with [`exit::FAILED`].
    pub fn mark_preparing(&self) {
        self.0.is_preparing.store(true, Ordering::SeqCst);
    }

    /// From now on there is something to lose.
    pub fn mark_training(&self) {
        self.0.is_preparing.store(false, Ordering::SeqCst);
    }

    /// Sets the flag, as SIGINT would, but the process does not exit after [`GRACE_PERIOD`].
    pub fn set(&self) {
        self.record(InterruptKind::Stop);
    }

    /// Sets the flag, as SIGTERM would, but the process does not exit after the grace period.
    pub fn preempt(&self) {
        self.record(InterruptKind::Preempt);
    }

    /// True if there was no signal before. Makes no system call and takes no lock.
    fn record(&self, kind: InterruptKind) -> bool {
        self.0.kind.compare_exchange(0, kind as u8, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

/// Blocks SIGINT, SIGTERM, SIGUSR1 and SIGHUP in this thread and in those that it starts. A signal that arrives meanwhile is
/// delivered after [`install`], [`exit_on_signal`], [`launch`](crate::launch) or [`unblock_signals`].
pub fn block_signals() {
    set_mask(libc::SIG_BLOCK);
}

/// Ends [`block_signals`]: pending signals are delivered.
pub fn unblock_signals() {
    set_mask(libc::SIG_UNBLOCK);
}

/// Whether a signal waits for the end of [`block_signals`], and will have an effect then.
pub fn is_signal_pending() -> bool {
    // SAFETY: the set is filled in by `sigpending`, which fails only for an address that is none.
    let pending = unsafe {
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigpending(&raw mut signals);
        signals
    };
    END_SIGNALS.into_iter().any(|signal| {
        // SAFETY: the set was filled in, and the number is that of a signal.
        let waits = unsafe { libc::sigismember(&raw const pending, signal) } == 1;
        waits && !is_ignored(signal)
    })
}

fn set_mask(how: i32) {
    // SAFETY: the set is made empty before anything is added to it; the calls fail only for numbers that are no signals.
    unsafe {
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        for signal in END_SIGNALS {
            libc::sigaddset(&raw mut signals, signal);
        }
        libc::pthread_sigmask(how, &raw const signals, ptr::null_mut());
    }
}

/// Whether a signal ends a process that has nothing to save.
static EXITS_ON_SIGNAL: AtomicBool = AtomicBool::new(false);
/// Whether [`exit_on_signal`] was ever called.
static HANDLERS_INSTALLED: AtomicBool = AtomicBool::new(false);

/// What a process that is preempted before the first step prints, or after the last.
const NOTHING_LOST: &[u8] =
    b"brigade: preempted while nothing was trained; nothing is lost, start it again\n";

/// Whether the next signal that announces an end is only noted.
static FINISHES: AtomicBool = AtomicBool::new(false);

/// Whether the process writes the last results.
static HAS_RESULTS: AtomicBool = AtomicBool::new(false);

const NOT_COPIED: &[u8] =
    b"brigade: ended before the last results were copied; they are in the run's folder on this machine\n";

const FINISHING: &[u8] = b"brigade: copying the last results; a second signal stops this at once\n";

/// For a process that is not a rank and has nothing to save: until [`launch`](crate::launch) takes over the signals, they end the
/// process at once, with [`exit::PREEMPTED`] for SIGTERM and SIGUSR1 and [`exit::INTERRUPTED`] for the others. A signal that was
/// ignored from the start stays ignored.
///
/// # Errors
/// If the system refuses.
pub fn exit_on_signal() -> Result<()> {
    EXITS_ON_SIGNAL.store(true, Ordering::SeqCst);
    if !HANDLERS_INSTALLED.swap(true, Ordering::SeqCst) {
        for signal in END_SIGNALS.into_iter().filter(|signal| !is_ignored(*signal)) {
            let handler = move || {
                if EXITS_ON_SIGNAL.load(Ordering::SeqCst) {
                    let is_preemption = InterruptKind::of(signal) == InterruptKind::Preempt;
                    if is_preemption && FINISHES.swap(false, Ordering::SeqCst) {
                        let _ = rustix::io::write(rustix::stdio::stderr(), FINISHING);
                        return;
                    }
                    let code = match InterruptKind::of(signal) {
                        InterruptKind::Preempt => {
                            let text =
                                if HAS_RESULTS.load(Ordering::SeqCst) { NOT_COPIED } else { NOTHING_LOST };
                            // Nobody may read it any more.
                            let _ = rustix::io::write(rustix::stdio::stderr(), text);
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

/// As [`exit_on_signal`], for a process that writes the last results: of SIGTERM and SIGUSR1, which come some time before a machine is taken away, the first does not end it.
///
/// # Errors
/// If the system refuses.
pub fn exit_on_second_signal() -> Result<()> {
    HAS_RESULTS.store(true, Ordering::SeqCst);
    FINISHES.store(true, Ordering::SeqCst);
    exit_on_signal()
}

/// From now on the launcher handles the signals.
pub(crate) fn hand_over_to_launcher() {
    EXITS_ON_SIGNAL.store(false, Ordering::SeqCst);
    unblock_signals();
}

/// Whether signals have their default effect where nobody forwards them.
pub(crate) fn have_default_effect() -> bool {
    !HANDLERS_INSTALLED.load(Ordering::SeqCst)
}

pub(crate) fn is_ignored(signal: i32) -> bool {
    // SAFETY: with a null action `sigaction` only fills in the current one; all zeros is a valid value to be filled.
    unsafe {
        let mut current: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, ptr::null(), &raw mut current) == 0 && current.sa_sigaction == libc::SIG_IGN
    }
}

/// Lets this process wait for those that it starts, also if it was told to ignore their ends: it would not learn how they ended.
pub fn learn_of_ends() {
    if is_ignored(libc::SIGCHLD) {
        // SAFETY: the default effect is a valid disposition.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    }
}

/// Takes over SIGINT, SIGTERM and SIGUSR1 of this process, once; later calls return the same flag. Signals that were
/// [blocked](block_signals) are delivered.
///
/// - SIGINT: [`GRACE_PERIOD`] later the process exits with [`exit::INTERRUPTED`] wherever it is, without unwinding
///   or flushing.
/// - SIGTERM, SIGUSR1: after the grace period of preemption ([`PREEMPTION_GRACE_VARIABLE`], by default
///   [`DEFAULT_PREEMPTION_GRACE`]) the process prints that nothing was saved in time and exits with
///   [`exit::FAILED`]; while it is still [preparing](Interrupt::mark_preparing), with [`exit::PREEMPTED`].
/// - Any number of SIGTERM and SIGUSR1 count as one: a cluster that signals every process of a job reaches a rank twice,
///   directly and through its launcher. Any other second signal makes the process exit with [`exit::INTERRUPTED`] at once.
///
/// # Errors
/// If the variable is not a number of seconds, or the system refuses.
pub fn install() -> Result<Interrupt> {
    static INSTALLED: Mutex<Option<Interrupt>> = Mutex::new(None);
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(interrupt) = &*installed {
        return Ok(interrupt.clone());
    }
    let grace = preemption_grace(&|name| std::env::var(name).ok())?;
    let interrupt =
        take_over(grace).map_err(|source| Error::System { operation: "install signal handlers", source })?;
    *installed = Some(interrupt.clone());
    unblock_signals();
    Ok(interrupt)
}

/// The grace period of preemption that the environment asks for.
pub(crate) fn preemption_grace(env: &dyn Fn(&str) -> Option<String>) -> Result<Duration> {
    match env(PREEMPTION_GRACE_VARIABLE).filter(|text| !text.is_empty()) {
        None => Ok(DEFAULT_PREEMPTION_GRACE),
        Some(text) => {
            seconds(&text).map_err(|allowed| Error::variable(PREEMPTION_GRACE_VARIABLE, &text, allowed))
        }
    }
}

fn take_over(grace: Duration) -> io::Result<Interrupt> {
    let interrupt = Interrupt::detached();
    for (signal, kind) in
        [(SIGINT, InterruptKind::Stop), (SIGTERM, InterruptKind::Preempt), (SIGUSR1, InterruptKind::Preempt)]
    {
        let noted = interrupt.clone();
        let handler = move || {
            if !noted.record(kind) && kind == InterruptKind::Stop {
                low_level::exit(exit::INTERRUPTED.into());
            }
        };
        // SAFETY: the handler works on an atomic number and calls `_exit`; both are allowed in a signal handler.
        unsafe { low_level::register(signal, handler)? };
    }
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGUSR1])?;
    let received = interrupt.clone();
    thread::Builder::new().name("interrupt".into()).spawn(move || {
        signals.forever().next();
        match received.kind() {
            Some(InterruptKind::Preempt) => {
                thread::sleep(grace);
                if received.0.is_preparing.load(Ordering::SeqCst) {
                    drop(io::stderr().write_all(NOTHING_LOST));
                    low_level::exit(exit::PREEMPTED.into());
                }
                // Nobody may read it any more.
                drop(writeln!(
                    io::stderr(),
                    "brigade: preempted, but not saved within the grace period of {} s",
                    grace.as_secs_f64()
                ));
                low_level::exit(exit::FAILED.into());
            }
            _ => {
                thread::sleep(GRACE_PERIOD);
                low_level::exit(exit::INTERRUPTED.into());
            }
        }
    })?;
    Ok(interrupt)
}
