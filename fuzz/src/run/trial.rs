//! One input, and how the parser failed on it.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use super::memory::{Used, measure};
use crate::target::Target;

/// What a parser must not do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It panicked.
    Panic {
        /// The panic's text and place.
        text: String,
    },
    /// It held more memory at one time than its bound.
    PeakMemory {
        /// Bytes that it held.
        used: u64,
        /// Bytes that it may hold.
        allowed: u64,
    },
    /// It allocated more memory in total than its bound.
    TotalMemory {
        /// Bytes that it allocated.
        used: u64,
        /// Bytes that it may allocate.
        allowed: u64,
    },
    /// The process ended.
    Died {
        /// How.
        how: String,
    },
    /// It did not return in time.
    TimedOut {
        /// The time limit in seconds.
        seconds: u64,
    },
}

impl Fault {
    /// Whether another fault is of the same kind.
    pub fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panic { text } => write!(f, "it panicked: {text}"),
            Self::PeakMemory { used, allowed } => {
                write!(f, "it held {used} bytes at once; {allowed} are allowed")
            }
            Self::TotalMemory { used, allowed } => {
                write!(f, "it allocated {used} bytes in total; {allowed} are allowed")
            }
            Self::Died { how } => write!(f, "the process ended: {how}"),
            Self::TimedOut { seconds } => write!(f, "it did not return within {seconds} s"),
        }
    }
}

/// Runs a target on an input in this process.
///
/// # Errors
/// The first [`Fault`].
pub fn check(target: &Target, input: &[u8]) -> Result<Used, Fault> {
    let (outcome, used) = measure(|| caught(|| (target.run)(input)));
    outcome.map_err(|text| Fault::Panic { text })?;
    let (peak, total) = (target.bound.peak.of(input.len()), target.bound.total.of(input.len()));
    if used.peak > peak {
        return Err(Fault::PeakMemory { used: used.peak, allowed: peak });
    }
    if used.total > total {
        return Err(Fault::TotalMemory { used: used.total, allowed: total });
    }
    Ok(used)
}

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Gives the text of a panic instead of printing it.
fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if CATCHING.get() {
                PANIC.set(info.to_string().replace('\n', " "));
            } else {
                before(info);
            }
        }));
    });
    CATCHING.set(true);
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    CATCHING.set(false);
    result.map_err(|_| PANIC.take())
}
