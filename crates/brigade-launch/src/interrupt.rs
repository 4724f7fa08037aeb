//! Ctrl-C and SIGTERM in a rank.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
    iterator::Signals,
    low_level,
};

use crate::{Error, Result, exit};

/// How long a rank may go on after the first signal before the process is ended: shorter than the
/// launcher's [`GRACE`](crate::GRACE), so that a rank ends by itself.
pub const GRACE: Duration = Duration::from_secs(1);

/// A flag that Ctrl-C and SIGTERM set. Clones share it.
#[derive(Debug, Clone)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// True once a signal came. The training loop asks between two steps, and ends its work within [`GRACE`].
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// A flag that no signal sets, for a loop that runs inside another program. `set` sets it.
    pub fn detached() -> Self {
        Self(Arc::default())
    }

    /// Sets the flag, as a signal would, but without the end of the process after [`GRACE`].
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Takes over SIGINT and SIGTERM of this process, once; later calls return the same flag.
///
/// The first signal sets the flag; [`GRACE`] later the process exits with [`exit::INTERRUPTED`] wherever it
/// is, without unwinding or flushing. A second signal does so at once.
pub fn install() -> Result<Interrupt> {
    static INSTALLED: Mutex<Option<Interrupt>> = Mutex::new(None);
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(interrupt) = &*installed {
        return Ok(interrupt.clone());
    }
    let interrupt =
        take_over().map_err(|source| Error::System { operation: "install signal handlers", source })?;
    *installed = Some(interrupt.clone());
    Ok(interrupt)
}

fn take_over() -> io::Result<Interrupt> {
    let interrupt = Interrupt::detached();
    for signal in [SIGINT, SIGTERM] {
        // In this order: the second signal finds the flag set and exits from within the handler.
        flag::register_conditional_shutdown(signal, exit::INTERRUPTED.into(), Arc::clone(&interrupt.0))?;
        flag::register(signal, Arc::clone(&interrupt.0))?;
    }
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    thread::Builder::new().name("interrupt".into()).spawn(move || {
        if signals.forever().next().is_some() {
            thread::sleep(GRACE);
            low_level::exit(exit::INTERRUPTED.into());
        }
    })?;
    Ok(interrupt)
}
