//! One input, and what is wrong with how it was taken.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use crate::memory::{Used, measure};
use crate::target::Target;

/// What a parser must not do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It panicked.
    Panic {
        /// The panic's text and place.
        text: String,
    },
    /// It held more memory at once than its bound.
    AtOnce {
        /// Bytes that it held.
        used: u64,
        /// Bytes that it may hold.
        allowed: u64,
    },
    /// It asked for more memory in total than its bound.
    InTotal {
        /// Bytes that it asked for.
        used: u64,
        /// Bytes that it may ask for.
        allowed: u64,
    },
    /// The process ended.
    Died {
        /// How.
        how: String,
    },
    /// There was no answer.
    Stuck {
        /// How long it was waited for, in seconds.
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
            Self::AtOnce { used, allowed } => {
                write!(f, "it held {used} bytes at once; {allowed} are allowed")
            }
            Self::InTotal { used, allowed } => {
                write!(f, "it asked for {used} bytes in total; {allowed} are allowed")
            }
            Self::Died { how } => write!(f, "the process ended: {how}"),
            Self::Stuck { seconds } => write!(f, "no answer in {seconds} s"),
        }
    }
}

/// Runs a target on an input in this process.
///
/// # Errors
/// The first [`Fault`].
pub fn trial(target: &Target, input: &[u8]) -> Result<Used, Fault> {
    let (outcome, used) = measure(|| caught(|| (target.run)(input)));
    outcome.map_err(|text| Fault::Panic { text })?;
    let (at_once, in_total) = (target.bound.at_once.of(input.len()), target.bound.in_total.of(input.len()));
    if used.at_once > at_once {
        return Err(Fault::AtOnce { used: used.at_once, allowed: at_once });
    }
    if used.in_total > in_total {
        return Err(Fault::InTotal { used: used.in_total, allowed: in_total });
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
