//! Libraries that panic.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::panic_text;

/// Runs a library that panics on some damaged files, and turns a panic into an error.
pub(super) fn catch_panics<T, E: Display>(read: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => Err(panic_text(&*panic)),
    }
}
