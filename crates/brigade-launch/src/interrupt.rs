//! Signals to a rank: Ctrl-C ends it, SIGTERM and SIGUSR1 announce that its machine is about to be taken away.

use std::{
    io::{self, Write},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    thread,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use signal_hook::{
    consts::{SIGINT, SIGTERM, SIGUSR1},
    iterator::Signals,
    low_level,
};

use crate::{Error, LAUNCHED_VARIABLE, Result, args::seconds, exit};

/// How long a rank may go on after the signal to stop before the process is ended: shorter than the
/// launcher's [`GRACE`](crate::GRACE), so that a rank ends by itself.
pub const GRACE: Duration = Duration::from_secs(1);

/// How long a preempted rank may take to save and leave, where nothing else is said: as long as Kubernetes
/// leaves between SIGTERM and SIGKILL.
pub const PREEMPTION_GRACE: Duration = Duration::from_secs(30);

/// How long a preempted rank may take, in seconds. The launcher sets it; for a rank that something else
/// started, set it to less than what the cluster leaves.
pub const PREEMPTION_GRACE_VARIABLE: &str = "BRIGADE_PREEMPTION_GRACE";

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum Kind {
    /// SIGINT: end now, within [`GRACE`], with [`exit::INTERRUPTED`].
    Stop = 1,
    /// SIGTERM or SIGUSR1: save a checkpoint and leave with [`exit::PREEMPTED`].
    Preempt = 2,
}

/// What this process was told by signals. Clones share it.
///
/// It is about this process alone: other ranks may have got the signal earlier, later, or not at all. A
/// training loop that leaves its world lets all ranks know, between two steps.
#[derive(Debug, Clone)]
pub struct Interrupt(Arc<AtomicU8>);

impl Interrupt {
    /// What the first signal asked for, once one came.
    pub fn kind(&self) -> Option<Kind> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            kind if kind == Kind::Stop as u8 => Some(Kind::Stop),
            _ => Some(Kind::Preempt),
        }
    }

    /// True once a signal came, whatever it asked for.
    pub fn is_set(&self) -> bool {
        self.kind().is_some()
    }

    /// A flag that no signal sets, for a loop that runs inside another program.
    pub fn detached() -> Self {
        Self(Arc::default())
    }

    /// Sets the flag, as SIGINT would, but without the end of the process after [`GRACE`].
    pub fn set(&self) {
        self.note(Kind::Stop);
    }

    /// Sets the flag, as SIGTERM would, but without the end of the process after the grace.
    pub fn preempt(&self) {
        self.note(Kind::Preempt);
    }

    /// True if nothing was noted before. Makes no system call and takes no lock.
    fn note(&self, kind: Kind) -> bool {
        self.0.compare_exchange(0, kind as u8, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

/// Takes over SIGINT, SIGTERM and SIGUSR1 of this process, once; later calls return the same flag.
///
/// - SIGINT: [`GRACE`] later the process exits with [`exit::INTERRUPTED`] wherever it is, without unwinding
///   or flushing.
/// - SIGTERM, SIGUSR1: after the grace of preemption ([`PREEMPTION_GRACE_VARIABLE`], by default
///   [`PREEMPTION_GRACE`]) the process says on standard error that nothing was saved in time and exits with
///   [`exit::FAILED`].
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
    Ok(interrupt)
}

/// The grace of preemption that the environment asks for.
pub(crate) fn preemption_grace(env: &dyn Fn(&str) -> Option<String>) -> Result<Duration> {
    match env(PREEMPTION_GRACE_VARIABLE).filter(|text| !text.is_empty()) {
        None => Ok(PREEMPTION_GRACE),
        Some(text) => {
            seconds(&text).map_err(|allowed| Error::variable(PREEMPTION_GRACE_VARIABLE, &text, allowed))
        }
    }
}

fn take_over(grace: Duration, launched: bool) -> io::Result<Interrupt> {
    let interrupt = Interrupt::detached();
    for (signal, kind) in [(SIGINT, Kind::Stop), (SIGTERM, Kind::Preempt), (SIGUSR1, Kind::Preempt)] {
        let (noted, repeatable) = (interrupt.clone(), launched && kind == Kind::Preempt);
        let handler = move || {
            if !noted.note(kind) && !repeatable {
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
            Some(Kind::Preempt) => {
                thread::sleep(grace);
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
